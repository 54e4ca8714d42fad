"""Plays faults under the controller, and prints what the script sees, and when: docs/faults.md.

python -m bench.controller_faults
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from bench.common import provenance
from tests.controller.cases import data, make, sgd
from tests.controller.dying import Dying, is_alive, pid
from tests.reference import WIDTH
from torch import nn

from fullbore.controller import PipelineParallelism

MID_STEP = 6
"""The call of the stage that fails: the second microbatch of the second step."""

NAMES = {
    "raise": "an exception in a forward",
    "raise in backward": "an exception in a backward",
    "shape": "a wrong shape",
    "exit": "`os._exit(3)` in a forward",
    "SIGKILL": "SIGKILL in a forward",
    "SIGSTOP": "SIGSTOP in a forward",
}

Seen = tuple[float, str, int]
"""Seconds until the script saw something, what, and how many processes were left in the end."""


def play(engine: str, stage: nn.Module, before: Callable[[Any], object] | None = None) -> Seen:
    """The second step of a pipeline whose second stage fails."""
    numbers: list[int] = []
    pp = make(2, [nn.Linear(WIDTH, WIDTH), stage], engine=engine)
    try:
        pp.run(*data())
        numbers = [number for number in pp.each_stage(pid) if number != os.getpid()]
        if before is not None:
            before(numbers)
        start = time.perf_counter()
        pp.run(*data())
    except Exception as error:  # noqa: BLE001 - it is shown
        seconds = time.perf_counter() - start if numbers or engine == "local" else 0.0
        seen = describe(error)
    finally:
        pp.close()
    return seconds, seen, sum(map(is_alive, numbers))


def describe(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".replace("\n", " ").replace("|", "\\|")
    notes = getattr(error, "__notes__", ())
    return f"{text} ({'; '.join(notes)})" if notes else text


def faults(folder: Path) -> Iterator[tuple[str, str, Seen]]:
    """What was tried, on which engine, and what came of it."""
    for engine in ("local", "monarch"):
        for how, name in NAMES.items():
            if engine == "local" and how in ("exit", "SIGKILL", "SIGSTOP"):
                continue  # it is the script's own process
            (flag := folder / "flag").touch()
            yield name, engine, play(engine, Dying(how, MID_STEP, flag))
    whole = nn.Linear(WIDTH, WIDTH)
    yield (
        "SIGKILL between two steps",
        "monarch",
        play("monarch", whole, lambda numbers: os.kill(numbers[1], signal.SIGKILL)),
    )
    whole.lock = threading.Lock()  # type: ignore[assignment]
    yield "a stage that cannot be sent", "monarch", unsendable(whole)


def unsendable(stage: nn.Module) -> Seen:
    start = time.perf_counter()
    pp = make(2, [nn.Linear(WIDTH, WIDTH), stage], engine="monarch")
    try:
        pp.initialize()
    except Exception as error:  # noqa: BLE001 - it is shown
        return time.perf_counter() - start, describe(error), 0
    raise AssertionError("it was sent")


def train(pp: PipelineParallelism) -> tuple[torch.Tensor, float]:
    """The loss of the last of four steps, and how long the longest took."""
    longest = 0.0
    for step in range(4):
        start = time.perf_counter()
        pp.zero_grad()
        loss = pp.run(*data(step))
        pp.step()
        longest = max(longest, time.perf_counter() - start)
    return loss, longest


def recoveries(folder: Path) -> Iterator[str]:
    """Rows: a fault, seconds of the step that went through it, and whether the loss is the same."""
    flag = folder / "flag"
    for how in ("SIGKILL", "exit", "SIGSTOP"):
        stage = Dying(how, MID_STEP, flag)
        with make(2, [nn.Linear(WIDTH, WIDTH), stage], engine="monarch", recover=True) as pp:
            pp.set_optimizers(sgd)
            flag.touch()
            loss, seconds = train(pp)
        with make(2, pp.stages, optimizers=sgd) as twin:
            wanted, _ = train(twin)
        same = "the same" if torch.equal(loss, wanted) else "another"
        yield f"| {NAMES[how]} | {seconds:.1f} | {same} |"


def main() -> None:
    """Print the tables."""
    print("\n".join(f"* {line}" for line in provenance()))
    print("\n| fault | engine | s until the script sees it | what it sees | processes left |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, engine, (seconds, seen, left) in faults(Path(folder)):
            print(f"| {name} | {engine} | {seconds:.2f} | {seen} | {left} |", flush=True)
        print("\n| fault, with `recover=True` | s of that step | final loss |")
        print("|---|---|---|")
        for row in recoveries(Path(folder)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
