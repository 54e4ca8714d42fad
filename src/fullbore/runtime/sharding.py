"""Stages whose parameters are shared with other replicas: DistributedDataParallel and FSDP2.

Both reduce gradients in hooks of every backward, which a schedule with several microbatches in
flight, and with backwards in two parts, must not let them do. Here is what the runtime does
instead, and when: see ``docs/data_parallel.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Protocol

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fullbore.errors import ParameterError
from fullbore.ir import KINDS, Action, Form, Group, Program, Schedule
from fullbore.passes import InsertReduceGrad, InsertUnshard, lower, run_passes
from fullbore.passes.unshard import Lookahead
from fullbore.runtime.failure import describe
from fullbore.runtime.replicas import WatchAll
from fullbore.runtime.sharding_ddp import Replicated
from fullbore.runtime.sharding_fsdp import FullySharded
from fullbore.verify import check


class Sharding(Protocol):
    """What the runtime does for one wrapper in a stage.

    Attributes:
        reduced: whether this step's gradients were reduced, or somebody else saw to that.
    """

    reduced: bool

    def begin(self, *, training: bool) -> None:
        """Before the first action: switch off what the wrapper does by itself."""

    def unshard(self) -> None:
        """UNSHARD: start to gather the parameters."""

    def ready(self) -> None:
        """Before every F, B, I and W: the parameters are there."""

    def settle(self) -> None:
        """After every B, I and W: gradients were added to."""

    def reshard(self) -> None:
        """RESHARD: free the gathered parameters."""

    def reduce(self) -> None:
        """REDUCE_GRAD: start to average the gradients over the replicas."""

    def finish(self) -> None:
        """After the last action: what the schedule left out, and wait for what is under way.

        Raises:
            TransportError: the other replicas do not take part.
        """

    def restore(self, *, failed: bool) -> None:
        """Switch back what ``begin`` switched, and forget a failed step."""


class StageShardings(Mapping[int, Sequence[Sharding]]):
    """What there is to do for each stage of this process: something for each DDP wrapper and for
    each root of ``fully_shard``, nothing for plain modules.

    Attributes:
        broken: why no step may follow, after one that failed.
    """

    def __init__(self, stages: Mapping[int, HasModule], watch: WatchAll) -> None:
        self._stages, self._watch = stages, watch
        self._kinds: dict[int, list[type]] = {}
        self._found: dict[int, tuple[Sharding, ...]] = {}
        self.broken: str | None = None
        self._look()

    def __getitem__(self, stage: int) -> Sequence[Sharding]:
        return self._found[stage]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @contextmanager
    def steered(self, *, training: bool, tied: bool = False) -> Iterator[None]:
        """Take over for a step, or an evaluation.

        Args:
            training: whether it is a step.
            tied: whether gradients are put aside during the step, since parameters are tied.

        Raises:
            ParameterError: a module is wrapped, or set, in a way that would give wrong gradients.
            TransportError: the other replicas do not take part.
        """
        self._look()
        found = [sharding for stage in self._found.values() for sharding in stage]
        failed, started = True, False
        try:
            for sharding in found:
                sharding.begin(training=training)
            if tied and training:
                self._check_ties()
            started = any(training or isinstance(sharding, FullySharded) for sharding in found)
            yield
            failed = False
        except BaseException as error:
            if started:
                self.broken = (
                    f"a step failed ({describe(error)}) whose stages are spread over replicas, and "
                    "nobody knows which of their collectives wait; start all replicas again, from "
                    "a checkpoint"
                )
            raise
        finally:
            for sharding in reversed(found):
                sharding.restore(failed=failed)

    def _check_ties(self) -> None:
        for stage, found in self._found.items():
            if any(isinstance(sharding, Replicated) and sharding.reduced for sharding in found):
                raise ParameterError(
                    f"stage {stage}: tied parameters cannot be trained under DDP's no_sync(): what "
                    "one step leaves in .grad is put aside in the next, and would never be "
                    "averaged; leave no_sync() out, or use fully_shard()"
                )

    def _look(self) -> None:
        """Find out what is wrapped, if that has changed."""
        before = dict(self._found)
        for index, stage in self._stages.items():
            kinds = _kinds(stage.module)
            if self._kinds.get(index) != kinds:
                check_wrappers(stage.module, index)
                self._kinds[index] = kinds
                self._found[index] = _shardings(stage.module, index, self._watch)
        if before != self._found:
            self._share_out()

    def _share_out(self) -> None:
        """A parameter of several stages is complete when the last of them is, and is averaged once:
        what is added while it is averaged would be lost.

        Raises:
            ParameterError: one of the stages alone would say when it is gathered and reduced.
        """
        counts = Counter(
            p for stage in self._stages.values() for p in set(stage.module.parameters())
        )
        shared: set[Tensor] = {p for p, count in counts.items() if count > 1}
        left = set(shared)
        for sharding in chain.from_iterable(self._found.values()):
            if isinstance(sharding, FullySharded) and not shared.isdisjoint(sharding.parameters):
                raise ParameterError(
                    f"stage {sharding.stage} shares a module that fully_shard manages with another "
                    "stage of this rank; give each stage a copy, and name them in tied="
                )
            if isinstance(sharding, Replicated):
                sharding.others = shared.intersection(sharding.parameters)
                sharding.late = [p for p in sharding.parameters if p in left]
                left.difference_update(sharding.late)


def _kinds(module: nn.Module) -> list[type]:
    """The types of all its parts. Every step asks, and ``module.modules()`` is slow."""
    stack: list[nn.Module | None] = [module]
    seen: dict[nn.Module, type] = {}
    while stack:
        part = stack.pop()
        if part is not None and part not in seen:
            seen[part] = type(part)
            stack += part._modules.values()
    return list(seen.values())


def _shardings(module: nn.Module, stage: int, watch: WatchAll) -> tuple[Sharding, ...]:
    found: list[Sharding] = []
    for outer in _outermost(module, set()):
        if isinstance(outer, DistributedDataParallel):
            found.append(Replicated(outer, stage, watch))
        else:
            found.append(FullySharded(outer, stage, watch))
    return tuple(found)


class HasModule(Protocol):
    """A Stage."""

    module: nn.Module


def is_sharded(module: nn.Module) -> bool:
    """Whether the parameters must be gathered: FSDP2."""
    return any(_is_fsdp(part) for part in module.modules())


def is_replicated(module: nn.Module) -> bool:
    """Whether gradients are averaged over replicas: FSDP2 or DDP."""
    return next(_outermost(module, set()), None) is not None


def check_wrappers(module: nn.Module, stage: int) -> None:
    """Refuse wrappers that the runtime cannot steer.

    Raises:
        ParameterError: says which and why.
    """
    for part in module.modules():
        kind = type(part)
        names = {base.__name__ for base in kind.__mro__}
        if "FullyShardedDataParallel" in names:
            raise ParameterError(
                f"stage {stage}: {kind.__name__} reduces gradients in every backward and cannot be "
                "told when to gather its parameters; use fully_shard() (FSDP2) instead"
            )
        if any(
            base.__module__ == "torch.distributed._composable.replicate" for base in kind.__mro__
        ):
            raise ParameterError(
                f"stage {stage}: replicate() reduces gradients in every backward; use "
                "DistributedDataParallel or fully_shard() instead"
            )
        if isinstance(part, DistributedDataParallel):
            _check_ddp(part, stage)
    for outer in _outermost(module, set()):
        inner = [part for part in outer.modules() if part is not outer and _is_wrapper(part)]
        if not all(map(_is_fsdp, [outer, *inner] if inner else ())):
            raise ParameterError(
                f"stage {stage}: DistributedDataParallel cannot be combined with another wrapper "
                "around or in the same module, as gradients would be averaged twice; for both "
                "replicas and shards, give fully_shard() a mesh of two dimensions"
            )


def _check_ddp(module: DistributedDataParallel, stage: int) -> None:
    reason = None
    # Hooks of torch's own making are only noted there.
    data = module._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    hook = module._comm_hooks or data.get("comm_hook")
    if hook:
        reason = "its communication hook works on buckets of one backward, of which a step has many"
    elif hasattr(module, "buffer_hook"):
        reason = "its buffer hook works on one forward, of which a step has many"
    elif module._delay_all_reduce_params:
        reason = "delay_all_reduce_named_params reduces gradients in a hook of every backward"
    elif any(hasattr(p, "_in_backward_optimizers") for p in module.parameters()):
        reason = "its optimizers run in every backward, before the gradients are complete"
    if reason is not None:
        raise ParameterError(f"stage {stage}: this DistributedDataParallel is refused: {reason}")


def _is_fsdp(module: nn.Module) -> bool:
    # By name: importing FSDP takes long.
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


def _is_wrapper(module: nn.Module) -> bool:
    return isinstance(module, DistributedDataParallel) or _is_fsdp(module)


def _outermost(module: nn.Module, seen: set[nn.Module]) -> Iterator[nn.Module]:
    if module in seen:
        return
    seen.add(module)
    if _is_wrapper(module):
        yield module
        return
    for child in module.children():
        yield from _outermost(child, seen)


def lower_for(
    stages: Iterable[HasModule],
    schedule: Schedule,
    *,
    max_active_stages: int = InsertUnshard.max_active_stages,
    lookahead: Lookahead = None,
) -> Schedule:
    """A LOWERED schedule as it is, a COMPUTE schedule lowered, with what the stages need put
    between the messages.

    Ranks whose stages need different things, or with other options, still agree on the messages and
    their order: those of ``lower(schedule)``. Where both stand between two computations, messages
    come first, since other ranks wait for them.

    Raises:
        ParameterError: it is no schedule.
        InvalidSchedule: it is not valid.
    """
    if not isinstance(schedule, Schedule):
        raise ParameterError(
            f"the schedule must be a Schedule, got a {type(schedule).__qualname__}; "
            "fullbore.build(name, ...) makes one, fullbore.load(path) reads one"
        )
    if schedule.form is Form.LOWERED:
        check(schedule)
        return schedule
    plain = lower(schedule)
    modules = [stage.module for stage in stages if hasattr(stage, "module")]
    reduce_grad = any(map(is_replicated, modules))
    if not reduce_grad:
        return plain
    shard = any(map(is_sharded, modules))
    gather = [InsertUnshard(max_active_stages, lookahead)] if shard else []
    extra = run_passes(schedule, [*gather, InsertReduceGrad()])
    return plain.with_programs(
        [tuple(_weave(a, b)) for a, b in zip(plain.programs, extra.programs, strict=True)]
    )


def _weave(messages: Program, sharding: Program) -> Iterator[Action]:
    """One rank's program with the messages of the first and the sharding of the second."""
    rest = iter(messages)
    following = next(rest, None)

    def take_messages() -> Iterator[Action]:
        nonlocal following
        while following is not None and KINDS[following.kind].group is not Group.COMPUTE:
            yield following
            following = next(rest, None)

    yield from take_messages()
    for action in sharding:
        yield action
        if KINDS[action.kind].group is Group.COMPUTE:
            assert action == following
            following = next(rest, None)
            yield from take_messages()
