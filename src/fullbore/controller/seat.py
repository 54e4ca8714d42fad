"""A rank's process, as the controller talks to it: bytes in, bytes out, nothing raised."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fullbore.controller.host import RankHost
from fullbore.controller.meeting import Appointment, Contact, Meeting
from fullbore.controller.outcome import pack_failure, pack_result
from fullbore.controller.packing import Packed, unpack
from fullbore.runtime import Transport
from fullbore.runtime.failure import describe
from fullbore.runtime.launch import tune_malloc


class Seat:
    """Answers the requests to one rank.

    Args:
        rank: of this process.
        paths: where the controller's program finds its modules.
        threads: torch threads.
        seed: that torch's and Python's random numbers begin with; torch's own would be another one
            in each process, and each time.
    """

    def __init__(self, rank: int, paths: Sequence[str], threads: int, seed: int) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        random.seed(seed)
        torch.manual_seed(seed)
        self._rank, self._threads = rank, threads
        self._meeting: Meeting | None = None
        self._transport: Transport | None = None
        self._host: RankHost | None = None

    def answer(self, message: bytes) -> bytes:
        """What the request gives, or how it failed."""
        try:
            # A setting of this thread.
            torch.set_num_threads(self._threads)
            method, args = self._unpack(message)
            return pack_result(self._find(method)(*args))
        except BaseException as error:  # noqa: BLE001 - the controller raises it again
            return pack_failure(error)

    def _unpack(self, message: bytes) -> Any:
        try:
            return unpack(message)
        except BaseException as error:
            if self._host is not None:
                self._host.refuse(error)
            raise

    def _find(self, method: str) -> Any:
        own = {
            "listen": self._listen,
            "open_store": self._open_store,
            "join": self._join,
            "build": self._build,
            "close": self._close,
        }
        return own[method] if method in own else getattr(self._host, method)

    def _listen(self, is_ours: bool) -> Contact:  # noqa: FBT001 - a request
        if is_ours:
            tune_malloc()
        self._meeting = Meeting(self._rank)
        return self._meeting.contact

    def _open_store(self, on_one_host: bool) -> tuple[str, int]:  # noqa: FBT001 - a request
        assert self._meeting is not None
        return self._meeting.open_store(on_one_host=on_one_host)

    def _join(self, appointment: Appointment) -> None:
        assert self._meeting is not None
        self._transport = self._meeting.join(appointment)

    def _build(self, build: Packed) -> None:
        assert self._transport is not None
        try:
            self._host = RankHost(self._transport, build.unpacked())
        except BaseException as error:
            # The others wait for this rank.
            self._transport.abort(describe(error))
            raise

    def _close(self) -> None:
        if self._host is not None:
            self._host.close()
        self._host = self._transport = self._meeting = None
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.stdout.flush()
