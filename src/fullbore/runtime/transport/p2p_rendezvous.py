"""How the ranks of a process group find and connect to each other."""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import secrets
import socket
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from fullbore.errors import PeerFailed, TransportError, TransportTimeout
from fullbore.runtime.transport.position import Address

_DIAL_SECONDS = 5.0
_KEY_BYTES = 32
_RANK = struct.Struct("<I")
_WELCOME = b"w"
_LOOPBACKS = ("127.", "::1")
_RETRY_SECONDS = 0.1
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class _Contact:
    """Where a rank listens, what it wants to be told by those that connect, where it writes its
    progress, and whom it exchanges messages with."""

    machine: str
    addresses: tuple[str, ...]
    port: int
    key: bytes
    page: bytes = b""
    peers: tuple[int, ...] = ()


def open_store(group: dist.ProcessGroup | None) -> tuple[Store, Store]:
    """A part of the default store for the next pipeline of ``group``, and one for the whole world.
    Both have a connection of their own. Called by all ranks of the group."""
    store = distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined] # not in torch's stubs
    name = distributed_c10d._get_process_group_name(group or distributed_c10d._get_default_group())
    mine = PrefixStore(f"fullbore/{name}", store)
    # All ranks count alike, as all make the same pipelines.
    number = mine.add(f"pipelines/{dist.get_rank(group)}", 1)
    return PrefixStore(f"{number}", mine), PrefixStore("fullbore/failures", store)


def connect_all(
    group: dist.ProcessGroup | None,
    peers: Collection[int],
    *,
    timeout: float,
    store: Store,
    page: Address | None,
) -> tuple[dict[int, socket.socket], dict[int, Address]]:
    """A connected stream socket for each of ``peers``, by rank in ``group``, and where the ranks on
    this host write their progress. Called by all ranks of the group together.

    Args:
        group: the ranks.
        peers: those that this rank exchanges messages with.
        timeout: seconds.
        store: a part that this call alone uses.
        page: where this rank writes its progress.

    The network interface is the one that ``GLOO_SOCKET_IFNAME`` names, as for gloo, else any by
    which ``MASTER_ADDR`` or this host's name is reached.

    Raises:
        TransportError: a rank declined, could not be reached in ``timeout`` seconds, or does not
            count this rank among its own.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    named = _named_addresses()
    with _listen(named[0] if named else "", backlog=max(size, 16)) as server:
        own = _Contact(
            machine=machine(),
            addresses=tuple(dict.fromkeys(named or _guessed_addresses())),
            port=server.getsockname()[1],
            key=secrets.token_bytes(_KEY_BYTES),
            page=b"" if page is None else page.encode(),
            peers=tuple(sorted(peers)),
        )
        contacts = _exchange(own, rank, size, store=store, timeout=timeout)
        _compare(contacts, rank)
        sockets = _connect(server, rank, contacts, peers=peers, timeout=timeout)
    pages = {
        other: Address.decode(contact.page)
        for other, contact in enumerate(contacts)
        if contact.page and contact.machine == own.machine and other != rank
    }
    return sockets, pages


def _compare(contacts: Sequence[_Contact], rank: int) -> None:
    own = contacts[rank].peers
    for other, contact in enumerate(contacts):
        if (rank in contact.peers) != (other in own):
            raise TransportError(
                f"the ranks do not run the same schedule: rank {rank} exchanges messages with "
                f"ranks {own}, rank {other} with ranks {contact.peers}"
            )


def _exchange(
    own: _Contact, rank: int, size: int, *, store: Store, timeout: float
) -> list[_Contact]:
    """Every rank's contact. A collective of the group would do it too, but nothing could end that:
    a rank that never calls it would hold up all."""
    store.set(f"contact/{rank}", pickle.dumps(own).hex())
    keys = [f"contact/{other}" for other in range(size)]
    deadline = time.monotonic() + timeout
    pause = 0.001
    while not store.check(keys):
        if time.monotonic() > deadline:
            missing = [str(r) for r, key in enumerate(keys) if not store.check([key])]
            raise TransportTimeout(
                f"rank {rank} waited {timeout:g} s for rank(s) {', '.join(missing)} to make a "
                "pipeline"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    contacts = [pickle.loads(bytes.fromhex(store.get(key).decode())) for key in keys]
    for other, contact in enumerate(contacts):
        if isinstance(contact, str):
            raise PeerFailed(f"rank {other} failed before it made its pipeline: {contact}")
    return contacts


def decline(group: dist.ProcessGroup | None, reason: str) -> None:
    """Take no part in the next ``connect_all`` of ``group``; the other ranks are told why."""
    store, _ = open_store(group)
    store.set(f"contact/{dist.get_rank(group)}", pickle.dumps(reason).hex())


def _connect(
    server: socket.socket,
    rank: int,
    contacts: list[_Contact],
    *,
    peers: Collection[int],
    timeout: float,
) -> dict[int, socket.socket]:
    deadline = time.monotonic() + timeout
    links: dict[int, socket.socket] = {}
    try:
        # Upwards first: whoever waits to be let in waits for a rank that has fewer to wait for.
        for peer in sorted(peer for peer in peers if peer > rank):
            links[peer] = _dial(rank, peer, contacts, deadline=deadline)
        while len(links) < len(peers):
            peer, sock = _admit(server, contacts[rank].key, deadline=deadline)
            links[peer] = sock
    except OSError as error:
        for sock in links.values():
            sock.close()
        missing = min(set(peers) - set(links))
        raise TransportError(
            f"rank {rank} could not connect to rank {missing} in {timeout:g} s: {error}; "
            "GLOO_SOCKET_IFNAME can name the network interface to use"
        ) from error
    for sock in links.values():
        _prepare(sock)
    return links


def _listen(address: str, *, backlog: int) -> socket.socket:
    if not address and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # switched off: the next line does without
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
    return socket.create_server((address, 0), backlog=backlog)


def _dial(rank: int, peer: int, contacts: list[_Contact], *, deadline: float) -> socket.socket:
    contact = contacts[peer]
    near = contact.machine == contacts[rank].machine
    addresses = [a for a in contact.addresses if near or not a.startswith(_LOOPBACKS)]
    problem = OSError("it has no address that could be reached from here")
    while (left := deadline - time.monotonic()) > 0:
        for address in addresses:
            try:
                sock = socket.create_connection((address, contact.port), min(left, _DIAL_SECONDS))
            except OSError as error:
                problem = error
                continue
            if _is_welcome(sock, contact.key + _RANK.pack(rank), left):
                return sock
            sock.close()
        time.sleep(_RETRY_SECONDS)
    raise problem


def _is_welcome(sock: socket.socket, hello: bytes, seconds: float) -> bool:
    """Whether the other end is the rank that is looked for. It may have to wait for others before
    it answers."""
    sock.settimeout(seconds)
    try:
        sock.sendall(hello)
        return sock.recv(1) == _WELCOME
    except OSError:
        return False


def _admit(server: socket.socket, key: bytes, *, deadline: float) -> tuple[int, socket.socket]:
    """The next rank that knows ``key``."""
    while True:
        server.settimeout(max(_RETRY_SECONDS, deadline - time.monotonic()))
        sock, _ = server.accept()
        sock.settimeout(_DIAL_SECONDS)
        try:
            hello = sock.recv(_KEY_BYTES + _RANK.size, socket.MSG_WAITALL)
            if hmac.compare_digest(hello[:_KEY_BYTES], key):
                sock.sendall(_WELCOME)
                return _RANK.unpack(hello[_KEY_BYTES:])[0], sock
        except (OSError, struct.error):
            pass  # a stranger
        sock.close()


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The end of a process is seen at once, that of a machine only by asking.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _named_addresses() -> list[str]:
    names = os.environ.get("GLOO_SOCKET_IFNAME", "")
    return [_interface_address(name) for name in names.split(",") if name]


def _interface_address(name: str) -> str:
    if name.startswith("lo"):
        return "127.0.0.1"
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except (ImportError, OSError) as error:
        raise TransportError(
            f"GLOO_SOCKET_IFNAME names {name}, which has no IPv4 address here ({error})"
        ) from error
    return socket.inet_ntoa(answer[20:24])


def _guessed_addresses() -> Iterator[str]:
    master = os.environ.get("MASTER_ADDR")
    if master:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((master, 1))  # sends nothing, but chooses an interface
            yield sock.getsockname()[0]
    with contextlib.suppress(OSError):
        for *_, address in socket.getaddrinfo(socket.gethostname(), None):
            yield str(address[0])
    yield "127.0.0.1"


def machine() -> str:
    """The same text in all processes of this host, and in no other host's."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname() + (boot.read_text("ascii") if boot.exists() else "")
