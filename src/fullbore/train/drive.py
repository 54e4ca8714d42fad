"""Starts the processes of a run, or joins those that torchrun started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

import torch

from fullbore.errors import ParameterError
from fullbore.runtime import LocalTransport
from fullbore.runtime.launch import launch
from fullbore.train.checkpoint import Checkpoint, check_writable
from fullbore.train.data import load_text
from fullbore.train.director import Director
from fullbore.train.lifeline import lifeline
from fullbore.train.link import DirectLink, Switchboard
from fullbore.train.measured import make_folder
from fullbore.train.membership import Membership
from fullbore.train.messages import Outcome
from fullbore.train.model import split_layers
from fullbore.train.planner import check_steps
from fullbore.train.progress import Progress
from fullbore.train.rank import train_child, train_ranks
from fullbore.train.screen import Screen
from fullbore.train.settings import Settings


def run(
    settings: Settings,
    checkpoint: Checkpoint | None,
    screen: Screen,
    *,
    membership: Membership | None = None,
) -> tuple[Outcome, Progress | None]:
    """Train: as one of torchrun's processes, in new ones, in this one alone, or from it as the
    controller of all ranks.

    Args:
        settings: of the run. The transport ``local`` plays all ranks in this process.
        checkpoint: what to go on from, if anything.
        screen: shows the run; it is entered here.
        membership: of this process among those that torchrun started, if it did.

    Returns:
        How the run ended and, where this process speaks for all, what has come of it.

    Raises:
        ParameterError: the settings make no sense, or a file cannot be read or written.
        ExecutionError: a rank failed.
    """
    _check(settings, checkpoint, membership)
    director = None
    if membership is None or membership.rank == 0:
        director = _direct(settings, checkpoint, screen)
    # torchrun's processes can only end together, between two steps. Elsewhere a step under way is
    # worth the wait where its result is saved.
    deferred = membership is not None or settings.save is not None
    try:
        with (
            screen,
            _signals(director, once=membership is None) if deferred else nullcontext(),
            lifeline() if membership is not None else nullcontext(),
        ):
            outcome = _train(settings, director, membership)
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    if director is None:
        return outcome, None
    director.progress.outcome = outcome
    return outcome, director.progress


def _check(
    settings: Settings, checkpoint: Checkpoint | None, membership: Membership | None
) -> None:
    split_layers(settings.recipe.size, settings.schedule.num_stages, settings.split)
    if checkpoint is not None and checkpoint.step >= settings.steps:
        raise ParameterError(
            f"--steps is {settings.steps}, and the checkpoint has {checkpoint.step} behind it; "
            "give the step at which the resumed run ends"
        )
    if settings.planning is not None:
        check_steps(settings, settings.planning, 0 if checkpoint is None else checkpoint.step)
    if settings.controller is not None and membership is not None:
        raise ParameterError(
            "--controller: torchrun has started several processes, and the controller is one; "
            "start it without torchrun"
        )
    if settings.device == "cpu":
        return
    if not torch.cuda.is_available():
        raise ParameterError("--device cuda: there is no GPU that this torch can use")
    if membership is None and settings.controller is None and settings.transport != "local":
        raise ParameterError(
            "--device cuda: each rank needs a GPU of its own, and a process that torchrun starts: "
            f"torchrun --nproc-per-node {settings.schedule.num_ranks} --no-python fullbore train "
            "...; or play all ranks in one process with --transport local"
        )


def _direct(settings: Settings, checkpoint: Checkpoint | None, screen: Screen) -> Director:
    """Get ready what one process does for all: the text, the checkpoints, the screen."""
    if settings.save is not None:
        check_writable(settings.save)
    if settings.profile is not None:
        make_folder(settings.profile)
    text = load_text(settings.text, sequence_length=settings.recipe.size.sequence_length)
    if text.skipped:
        screen.note(f"{text.skipped} files cannot be read or hold no text; they are left out")
    return Director(settings, text, checkpoint, screen)


def _train(settings: Settings, director: Director | None, membership: Membership | None) -> Outcome:
    if membership is not None:
        from fullbore.train.group import train_member

        return train_member(settings, director, membership)
    assert director is not None
    if settings.controller is not None:
        from fullbore.train.controlled import train_controlled

        return train_controlled(settings, DirectLink(director.answer))
    return (_train_here if settings.transport == "local" else _train_children)(settings, director)


def _train_here(settings: Settings, director: Director) -> Outcome:
    """Play all ranks in this process."""
    torch.set_num_threads(settings.threads)
    ranks = range(settings.schedule.num_ranks)
    return train_ranks(LocalTransport(), ranks, settings, DirectLink(director.answer))


def _train_children(settings: Settings, director: Director) -> Outcome:
    """Start a process for each rank. None is left, however this ends."""
    assert settings.transport != "local"
    switchboard = Switchboard(director.answer, settings.schedule.num_ranks)
    try:
        outcomes: list[Outcome] = launch(
            train_child,
            settings.schedule.num_ranks,
            transport=settings.transport,
            args=(settings, switchboard.replies),
            threads=settings.threads,
            on_report=switchboard.receive,
        )
    finally:
        switchboard.close()
    return outcomes[0]


@contextmanager
def _signals(director: Director | None, *, once: bool) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the run after the step under way.

    With ``once``, one that comes before there is anything to save ends the run at once, and so does
    the second. torchrun sends each again to processes that the terminal had sent it already.
    """
    outcomes = {signal.SIGINT: Outcome.INTERRUPTED, signal.SIGTERM: Outcome.TERMINATED}

    def handle(signum: int, frame: FrameType | None) -> None:
        if once:
            restore()
        if once and director is not None and not director.progress.steps_done:
            signal.raise_signal(signum)
        elif director is not None:
            director.stop(outcomes[signal.Signals(signum)])

    def restore() -> None:
        for signum, handler in before.items():
            signal.signal(signum, handler)

    before = {signum: signal.signal(signum, handle) for signum in outcomes}
    try:
        yield
    finally:
        restore()
