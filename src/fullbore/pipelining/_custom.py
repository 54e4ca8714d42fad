"""Custom functions with torch's calling convention.

The executor receives, hands over, computes the loss and counts. A function written for torch does
all this itself, by methods of the schedule and its stages. These are here, too: each does what the
executor leaves to do, or nothing, or says why it can't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from fullbore.errors import ParameterError
from fullbore.ir import Kind
from fullbore.pipelining._actions import _Action, write_action
from fullbore.runtime import ActionContext
from fullbore.runtime.tree import Tree, tensors

if TYPE_CHECKING:
    from fullbore.ir import Action
    from fullbore.runtime.custom import CustomFunction


class _CustomFunctionProtocol(Protocol):
    """Computes an action."""

    def __call__(self, action: _Action, ctx: _PipelineContext) -> None: ...


class _PipelineContext:
    """What a custom function works with: torch's attributes, and those of
    ``fullbore.runtime.ActionContext`` (``run``, ``deliver_output``, ``parts`` and so on).

    Attributes:
        schedule_ref: the schedule object.
        arg_mbs, kwarg_mbs, target_mbs: by microbatch.
        losses: the list that ``step`` or ``eval`` was given, if any. It is filled at the end.
    """

    def __init__(self, context: ActionContext, schedule: Any, losses: list[Any] | None) -> None:
        self._context, self.schedule_ref, self.losses = context, schedule, losses
        self.arg_mbs, self.kwarg_mbs = context.arg_mbs, context.kwarg_mbs
        self.target_mbs = context.target_mbs

    @property
    def parts(self) -> tuple[_PipelineContext, ...]:
        """Of an overlap: the contexts of its parts, in the action's order."""
        wrapped = self._context.parts
        return tuple(_PipelineContext(part, self.schedule_ref, self.losses) for part in wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Receives(dict[tuple[int, int | None], list[Any]]):
    """What torch keeps receives in that were not yet waited for, by stage and microbatch.

    While a custom function computes an action, it holds an empty list for each of the action's
    messages: they have arrived.
    """

    def __missing__(self, key: object) -> list[Any]:
        raise ParameterError(
            f"(stage, microbatch) {key} is not received by message for the action that is being "
            "computed; a custom function can only ask for its own action's input"
        )

    def pop(self, key: Any, *default: Any) -> Any:
        """Take the works to wait for: none."""
        return super().pop(key, *default) if key in self or default else self[key]


class HandedOver(tuple[Any, ...]):
    """Stands for the input gradients of a stage, which the executor hands on."""

    stage: int
    microbatch: int

    @classmethod
    def of(cls, stage: int, microbatch: int) -> HandedOver:
        """Those of ``stage`` for ``microbatch``."""
        token = cls()
        token.stage, token.microbatch = stage, microbatch
        return token


_Key = tuple[Kind, int, int | None]


class Desk:
    """The actions that custom functions are computing: what torch's methods act on.

    Attributes:
        forward, backward: what has been received for them.
    """

    def __init__(self) -> None:
        self.forward, self.backward = Receives(), Receives()
        self._open: dict[_Key, list[ActionContext]] = {}

    @property
    def busy(self) -> bool:
        """Whether a custom function is at work."""
        return bool(self._open)

    @contextmanager
    def open(self, context: ActionContext, arrives: Callable[[Kind, int], bool]) -> Iterator[None]:
        """Let torch's methods act on the action of ``context``, or on its parts.

        Args:
            context: of the action.
            arrives: whether an action of that kind and stage has an input that comes by message.
        """
        # The parts of an overlap may run on two threads, and each open actions of its own: what is
        # open is added to and taken from, never replaced.
        found = {_key(part.action): part for part in context.parts or (context,)}
        for key, part in found.items():
            self._open.setdefault(key, []).append(part)
            held = self._receives(key, arrives)
            if held is not None:
                held[key[1:]] = []
        try:
            yield
        finally:
            for key in found:
                self._open[key].pop()
                if not self._open[key]:
                    del self._open[key]
                held = self._receives(key, arrives)
                if held is not None:
                    held.pop(key[1:], None)

    def _receives(self, key: _Key, arrives: Callable[[Kind, int], bool]) -> Receives | None:
        kind, stage, microbatch = key
        if microbatch is None or not arrives(kind, stage):
            return None
        return self.forward if kind is Kind.F else self.backward

    def find(self, stage: int, microbatch: int | None, *kinds: Kind) -> ActionContext:
        """The context of an action of one of ``kinds`` that is being computed.

        Raises:
            ParameterError: there is none.
        """
        for kind in kinds:
            contexts = self._open.get((kind, stage, microbatch))
            if contexts:
                return contexts[-1]
        number = "" if microbatch is None else microbatch
        wanted = " or ".join(f"{stage}{kind.name}{number}" for kind in kinds)
        at_work = ", ".join(str(contexts[-1].action) for contexts in list(self._open.values()))
        raise ParameterError(
            f"{wanted} is not being computed"
            + (f", but {at_work}" if at_work else "")
            + ": stages compute only what their schedule runs, from within a custom function of "
            "that action"
        )


def _key(action: Action) -> _Key:
    return action.kind, action.stage, None if action.microbatch < 0 else action.microbatch


def adapt(schedule: Any, kind: Kind) -> CustomFunction:
    """The function that ``schedule`` has for ``kind``, as the runtime calls it."""

    def call(action: Action, context: ActionContext) -> None:
        wrapped = _PipelineContext(context, schedule, schedule._losses)
        with schedule._desk.open(context, schedule._arrives):
            schedule._functions[kind](write_action(action), wrapped)

    return call


def compute_forward(
    context: ActionContext, args: Sequence[Tree] | None, kwargs: dict[str, Tree] | None
) -> Tree:
    """F with the arguments given; ``args`` None stands for what was received."""
    given = context.kwargs if kwargs is None else kwargs
    microbatch = context.microbatch
    assert microbatch is not None
    usual = args is None or _same(args, context.arg_mbs[microbatch])
    named = context.kwargs
    if usual and given.keys() == named.keys() and all(given[k] is named[k] for k in given):
        context.run()
        return context.output
    stage = context.stage
    assert stage is not None
    context.deliver_output(
        stage.module(*(context.args if usual or args is None else args), **given)
    )
    return context.output


def check_delivered(context: ActionContext, output: Tree, *, what: str) -> None:
    """Make sure that ``output`` is what the action gave.

    Raises:
        ParameterError: it is something else.
    """
    if not _same(tensors(output), tensors(context.output)):
        raise ParameterError(
            f"{what} got another output than {context.action} gave; the executor goes on with what "
            "forward_one_chunk returned. Call ctx.deliver_output(output) instead"
        )


def check_loss(context: ActionContext, loss: Tensor | None) -> None:
    """Make sure that backward starts where the executor does.

    Raises:
        ParameterError: it is another loss.
    """
    if loss is not None and loss is not context.loss:
        raise ParameterError(
            f"backward_one_chunk got another loss for {context.action} than the schedule computed; "
            "change it in loss_fn, or run backward yourself: ctx.outputs, ctx.output_gradients"
        )


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
