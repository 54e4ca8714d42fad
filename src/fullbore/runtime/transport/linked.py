"""What the transports between processes share: waiting on links, and what a failure sets off."""

from __future__ import annotations

import math
import os
import select
import time
import weakref
from collections.abc import Collection, Iterable

from fullbore.errors import ParameterError, PeerFailed, TransportError, TransportTimeout
from fullbore.runtime.transport.base import Edge, Inbox, describe_tag
from fullbore.runtime.transport.link import DONT_WAIT, Aborted, Link, LinkLost
from fullbore.runtime.transport.position import (
    NOWHERE,
    RUN,
    WAITS_FOR,
    Address,
    Onlooker,
    Page,
    Position,
)
from fullbore.runtime.tree import Tree

TICK = 0.5
"""Seconds after which a rank that waits looks around."""

_LAST_WORDS = 0.2
"""Seconds in which a rank whose time is up still listens to the others."""

MAX_TIMEOUT = 1_000_000
"""Seconds; the system's calls count no further than some weeks."""


class LinkedTransport:
    """Plays one rank, which has a link to each rank that it exchanges messages with.

    Whatever it waits for, it watches all links: a failure anywhere ends the wait. To be used by one
    thread at a time.

    Args:
        rank: the rank that this process plays.
        timeout: seconds that a message may take before it counts as lost.
        max_ahead: how many messages a rank may send on one edge before their receives are posted.

    Raises:
        ParameterError: one of them makes no sense, or this system has no ``poll``.
    """

    def __init__(self, rank: int, *, timeout: float, max_ahead: int) -> None:
        if not hasattr(select, "poll"):
            raise ParameterError("transports between processes need Linux, macOS or another Unix")
        if not 0 < timeout <= MAX_TIMEOUT:
            raise ParameterError(
                f"timeout must be more than 0 and at most {MAX_TIMEOUT} seconds; got {timeout}"
            )
        if max_ahead < 1:
            raise ParameterError(f"max_ahead must be at least 1; got {max_ahead}")
        self._rank, self._timeout, self._max_ahead = rank, timeout, max_ahead
        self._links: dict[int, Link] = {}
        self._by_file: dict[int, Link] = {}
        self._poll = select.poll()
        self._inboxes: dict[Edge, Inbox] = {}
        self._deadline = 0.0  # once a wait has begun in earnest
        self._flags: int = DONT_WAIT
        self._generation = 0
        self._failure: TransportError | None = None
        self._hears_later = False
        self._page, self._onlooker = Page(), Onlooker()
        self.progress = self._page.progress
        _forget_in_forks(self)

    @property
    def ranks(self) -> tuple[int]:
        """The one rank."""
        return (self._rank,)

    def send(self, edge: Edge, tag: int, value: Tree) -> None:
        """Send ``value``; see ``Transport.send``.

        Waits while ``max_ahead`` messages of the edge have no posted receive: orders are proved to
        run even if every send waits for its receive to be posted. Waiting for memory instead would
        not be safe: the receiver may keep a tensor until work that depends on our next sends.

        Raises:
            PeerFailed: a rank failed or is gone.
            TransportTimeout: the receiver posted nothing in time.
            ParameterError: ``value`` cannot be sent.
        """
        link = self._links[edge[1]]
        try:
            if link.sent - link.acknowledged >= self._max_ahead:
                self._await_post(link, tag)
            link.send(tag, value)
        except LinkLost:
            raise self._fail(link) from None

    def post(self, edge: Edge, tag: int) -> None:
        """Note that ``tag`` comes next; the sender learns it with some later packet."""
        self._inboxes[edge].post(tag)
        self._links[edge[0]].post(-(-self._max_ahead // 2))

    def recv(self, edge: Edge, tag: int) -> Tree:
        """The message ``tag``; see ``Transport.recv``."""
        link = self._links[edge[0]]

        def fetch() -> tuple[int, Tree]:
            if not link.arrived:
                self._await_message(link, tag)
            if link.arrived[0][0] != self._generation:
                raise self._fail(link)  # the message is for the run after the failure: it stays
            _, got, value = link.arrived.popleft()
            return got, value

        return self._inboxes[edge].take(tag, fetch)

    def watch(self, seconds: float, partners: Collection[int] = ()) -> None:
        """Take in what comes meanwhile; see ``Transport.watch``."""
        for link in self._links.values():
            if self._ends_run(link.aborted) or (link.gone and not link.closed):
                raise self._fail(link)
        self._take_in(time.monotonic() + seconds)

    def flush(self) -> None:
        """Return what this rank has done with to the others; see ``Transport.flush``."""
        for link in self._links.values():
            if not link.gone:
                link.flush()

    def abort(self, reason: str) -> None:
        """Tell all ranks that this one failed; if it failed because of another, they know."""
        if self._failure is None:
            self._spread(Aborted(self._rank, reason, self.progress[RUN]), is_first=True)

    def reset(self) -> None:
        """Start a new generation: what was sent before will be dropped. All ranks agree on its
        number as soon as all have reset, however often each of them failed.

        Raises:
            TransportError: a rank is gone.
        """
        for link in self._links.values():
            while not link.gone and link.read():
                pass
            if link.gone:
                raise TransportError(
                    f"rank {link.peer} is gone; this group of ranks cannot go on, start it again"
                )
        self._failure = None
        self.progress[WAITS_FOR] = NOWHERE
        latest = max((link.peer_generation for link in self._links.values()), default=0)
        self._generation = max(self._generation + 1, latest)
        for link in self._links.values():
            link.reset(self._generation)
        for inbox in self._inboxes.values():
            inbox.clear()

    def close(self) -> None:
        """Say goodbye to the other ranks. Received tensors stay valid."""
        for link in self._links.values():
            link.leave()
        self._forget()

    def positions(self) -> dict[int, Position]:
        """Where the other ranks are; see ``Transport.positions``."""
        for link in self._links.values():
            while not link.gone and link.read():
                pass
        return self._look()

    def _look(self) -> dict[int, Position]:
        for link in self._links.values():
            if link.page is not None:
                self._onlooker.addresses[link.peer], link.page = Address.decode(link.page), None
        return self._onlooker.look()

    def _adopt(self, links: Iterable[Link]) -> None:
        self._poll, self._flags = select.poll(), DONT_WAIT
        self._links = {link.peer: link for link in links}
        self._by_file = {link.fileno(): link for link in self._links.values()}
        for file in self._by_file:
            self._poll.register(file, select.POLLIN)
        if len(self._links) == 1:
            # There is nothing else to watch, so that the one call may wait.
            self._flags = 0
            for link in self._links.values():
                link.set_patience(min(TICK, self._timeout))

    def _open(self, edges: Collection[Edge]) -> None:
        self._inboxes = {edge: Inbox(edge) for edge in edges if edge[1] == self._rank}
        # Another object each time: whoever has the one before knows that it is not served any more.
        self.progress = self._page.renew()

    def _forget(self) -> None:
        self._drop_links()
        self._page.close()

    def _drop_links(self) -> None:
        for link in self._links.values():
            link.close()
        self._links, self._by_file = {}, {}
        self._inboxes.clear()

    def _await_message(self, link: Link, tag: int) -> None:
        self._deadline = 0.0
        while not link.arrived:
            if not self._advance(link):
                raise self._late(link, f"to send the message for {describe_tag(tag)}")
        if self._deadline:
            self.progress[WAITS_FOR] = NOWHERE

    def _await_post(self, link: Link, tag: int) -> None:
        self._deadline = 0.0
        while link.sent - link.acknowledged >= self._max_ahead:
            if not self._advance(link):
                raise self._late(link, f"to post the receive {describe_tag(tag)}")
        if self._deadline:
            self.progress[WAITS_FOR] = NOWHERE

    def _advance(self, link: Link) -> bool:
        """Take in something that may be what is waited for; False when time is up."""
        if self._is_hopeless(link):
            raise self._fail(link)
        if self._hears_later:
            self._hear_now()
        if link.read(self._flags):
            return True
        now = time.monotonic()
        if not self._deadline:
            # Where the link itself waits, it has done so.
            self._deadline = now + self._timeout - (0 if self._flags else min(TICK, self._timeout))
        if self._flags and self._take_in(min(self._deadline, now + TICK)):
            return True
        return self._look_around(link.peer, self._deadline)

    def _look_around(self, peer: int, deadline: float) -> bool:
        """Nothing came for a while: tell that this rank waits, and see what the others do. False
        when time is up."""
        self.progress[WAITS_FOR] = peer
        self._check_news(waited=time.monotonic() - (deadline - self._timeout))
        self._look()
        return time.monotonic() < deadline

    def _check_news(self, *, waited: float) -> None:
        """Raise because of what was not heard through a link, after a wait of ``waited`` seconds;
        for those who hear more."""

    def _late(self, link: Link, doing: str) -> TransportTimeout:
        error = TransportTimeout(
            f"rank {self._rank} waited {self._timeout:g} s for rank {link.peer} {doing}"
        )
        error.positions = self.positions()
        # Others may give up at this moment, and one of them may know whom all of them wait for.
        deadline = time.monotonic() + _LAST_WORDS
        while time.monotonic() < deadline and self._take_in(deadline):
            pass
        return error

    def _is_hopeless(self, link: Link) -> bool:
        return bool(
            self._failure is not None
            or link.gone
            or self._ends_run(link.aborted)
            or (link.aborted is None and link.peer_generation > self._generation)
        )

    def _ends_run(self, failure: Aborted | None) -> bool:
        """Whether a failure ends the run under way. One of a later run does not: the rank that
        failed has done its part of this one. It is heard of when this rank gets there."""
        if failure is None:
            return False
        later = failure.run // 2 > self.progress[RUN] // 2
        self._hears_later |= later
        return not later

    def _hear_now(self) -> None:
        self._hears_later = False
        for link in self._links.values():
            if self._ends_run(link.aborted):
                raise self._fail(link)

    def _take_in(self, deadline: float) -> list[tuple[int, int]]:
        """Wait for any rank's packets and take in one of each. Gives the poll's events, none when
        time is up."""
        left = max(0.0, deadline - time.monotonic())
        events = self._poll.poll(math.ceil(left * 1000))
        for file, event in events:
            link = self._by_file[file]
            if event & ~select.POLLOUT:
                link.read()
            if link.gone:
                self._poll.unregister(file)
            if self._ends_run(link.aborted) or (link.gone and not link.closed):
                raise self._fail(link)
        return events

    def _wait_writable(self, link: Link) -> None:
        """Wait for room in a link's socket, and read meanwhile: its other end may do the same."""
        deadline = time.monotonic() + self._timeout
        self._poll.modify(link.fileno(), select.POLLIN | select.POLLOUT)
        writable = False
        try:
            while not writable:
                events = self._take_in(min(deadline, time.monotonic() + TICK))
                if not events and not self._look_around(link.peer, deadline):
                    raise self._late(link, "to read what it was sent")
                if link.gone:
                    raise self._fail(link)
                writable = any(
                    file == link.fileno() and event & select.POLLOUT for file, event in events
                )
            self._poll.modify(link.fileno(), select.POLLIN)
            self.progress[WAITS_FOR] = NOWHERE
        finally:
            # Whatever ended the wait, a message may have been cut in the middle.
            link.gone = link.gone or not writable

    def _fail(self, link: Link) -> TransportError:
        """What to raise because of ``link``; the other ranks are told."""
        if self._failure is None:
            failure = link.aborted or Aborted(link.peer, _why_gone(link), self.progress[RUN])
            self._spread(failure, is_first=link.aborted is None)
        return self._again()

    def _again(self) -> TransportError:
        """The failure, to be raised once more."""
        assert self._failure is not None
        return type(self._failure)(self._failure.message)

    def _spread(self, failure: Aborted, *, is_first: bool) -> None:
        """Tell all ranks. ``is_first``: nobody but this rank can have told them."""
        rank, reason, _ = failure
        # A stall is nobody's failure; every rank names it by its name.
        kind = TransportTimeout if reason.startswith(TransportTimeout.__name__) else PeerFailed
        self._failure = kind(f"rank {rank} failed: {reason}")
        for link in self._links.values():
            if link.peer != rank and not link.gone:
                link.abort(failure)


def check_size(num_ranks: int, started: int) -> None:
    """Guard of ``connect``.

    Raises:
        TransportError: the schedule is for another number of ranks than were started.
    """
    if num_ranks != started:
        raise TransportError(f"the schedule has {num_ranks} ranks, but {started} were started")


def _why_gone(link: Link) -> str:
    if link.closed:
        return "it has closed its transport"
    return "its process is gone" if link.gone else "it has given up this run"


def _forget_in_forks(transport: LinkedTransport) -> None:
    # A forked helper (a DataLoader's worker, say) would keep the sockets open, and this process's
    # death unseen, for as long as it lives.
    kept = weakref.ref(transport)

    def forget() -> None:
        copy = kept()
        if copy is not None:
            copy._forget()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
