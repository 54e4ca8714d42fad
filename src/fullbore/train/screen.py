"""What the user sees while a run goes on, on stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fullbore.train.progress import Progress
from fullbore.train.settings import Settings

SECONDS_BETWEEN_LINES = 5.0


class Screen(Protocol):
    """Shows a run; a context manager around it."""

    def __enter__(self) -> Self:
        """Something is about to begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""

    def begin(self, progress: Progress) -> None:
        """All processes are there."""

    def show(self, progress: Progress) -> None:
        """A step is done."""

    def stopping(self) -> None:
        """The step under way is the last. Called from a signal handler."""

    def note(self, text: str) -> None:
        """Something else that the user may want to know."""


def make_screen(settings: Settings, *, quiet: bool) -> Screen:
    """A progress bar on a terminal, lines of text elsewhere; nothing where another process speaks
    for all."""
    console = Console(stderr=True, quiet=quiet, highlight=False)
    kind = BarScreen if console.is_terminal and not quiet else LineScreen
    return kind(settings.title, console)


class BarScreen:
    """A progress bar with the loss and the speed."""

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(f"starting {title}", total=None, figures="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, progress: Progress) -> None:
        """The bar has an end now."""
        self._bar.reset(
            self._task,
            description=self._title,
            total=progress.settings.steps,
            completed=progress.step,
            figures="",
        )

    def show(self, progress: Progress) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=progress.step, figures=figures(progress))

    def stopping(self) -> None:
        """Say so in the bar: the next refresh, in another thread, shows it."""
        self._bar.update(self._task, description="stopping after this step")

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._bar.console.print(text, markup=False, soft_wrap=True)


class LineScreen:
    """A line of text every few seconds, seldom in long runs."""

    def __init__(self, title: str, console: Console) -> None:
        self._title, self._console = title, console
        self._began = self._latest = time.monotonic()

    def __enter__(self) -> Self:
        self._print(f"starting {self._title}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def begin(self, progress: Progress) -> None:
        """The first step has its own line."""

    def show(self, progress: Progress) -> None:
        """A line for the first step, the last, and every few seconds in between."""
        now = time.monotonic()
        wait = max(SECONDS_BETWEEN_LINES, (now - self._began) / 20)
        if progress.steps_done == 1 or progress.outcome is not None or now - self._latest >= wait:
            self._latest = now
            self._print(f"step {progress.step}/{progress.settings.steps}  {figures(progress)}")

    def stopping(self) -> None:
        """The run's last lines will say it; a handler must not write."""

    def note(self, text: str) -> None:
        """A line."""
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def figures(progress: Progress) -> str:
    """Loss and speed."""
    return f"loss {progress.loss:.3f}  {progress.tokens_per_second:,.0f} tokens/s"
