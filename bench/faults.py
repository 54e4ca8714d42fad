"""Plays every fault that the tests try, and prints what each rank says, and when: docs/faults.md.

python -m bench.faults
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.common import provenance
from tests.runtime.faults import scenes
from tests.runtime.faults.harness import TIMEOUT, Act, Kind, Seen, Setting, play
from tests.runtime.faults.scenes import Fault, with_fault

import fullbore as fb

KINDS: tuple[Kind, ...] = ("shm", "p2p")
LONG = 30.0


def faults() -> Iterator[tuple[str, Act, Setting]]:
    """What is tried: a name, what the ranks do, and how they are brought together."""
    wrong = [
        ("an exception in a forward", Fault("raise", 1)),
        ("an exception in a backward", Fault("raise", 0, "B", 1)),
        ("an exception in the loss function", Fault("raise", 2, "loss", 2)),
        ("KeyboardInterrupt in a forward", Fault("interrupt", 1)),
        ("an output of the wrong shape", Fault("shape", 1)),
        ("SIGKILL in a forward", Fault("kill", 1)),
        ("SIGKILL in a backward", Fault("kill", 1, "B", 1)),
        ("SIGSTOP in a forward", Fault("stop", 1)),
        ("a forward that takes too long", Fault("sleep", 1)),
    ]
    for kind in KINDS:
        for name, fault in wrong:
            yield name, partial(with_fault, 3, fault), Setting(kind, 3)
        yield from disagreements(kind)
        yield (
            "SIGKILL of rank 3 beside a rank that computes for 4 s",
            partial(scenes.busy_neighbours, 4),
            Setting(kind, 4, timeout=LONG),
        )
    yield (
        "SIGKILL of a rank in one of two pipelines",
        partial(scenes.one_of_two_worlds, 3),
        Setting("p2p", 4, groups=((0, 1), (2, 3))),
    )
    yield (
        "SIGKILL of the store's host beside a rank that computes for 8 s",
        partial(scenes.busy_beside_host, 4),
        Setting("p2p", 4, hosted=True, timeout=LONG),
    )


def disagreements(kind: Kind) -> Iterator[tuple[str, Act, Setting]]:
    """Ranks that do not do the same."""
    usual, fewer = (fb.build("1f1b", num_ranks=2, num_microbatches=m) for m in (4, 2))
    gpipe = fb.build("gpipe", num_ranks=2, num_microbatches=4)
    two, three = Setting(kind, 2), Setting(kind, 3)
    other = scenes.other_schedule
    yield "2 microbatches instead of 4", partial(other, (usual, fewer), 1), two
    yield "gpipe instead of 1f1b", partial(other, (usual, gpipe), 1), two
    yield "eval instead of step", partial(scenes.evaluate_alone, 2, 0), two
    yield "step under no_grad", partial(scenes.without_gradients, 3, "no_grad", 1), three
    yield "a step is skipped", partial(scenes.skip_a_step, 3, 1), three
    yield "no pipeline is made", partial(scenes.no_pipeline, 3, 1), three


def row(name: str, setting: Setting, seen: list[Seen]) -> str:
    """A line of the table."""
    said = "<br>".join(f"{rank}: {says(one)}" for rank, one in enumerate(seen))
    slowest = max(one.seconds for one in seen)
    return f"| {name} | {setting.transport} | {slowest:.2f} | {said} |"


def says(one: Seen) -> str:
    """What a rank says."""
    if one.texts is None:
        return "-"
    text = one.text or "nothing: its calls are fine"
    return text.replace("|", "\\|").replace("\n", " ").rstrip()


def main() -> None:
    """Print the table."""
    print("\n".join(f"* {line}" for line in provenance()))
    print(f"* messages may take {TIMEOUT:g} s, or {LONG:g} s where a rank computes for long\n")
    print("| fault | transport | s until the last rank raised | each rank's error |")
    print("|---|---|---|---|")
    for name, act, setting in faults():
        print(row(name, setting, play(act, setting)), flush=True)


if __name__ == "__main__":
    main()
