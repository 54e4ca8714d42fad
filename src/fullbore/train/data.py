"""The text that is trained on, and which bytes of it each step sees."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fullbore.errors import ParameterError
from fullbore.train.settings import Recipe

HELD_OUT_LIMIT = 1 << 20
EVAL_BATCHES = 4

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, both ``(rows, sequence_length)`` integers; a target is the next byte."""


class Text:
    """Bytes to train on and, behind them, bytes held out for evaluation.

    Args:
        data: all bytes; they are not copied.
        num_train: how many of them, from the beginning, are trained on.
        skipped: how many files of the folder could not be read, or hold no text.
    """

    def __init__(self, data: bytearray, num_train: int, *, skipped: int = 0) -> None:
        self.data, self.num_train, self.skipped = data, num_train, skipped
        self._tokens = torch.frombuffer(data, dtype=torch.uint8)

    def digest(self) -> str:
        """Names the content."""
        return hashlib.blake2b(self.data, digest_size=16).hexdigest()

    def batch(self, recipe: Recipe, step: int) -> Batch:
        """What ``step`` trains on: rows from random places, the same for the same seed and step."""
        name = f"{recipe.seed} step {step}".encode()
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=7).digest())
        last = self.num_train - recipe.size.sequence_length
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(last, (recipe.batch_size,), generator=generator)
        return self._rows(starts, recipe.size.sequence_length)

    def held_out(self, recipe: Recipe) -> Iterator[Batch]:
        """The batches that every evaluation uses: rows spread evenly over the held-out text."""
        last = len(self.data) - recipe.size.sequence_length - 1
        rows = EVAL_BATCHES * recipe.batch_size
        starts = torch.linspace(self.num_train, last, rows, dtype=torch.float64).long()
        for chunk in starts.chunk(EVAL_BATCHES):
            yield self._rows(chunk, recipe.size.sequence_length)

    def _rows(self, starts: Tensor, length: int) -> Batch:
        rows = self._tokens[starts[:, None] + torch.arange(length + 1)].long()
        return rows[:, :-1], rows[:, 1:]


def load_text(path: Path | None, *, sequence_length: int) -> Text:
    """Read a file, or the files of a folder, or (without a path) the standard library's source.

    In a folder, files are read in the order of their paths; hidden and binary ones are left out.
    The last twentieth, 1 MiB at most, is held out.

    Raises:
        ParameterError: there is nothing to read, or too little.
    """
    if path is None:
        root = Path(sysconfig.get_path("stdlib"))
        data, skipped = _read_files(_library_files(root))
    elif path.is_dir():
        data, skipped = _read_files(_visible_files(path))
    else:
        data, skipped = _read_file(path), 0
    if not data:
        raise ParameterError(_nothing_in(path))
    window = sequence_length + 1
    held_out = max(window, min(len(data) // 20, HELD_OUT_LIMIT))
    if len(data) - held_out < window:
        raise ParameterError(
            f"--text {path or ''}: {len(data)} bytes are too few for sequences of "
            f"{sequence_length}; at least {2 * window} are needed. Give more text, or a smaller "
            "--sequence-length"
        )
    return Text(data, len(data) - held_out, skipped=skipped)


def _nothing_in(path: Path | None) -> str:
    if path is None:
        return "this Python's standard library has no source files; give --text"
    return f"--text {path}: there is no text in it"


def _read_file(path: Path) -> bytearray:
    try:
        return bytearray(path.read_bytes())
    except OSError as error:
        raise ParameterError(f"--text {path}: cannot be read: {error.strerror}") from error


def _read_files(paths: list[Path]) -> tuple[bytearray, int]:
    """The files' contents, each followed by a newline, and how many were left out."""
    data, skipped = bytearray(), 0
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError:
            skipped += 1
            continue
        if b"\0" in content[:8192]:
            skipped += 1
            continue
        data += content
        data += b"\n" if content else b""
    return data, skipped


def _library_files(root: Path) -> list[Path]:
    """Python files, without those of installed packages."""
    return sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)


def _visible_files(root: Path) -> list[Path]:
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(root).parts)
    )
