"""What a transport is: ordered channels of messages between ranks.

A transport carries pytrees of tensors and plain values over *edges*, directed pairs of ranks.
Messages of one edge arrive in the order in which they were sent; a tag says what each one is, so
that a message that was not expected is an error and never a wrong gradient.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from fullbore.errors import TransportError
from fullbore.runtime.transport.position import Position, Progress
from fullbore.runtime.tree import Tree

Edge = tuple[int, int]
"""(sending rank, receiving rank)."""

_MICROBATCH_BITS, _STAGE_BITS, _EPOCH_BITS = 24, 16, 22

GATHER_STAGE = (1 << _STAGE_BITS) - 1
"""In the tag of a message that belongs to no stage: the ranks tell each other something."""


def make_tag(epoch: int, stage: int, microbatch: int, *, backward: bool) -> int:
    """The name of a message, a non-negative integer under 2**63.

    Args:
        epoch: counts the runs of a pipeline; a message of another run is not mistaken for this
            run's (it wraps around).
        stage: the stage that receives.
        microbatch: which microbatch.
        backward: gradients (towards stage 0) rather than activations.
    """
    epoch %= 1 << _EPOCH_BITS
    head = (epoch << _STAGE_BITS | stage) << _MICROBATCH_BITS | microbatch
    return head << 1 | backward


class Message(NamedTuple):
    """What a tag says: the arguments of ``make_tag``."""

    epoch: int
    stage: int
    microbatch: int
    backward: bool


def read_tag(tag: int) -> Message:
    """What ``make_tag`` made the tag of."""
    rest, backward = divmod(tag, 2)
    rest, microbatch = divmod(rest, 1 << _MICROBATCH_BITS)
    return Message(*divmod(rest, 1 << _STAGE_BITS), microbatch, bool(backward))


def describe_tag(tag: int) -> str:
    """A tag as text: the receiving action and the run, ``1RECV_F3 (run 7)``."""
    epoch, stage, microbatch, backward = read_tag(tag)
    if stage == GATHER_STAGE:
        return f"what the ranks tell each other outside the schedule (run {epoch})"
    return f"{stage}{'RECV_B' if backward else 'RECV_F'}{microbatch} (run {epoch})"


def _calls(edge: Edge, got: int, wanted: int) -> str:
    """What two ranks are in that do not make the same calls, as far as their messages tell."""
    sent, expected = (
        "another call" if m.stage == GATHER_STAGE else ("eval()", "step()")[m.epoch % 2]
        for m in map(read_tag, (got, wanted))
    )
    return (
        "" if sent == expected else f"; rank {edge[0]} is in {sent}, rank {edge[1]} in {expected}"
    )


class Transport(Protocol):
    """Moves messages between ranks. One object serves all ranks that this process plays."""

    @property
    def ranks(self) -> Collection[int]:
        """The ranks that this process plays."""

    @property
    def progress(self) -> Progress:
        """Where this process writes how far it is; another object after each ``connect``."""

    def connect(self, num_ranks: int, edges: Collection[Edge]) -> None:
        """Get ready for ``edges``, the same on every rank, in the same order. Called by all ranks
        together, before the first message; an edge may touch none of ``ranks``. A second call
        begins anew, for another pipeline.

        Raises:
            TransportError: the transport cannot serve that many ranks.
        """

    def send(self, edge: Edge, tag: int, value: Tree) -> None:
        """Send ``value``, whose tensors may be attached to a graph. The caller gives it away: the
        tensors' contents do not change afterwards. Does not wait for the receiver's compute,
        though it may wait until the receiver has posted (orders are proved to allow that).

        The receiver's leaves ask for a gradient where the sender's did.
        """

    def post(self, edge: Edge, tag: int) -> None:
        """Announce the next receive on ``edge``; does not block. Receives complete in the order
        in which they were posted."""

    def recv(self, edge: Edge, tag: int) -> Tree:
        """The value of a posted receive; waits for it. Tensors are leaves without graph, and stay
        valid for as long as somebody holds them.

        Raises:
            TransportTimeout: nothing came in time.
            PeerFailed: the sending rank failed or is gone.
            TransportError: what came is not what was posted.
        """

    def positions(self) -> Mapping[int, Position]:
        """Where the other ranks are, by rank, as far as that can be found out in a few seconds."""

    def watch(self, seconds: float, partners: Collection[int] = ()) -> None:
        """Wait about so long for something else than a message.

        Args:
            seconds: how long.
            partners: global ranks, also of other pipelines, without which it cannot come. A failure
                of their pipelines ends the wait as far as it is heard of.

        Raises:
            PeerFailed: a rank failed or is gone.
        """

    def flush(self) -> None:
        """Wait until everything sent is out of this rank's hands."""

    def abort(self, reason: str) -> None:
        """Tell the other ranks that this one failed, as well as that is still possible."""

    def reset(self) -> None:
        """Forget posted receives and undelivered messages of a failed run.

        Raises:
            TransportError: the channels cannot be used any more; says what to do.
        """

    def close(self) -> None:
        """Release everything. The transport cannot be used afterwards."""


class Inbox:
    """The receiving end of one edge: posted tags in order, and early messages kept aside."""

    __slots__ = ("_arrived", "_posted", "edge")

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self._posted: deque[int] = deque()
        self._arrived: dict[int, Tree] = {}

    def post(self, tag: int) -> None:
        """A receive of ``tag`` comes after those posted before."""
        self._posted.append(tag)

    def take(self, tag: int, fetch: Callable[[], tuple[int, Tree]]) -> Tree:
        """The message ``tag``; ``fetch()`` gives the next ``(tag, value)`` of the channel.

        Raises:
            TransportError: a message came that is not the next one posted.
        """
        while tag not in self._arrived:
            if not self._posted:
                raise TransportError(f"no receive was posted for {describe_tag(tag)}")
            wanted = self._posted[0]
            got, value = fetch()
            if got != wanted:
                raise TransportError(
                    f"rank {self.edge[0]} sent the message for {describe_tag(got)} where rank "
                    f"{self.edge[1]} expects {describe_tag(wanted)}: the ranks do not run the "
                    f"same schedule or step{_calls(self.edge, got, wanted)}"
                )
            self._posted.popleft()
            if got == tag:
                return value
            self._arrived[got] = value
        return self._arrived.pop(tag)

    def clear(self) -> None:
        """Forget everything."""
        self._posted.clear()
        self._arrived.clear()
