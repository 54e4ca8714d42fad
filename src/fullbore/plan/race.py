"""All placements together, level by level, as long as there is time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.plan.candidate import Candidate
from fullbore.plan.placed import Placed

# Seconds an action, on a slow machine: by so much earlier the search ends, to judge what it found.
_JUDGING = 1.2e-5


class _Late(Exception):
    """The deadline has passed."""


class Race:
    """The placements of a plan, of which the promising ones get most time.

    Args:
        deadline: seconds after which to stop; None: never.
        on_progress: told how far it is, and the best so far, if any.

    Attributes:
        placed: the searches, one a placement.
        left_out: the placements that cannot be, and why.
    """

    def __init__(
        self, deadline: float | None, on_progress: Callable[[float, Candidate | None], None]
    ) -> None:
        self._begun = monotonic()
        self._deadline = deadline
        self._on_progress = on_progress
        self.placed: list[Placed] = []
        self.left_out: list[str] = []
        self._finished = 0

    def add(self, placement: Placement, num_microbatches: int, *, seed: int, **task: Any) -> None:
        """Also try a placement."""
        try:
            self.placed.append(Placed(placement, num_microbatches, seed=seed, **task))
        except ParameterError as error:
            per_rank = placement.num_stages // placement.num_ranks
            self.left_out.append(f"{placement.shape}, {per_rank} a rank: {error}")

    @property
    def candidates(self) -> list[Candidate]:
        """What was found, the best first."""
        found = [candidate for placed in self.placed for candidate in placed.candidates]
        return sorted(found, key=lambda candidate: candidate.length)

    def figures(self) -> dict[str, Any]:
        """How it went, as fields of ``Plan``."""
        return {
            "candidates": tuple(self.candidates),
            "bound": min(placed.bound for placed in self.placed),
            "effort": self._finished,
            "evaluations": sum(placed.annealer.evaluations for placed in self.placed),
            "seconds": monotonic() - self._begun,
            "left_out": tuple(self.left_out),
        }

    def run(self, effort: int) -> str | None:
        """All levels; why it stopped before that.

        Raises:
            ParameterError: there is no placement, or nothing was found.
        """
        if not self.placed:
            raise ParameterError("plan: no placement can be: " + "; ".join(self.left_out))
        stopped = None
        with _without_collector():
            try:
                self._search(effort)
            except _Late:
                stopped = "deadline"
            except KeyboardInterrupt:
                stopped = "interrupt"
            self._settle(stopped)
        if not self.candidates:
            raise ParameterError(
                f"plan: found no schedule that fits the memory, {self.placed[0].memory:g}. Allow "
                "more memory, more stages a rank or more effort"
            )
        return stopped

    def _search(self, effort: int) -> None:
        for number, placed in enumerate(self.placed, 1):
            placed.begin()
            self._tell(number / len(self.placed) / 2**effort)
        for level in range(1, effort + 1):
            chosen = self._promising(level)
            for number, placed in enumerate(chosen):
                for part in placed.level(level):
                    done = (number + part) / len(chosen)
                    self._tell((1 + done) * 2.0 ** (level - 1 - effort))
                if placed.quick or placed.has_messages:
                    placed.settle()
            self._finished = level

    def _promising(self, level: int) -> list[Placed]:
        """What may become the best, and of that half as many at each level."""
        best = min(placed.length for placed in self.placed)
        left = [placed for placed in self.placed if not placed.done and placed.bound < best]
        left.sort(key=lambda placed: placed.length)
        return left[: max(1, len(self.placed) >> (level - 1))]

    def _settle(self, stopped: str | None) -> None:
        """Judge what is not yet, the most promising first; the rest only while there is time."""
        left = sorted(self.placed, key=lambda placed: placed.length)
        for placed in left:
            if placed is left[0] or not self.candidates or not (stopped or self._is_late(0)):
                placed.settle()
        for placed in left:
            while not (stopped or self._is_late(placed.actions)) and placed.judge_family():
                pass

    def _is_late(self, actions: int) -> bool:
        """Whether there is no time left to judge so many actions."""
        end = self._deadline
        return end is not None and monotonic() - self._begun > end - actions * _JUDGING

    def _tell(self, part: float) -> None:
        self._on_progress(part, next(iter(self.candidates), None))
        if self._is_late(max(placed.actions for placed in self.placed)):
            raise _Late


@contextmanager
def _without_collector() -> Iterator[None]:
    """Large schedules are millions of objects in no cycles: looking for some takes half the time of
    simulating them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
