"""A rank's process, as the controller talks to it: bytes in, bytes out, nothing raised."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fullbore.controller.host import Build, RankHost
from fullbore.controller.meeting import Appointment, Contact, Meeting
from fullbore.controller.outcome import pack_failure, pack_result
from fullbore.controller.packing import unpack
from fullbore.runtime.launch import tune_malloc


class Seat:
    """Answers the requests to one rank.

    Args:
        rank: of this process.
        paths: where the controller's program finds its modules.
        folder: the controller's working directory.
        threads: torch threads.
    """

    def __init__(self, rank: int, paths: Sequence[str], folder: str, threads: int) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        if os.path.isdir(folder):  # noqa: PTH112 - a plain string
            os.chdir(folder)
        self._rank, self._threads = rank, threads
        self._meeting: Meeting | None = None
        self._host: RankHost | None = None

    def answer(self, message: bytes) -> bytes:
        """What the request gives, or how it failed."""
        try:
            # A setting of this thread.
            torch.set_num_threads(self._threads)
            method, args = unpack(message)
            return pack_result(self._find(method)(*args))
        except BaseException as error:  # noqa: BLE001 - the controller raises it again
            return pack_failure(error)

    def _find(self, method: str) -> Any:
        own = {
            "listen": self._listen,
            "open_store": self._open_store,
            "build": self._build,
            "close": self._close,
        }
        return own[method] if method in own else getattr(self._host, method)

    def _listen(self) -> Contact:
        tune_malloc()
        self._meeting = Meeting(self._rank)
        return self._meeting.contact

    def _open_store(self, on_one_host: bool) -> tuple[str, int]:  # noqa: FBT001 - a request
        assert self._meeting is not None
        return self._meeting.open_store(on_one_host=on_one_host)

    def _build(self, build: Build, appointment: Appointment) -> None:
        assert self._meeting is not None
        transport = self._meeting.join(appointment)
        try:
            self._host = RankHost(transport, build)
        except BaseException as error:
            transport.abort(f"{type(error).__name__}: {error}")
            raise

    def _close(self) -> None:
        if self._host is not None:
            self._host.close()
        self._host = None
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.stdout.flush()
