"""Checkpoints of the unsplit model, however it is split when they are written or read.

The format is that of torch.distributed.checkpoint, whose planner, writer and reader do the work: a
folder with one file for every rank. Its own functions would need a process group, and would wait
without end for a rank that failed; here the ranks speak over the pipeline's links.
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.optim import Optimizer

from fullbore.errors import ExecutionError, ParameterError
from fullbore.runtime.checkpoint_state import (
    Rename,
    State,
    check_complete,
    check_names,
    empty_optimizer_state,
    fingerprints,
    load_model,
    load_optimizers,
    model_state,
    optimizer_state,
)
from fullbore.runtime.pipeline import Pipeline

_Result = TypeVar("_Result")
_DAMAGE = (
    *(OSError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(EOFError, ImportError, pickle.UnpicklingError),
)
"""What unpickling raises where a file is not what it should be."""


def save_checkpoint(
    pipeline: Pipeline,
    path: str | os.PathLike[str],
    *,
    optimizers: Optimizer | Iterable[Optimizer] = (),
    extra: Any = None,
    rename: Rename | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Write a checkpoint, which can be loaded with another schedule on another number of ranks.

    Every rank calls it. The folder appears when it is complete, or not at all. Plain
    ``torch.distributed.checkpoint`` reads the unsplit model's ``state_dict()`` from it under the
    key ``"model"``.

    Args:
        pipeline: whose stages are saved.
        path: a folder that does not exist yet, which all ranks can reach.
        optimizers: of this rank's parameters.
        extra: whatever else is to be kept, the same on all ranks: tensors and plain values, such as
            the number of the step and ``scaler.state_dict()``.
        rename: gives the unsplit model's name for a stage's index and a name in its module; None
            if the modules have the names already.
        group: all processes that have a part of the model, where that is more than one pipeline:
            its replicas, or the ranks of FSDP2. The default group if that is larger than the
            pipeline.

    Raises:
        ParameterError: ``path`` exists; two stages give different tensors the same name.
        ExecutionError: a file cannot be written, or another rank failed; on every rank.
    """
    target, rename = Path(path), rename or _as_it_is
    part = target.with_name(f".{target.name}.part")
    ranks, own = _Ranks(pipeline, target, group), _listed(optimizers)
    content: State = {}

    def collect() -> None:
        if ranks.is_first:
            _make_room(target, part)
        model = model_state(pipeline.stages, rename, compares=True)
        state, options = optimizer_state(pipeline.stages, own, rename)
        content.update(_sections(model, state, options, extra=_packed(extra)))

    try:
        ranks.do(collect)
        ranks.do(lambda: check_names(pipeline.all_gather(fingerprints(content.get("model", {})))))
        _write(content, part, target, ranks=ranks)
    finally:
        if ranks.is_first:
            shutil.rmtree(part, ignore_errors=True)


def load_checkpoint(
    pipeline: Pipeline,
    path: str | os.PathLike[str],
    *,
    optimizers: Optimizer | Iterable[Optimizer] = (),
    rename: Rename | None = None,
) -> Any:
    """Read a checkpoint into the stages of this process, and into its optimizers.

    Every rank calls it; each reads what it needs. After an error, what a stage or an optimizer
    holds may be partly the old and partly the new.

    Args:
        pipeline: whose stages are loaded.
        path: what ``save_checkpoint`` was given.
        optimizers: as for ``save_checkpoint``; of the same classes as those that were saved.
        rename: as for ``save_checkpoint``, for the stages of this pipeline.

    Returns:
        What ``save_checkpoint`` was given as ``extra``.

    Raises:
        ParameterError: it is not a checkpoint of this model.
        ExecutionError: it cannot be read or is damaged, which names the file, or another rank
            failed; on every rank.
    """
    source, rename = Path(path), rename or _as_it_is
    ranks, own = _Ranks(pipeline, source, None, alone=True), _listed(optimizers)
    extra: list[bytes] = []

    def read() -> tuple[set[str], set[str]]:
        reader = FileSystemReader(source)
        metadata = _metadata(reader, source)
        model = model_state(pipeline.stages, rename, compares=False)
        check_complete(model, metadata)
        state, options = empty_optimizer_state(pipeline.stages, own, rename, metadata)
        content = _sections(model, state, options, extra=b"")
        _read(content, reader, metadata, source=source)
        load_model(pipeline.stages, model, rename)
        load_optimizers(pipeline.stages, own, rename, state=state, options=options)
        extra.append(content["extra"])
        saved = (key.partition(".") for key in metadata.state_dict_metadata)
        return {name for section, _, name in saved if section == "model"}, set(model)

    _check_known(ranks.do(read), source)
    return _unpacked(extra[0])


class _Ranks:
    """The processes that work on one checkpoint: what fails on one of them fails on all."""

    def __init__(
        self,
        pipeline: Pipeline,
        path: Path,
        group: dist.ProcessGroup | None,
        *,
        alone: bool = False,
    ) -> None:
        self._pipeline, self._path, self._group = pipeline, path, group
        ranks = pipeline.ranks
        processes = 1 if len(ranks) > 1 else pipeline.schedule.num_ranks
        is_spread = dist.is_initialized() and dist.get_world_size() > processes
        self._by_group = not alone and (group is not None or is_spread)
        self.index = dist.get_rank(group) if self._by_group else min(ranks) * (len(ranks) == 1)

    @property
    def is_first(self) -> bool:
        """Whether this process does what is done once."""
        return self.index == 0

    def do(self, work: Callable[[], _Result]) -> list[_Result]:
        """What ``work`` gives on each of them.

        Raises:
            ParameterError, ExecutionError: it fails on one of them.
        """
        cause: Exception | None = None
        outcome: tuple[type[Exception] | None, Any]
        try:
            outcome = None, work()
        except ExecutionError:
            raise  # of another rank, which all have heard of
        except ParameterError as error:
            cause, outcome = error, (ParameterError, str(error))
        except Exception as error:  # noqa: BLE001 - it is raised below, on all ranks
            cause, outcome = error, (ExecutionError, f"{type(error).__name__}: {error}")
        outcomes = self._exchange(outcome)
        for index, (failure, text) in enumerate(outcomes):
            if failure is not None:
                where = f" (in process {index})" if len(outcomes) > 1 else ""
                raise failure(f"{self._path}: {text}{where}") from cause
        return [value for _, value in outcomes]

    def _exchange(self, value: object) -> list[Any]:
        if not self._by_group:
            return [pickle.loads(data) for data in self._pipeline.all_gather(pickle.dumps(value))]
        values: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values


def _write(content: State, part: Path, target: Path, *, ranks: _Ranks) -> None:
    """Every process writes its file into ``part``, which becomes ``target``."""
    planner, writer = DefaultSavePlanner(), FileSystemWriter(part)

    def plan() -> Any:
        planner.set_up_planner(content, writer.storage_meta(), ranks.is_first)
        writer.set_up_storage_writer(ranks.is_first)
        return writer.prepare_local_plan(planner.create_local_plan())

    plans, metadata = planner.create_global_plan(ranks.do(plan))
    own = writer.prepare_global_plan(plans)[ranks.index]

    def write() -> Any:
        try:
            return writer.write_data(planner.finish_plan(own), planner).wait()
        except (OSError, RuntimeError) as error:
            # PyTorch tells neither which file nor, where the disk is full, that it is an OSError.
            file = f"{own.storage_data.prefix}0.distcp"
            raise OSError(f"the file {file} cannot be written: {error}") from error

    written = ranks.do(write)

    def finish() -> None:
        if ranks.is_first:
            writer.finish(metadata, written)
            part.replace(target)

    ranks.do(finish)


def _read(content: State, reader: FileSystemReader, metadata: Metadata, *, source: Path) -> None:
    planner = DefaultLoadPlanner()
    planner.set_up_planner(content, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    needed = {item.storage_index: item.dest_index.fqn for item in plan.items}
    for index, name in needed.items():
        _check_undamaged(source, name, metadata.storage_data[index])
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _check_undamaged(source: Path, name: str, place: Any) -> None:
    """Compare an entry with the checksums that it was stored with, which PyTorch does not do.

    Raises:
        OSError: they differ.
    """
    with (source / place.relative_path).open("rb") as file:
        file.seek(place.offset)
        data = io.BytesIO(file.read(place.length))
    try:
        with zipfile.ZipFile(data) as archive:
            is_damaged = archive.testzip() is not None
    except zipfile.BadZipFile:
        is_damaged = True
    if is_damaged:
        raise OSError(f"the file {place.relative_path} is damaged, in {name}")


def _metadata(reader: FileSystemReader, source: Path) -> Metadata:
    """Of a checkpoint whose files are all there, in full length.

    Raises:
        ParameterError: there is no checkpoint.
        OSError: a file is not complete.
    """
    if not (source / ".metadata").is_file():
        raise ParameterError("not a checkpoint: there is no file .metadata in it")
    try:
        metadata = reader.read_metadata()
    except _DAMAGE as error:
        raise OSError(f"the file .metadata is damaged: {error}") from error
    ends: dict[str, int] = {}
    for info in metadata.storage_data.values():
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    for name, end in sorted(ends.items()):
        file = source / name
        size = file.stat().st_size if file.exists() else 0
        if size < end:
            raise OSError(f"the file {name} is not complete: it has {size} of {end} bytes")
    return metadata


def _check_known(results: list[tuple[set[str], set[str]]], source: Path) -> None:
    """Guard against a checkpoint of a larger model: all that it holds is in some stage."""
    unknown = results[0][0].difference(*(own for _, own in results))
    if unknown:
        raise ParameterError(
            f"{source}: no stage has {min(unknown)}, which the checkpoint holds; are the names "
            "those of the unsplit model? rename= says what a stage's parameters are called there"
        )


def _make_room(target: Path, part: Path) -> None:
    if target.exists():
        raise ParameterError("it exists already; give another name, or remove it first")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)


def _sections(model: State, state: State, options: State, *, extra: bytes) -> State:
    sections = {"model": model, "optimizer": state, "options": options}
    # PyTorch would store an empty one as a value of its own.
    return {**{name: content for name, content in sections.items() if content}, "extra": extra}


def _listed(optimizers: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    return [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)


def _as_it_is(_: int, name: str) -> str:
    return name


def _packed(extra: object) -> bytes:
    """As bytes, which can be read again without trust in who wrote them.

    Raises:
        ParameterError: they could not.
    """
    buffer = io.BytesIO()
    try:
        torch.save(extra, buffer)
        _unpacked(buffer.getvalue())
    except (pickle.PickleError, AttributeError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ParameterError(
            f"extra may hold tensors, plain values, and lists, tuples and dicts of them: {reason}"
        ) from error
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
