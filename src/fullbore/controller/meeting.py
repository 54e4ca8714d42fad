"""How the processes of ranks that nobody started together find each other."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from fullbore.controller.processes import Identity
from fullbore.errors import ParameterError, TransportError
from fullbore.runtime import P2PTransport, SharedMemoryTransport, Transport
from fullbore.runtime.transport.p2p_rendezvous import machine

TransportName = Literal["auto", "shm", "p2p"]

_KEY_BYTES = 16
_RANK = struct.Struct("<I")
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Contact:
    """Where a rank's process is.

    Attributes:
        machine: tells hosts apart.
        identity: which of that host's processes it is.
        name: of the socket at which it waits for ranks of its host; empty where it cannot.
        key: what they must know.
    """

    machine: str
    identity: Identity
    name: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Appointment:
    """How all ranks meet.

    Attributes:
        contacts: by rank.
        store: host and port of the process group's store; None: all meet at their sockets.
        timeout: seconds that a message may take.
        device: where the stages are, if it is said.
    """

    contacts: tuple[Contact, ...]
    store: tuple[str, int] | None
    timeout: float
    device: str | None = None


def uses_memory(contacts: Sequence[Contact], transport: TransportName, device: str | None) -> bool:
    """Whether the ranks exchange messages through shared memory.

    Raises:
        ParameterError: they are to and cannot.
    """
    on_one_host = len({contact.machine for contact in contacts}) == 1
    can = on_one_host and all(contact.name for contact in contacts) and _on_cpu(device)
    if transport == "shm" and not can:
        raise ParameterError(
            'transport="shm" needs all ranks on one Linux host, with stages on the CPU; use "p2p"'
        )
    return can and transport != "p2p"


class Meeting:
    """One rank's part in it.

    Args:
        rank: of this process.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._server: socket.socket | None = None
        self._store: object = None
        name = b""
        if sys.platform.startswith("linux"):
            # An abstract name: no file is made, and it goes with the process.
            name = b"\0fullbore-" + secrets.token_hex(16).encode()
            self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._server.bind(name)
            self._server.listen(128)
        self.contact = Contact(machine(), Identity.own(), name, secrets.token_bytes(_KEY_BYTES))

    def open_store(self, *, on_one_host: bool) -> tuple[str, int]:
        """Rank 0 hosts the process group's store; gives where."""
        host = "127.0.0.1" if on_one_host else socket.gethostname()
        store = dist.TCPStore(host, 0, None, True, wait_for_workers=False)  # type: ignore[attr-defined] # torch does not declare it as exported
        self._store = store
        return host, store.port

    def join(self, appointment: Appointment) -> Transport:
        """Meet the other ranks, who do the same.

        Raises:
            TransportError: one of them did not come.
        """
        if appointment.store is None:
            return self._join_memory(appointment)
        return self._join_group(appointment, *appointment.store)

    def _join_memory(self, appointment: Appointment) -> Transport:
        deadline, ends = time.monotonic() + _SECONDS, {}
        assert self._server is not None
        with self._server as server:
            for peer, contact in enumerate(appointment.contacts[: self._rank]):
                ends[peer] = _dial(contact, self._rank)
            while len(ends) < len(appointment.contacts) - 1:
                server.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    end, _ = server.accept()
                    end.settimeout(max(0.001, deadline - time.monotonic()))
                    hello = end.recv(_RANK.size + _KEY_BYTES)
                except TimeoutError:
                    late = sorted({*range(len(appointment.contacts))} - {*ends, self._rank})
                    raise TransportError(
                        f"rank {self._rank} waited {_SECONDS:g} s for ranks {late} to connect"
                    ) from None
                if not hmac.compare_digest(hello[_RANK.size :], self.contact.key):
                    end.close()
                    continue
                end.settimeout(None)
                ends[_RANK.unpack_from(hello)[0]] = end
        return SharedMemoryTransport(self._rank, ends, timeout=appointment.timeout)

    def _join_group(self, appointment: Appointment, host: str, port: int) -> Transport:
        if self._server is not None:
            self._server.close()
        contacts, limit = appointment.contacts, timedelta(seconds=appointment.timeout)
        neighbours = [r for r, c in enumerate(contacts) if c.machine == self.contact.machine]
        if len(neighbours) == len(contacts):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "gloo"
        if not _on_cpu(appointment.device):
            torch.cuda.set_device(neighbours.index(self._rank) % torch.cuda.device_count())
            backend = "cpu:gloo,cuda:nccl"
        store = dist.TCPStore(host, port, None, False, timeout=limit)  # type: ignore[attr-defined] # torch does not declare it as exported
        dist.init_process_group(
            backend, store=store, rank=self._rank, world_size=len(contacts), timeout=limit
        )
        return P2PTransport(timeout=appointment.timeout)


def _on_cpu(device: str | None) -> bool:
    return device is None or torch.device(device).type == "cpu"


def _dial(contact: Contact, rank: int) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.connect(contact.name)
    end.sendall(_RANK.pack(rank) + contact.key)
    return end
