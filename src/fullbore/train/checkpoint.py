"""Checkpoints: one file that holds the whole model, however it was split when it was written."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullbore.errors import ExecutionError, ParameterError
from fullbore.train.model import GPT
from fullbore.train.optimizer import State
from fullbore.train.settings import ModelSize, Recipe

FORMAT, VERSION = "fullbore.train", 1
OPTIMIZER_STATE = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run stands.

    Attributes:
        recipe: what is trained, and how.
        step: how many steps are done; data and learning rate follow from it.
        text: the digest of the text.
        model: the weights, under the unsplit model's names.
        optimizer: AdamW's state, by the same names.
    """

    recipe: Recipe
    step: int
    text: str
    model: dict[str, Tensor]
    optimizer: State


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file at once or not at all.

    Raises:
        ExecutionError: it cannot be written.
    """
    content = {"format": FORMAT, "version": VERSION, **_plain(checkpoint)}
    try:
        _replace(path, content)
    except (OSError, RuntimeError) as error:
        # torch reports a full disk as a RuntimeError.
        raise ExecutionError(f"--save {path}: cannot be written: {error}") from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; tensors are read from the file when they are used.

    Raises:
        ParameterError: there is no such file, it is no checkpoint, or it is not complete.
    """
    try:
        damaged = _damaged_member(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, ValueError) as error:
        raise ParameterError(f"--resume {path}: not a checkpoint, or a damaged one") from error
    except OSError as error:
        raise ParameterError(f"--resume {path}: cannot be read: {error.strerror}") from error
    if damaged is not None:
        raise ParameterError(f"--resume {path}: the file is damaged, in {damaged}")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ParameterError(f"--resume {path}: not a checkpoint of `fullbore train`")
    if content.get("version") != VERSION:
        raise ParameterError(
            f"--resume {path}: written in version {content.get('version')} of the format; this "
            f"fullbore reads version {VERSION}"
        )
    try:
        return _restore(content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ParameterError(f"--resume {path}: not complete: {error}") from error


def check_writable(path: Path) -> None:
    """Find out before the first step whether checkpoints can be written to ``path``.

    Raises:
        ParameterError: they cannot.
    """
    if path.is_dir():
        raise ParameterError(f"--save {path}: is a folder; give the name of a file")
    if path.exists() and not zipfile.is_zipfile(path):
        raise ParameterError(f"--save {path}: there is such a file, and it is no checkpoint")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ParameterError(f"--save {path}: cannot be written: {error.strerror}") from error


def pack(value: Mapping[str, Any]) -> bytes:
    """Tensors by name, as bytes that can be sent to another process."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, Any]:
    """What ``pack`` was given."""
    value: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return value


def _damaged_member(path: Path) -> str | None:
    """The first part of the file whose checksum is wrong; torch does not look."""
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def _plain(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "recipe": asdict(checkpoint.recipe),
        "step": checkpoint.step,
        "text": checkpoint.text,
        "model": checkpoint.model,
        "optimizer": checkpoint.optimizer,
    }


def _restore(content: Mapping[str, Any]) -> Checkpoint:
    """Put a checkpoint together again; anything missing or of another shape is an error."""
    plain = content["recipe"]
    recipe = Recipe(**{**plain, "size": ModelSize(**plain["size"])})
    model, optimizer = content["model"], content["optimizer"]
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in GPT(recipe.size).named_parameters()}
    if set(model) != set(shapes) or set(optimizer) != set(shapes):
        raise ValueError("the parameters are not those of a model of this size")
    for name, shape in shapes.items():
        state = optimizer[name]
        if set(state) != set(OPTIMIZER_STATE) or any(
            tensor.shape != shape for tensor in (model[name], state["exp_avg"], state["exp_avg_sq"])
        ):
            raise ValueError(f"{name} does not have the shape {tuple(shape)}")
    return Checkpoint(recipe, int(content["step"]), str(content["text"]), model, optimizer)


def _replace(path: Path, content: object) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
