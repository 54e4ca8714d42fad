"""A step that the script runs action by action: the schedule as a thing to walk through.

The actions run where they always do, by the runtime's own worker and interpreter. Here it is only
decided which one may be next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from torch.utils import _pytree as pytree

from fullbore.controller.opaque import is_monarchs
from fullbore.errors import ParameterError
from fullbore.formats import DIALECTS
from fullbore.formats.dialects import read_text
from fullbore.ir import KINDS, Action, Dependencies, Fact, Group, Kind, Schedule
from fullbore.runtime import StepOutput
from fullbore.runtime.intake import Given, Presplit
from fullbore.runtime.tree import Tree

if TYPE_CHECKING:
    from fullbore.controller.host import Request
    from fullbore.controller.session import Session
    from fullbore.controller.streams import SideStream
    from fullbore.controller.watch import Watch
    from fullbore.runtime import Pipeline
    from fullbore.runtime.walk import Walk

Looked = Literal["inputs", "outputs", "input_gradients", "output_gradients"]

_AHEAD = 8
"""Messages on one link whose receives are not posted. Transports bear twice as many before a send
waits, and here nobody would post while it does."""


class WalkingHost:
    """The part of a ``RankHost`` that runs a step action by action."""

    pipeline: Pipeline
    device: str | None
    _side: SideStream
    _watch: Watch
    _walk: Walk | None = None

    def begin_walk(self, request: Request) -> None:
        """Begin a step."""
        self._watch.begin()
        presplit = self._received(request)
        given = Given(
            presplit=presplit,
            loss_weights=request.weights,
            return_outputs=request.return_outputs,
            **request.options,
        )
        self._walk = self.pipeline.walk(given)

    def act(self, rank: int, step: int) -> None:
        """Run an action of a rank here."""
        with self._side.active():
            self._under_way.run(rank, step)

    def look(self, what: Looked, stage: int, microbatch: int) -> tuple[Tree] | None:
        """A copy of what an action has worked with, in a tuple; None if it is not here (yet)."""
        found = getattr(self._under_way.seen, what)
        place = (stage, microbatch)
        if place not in found:
            return None
        return (pytree.tree_map_only(Tensor, _copy, found[place]),)

    def losses_so_far(self) -> dict[int, Tensor]:
        """By microbatch."""
        return {m: _copy(loss) for m, loss in self._under_way.losses.items()}

    def end_walk(self) -> StepOutput:
        """End the step after its last action."""
        with self._side.active():
            return self._under_way.finish()

    def abandon_walk(self) -> None:
        """End the step here, if one is under way."""
        if self._walk is not None:
            self._walk.abandon()

    def refuse(self, error: BaseException) -> None:
        """A request cannot be met here, and the other ranks may wait for this one: they are told.

        Args:
            error: why.
        """
        self.abandon_walk()
        with suppress(type(error)):
            self.pipeline.abandon(error)

    def _received(self, request: Request) -> Presplit:
        try:
            return request.parts(self.device)
        except BaseException as error:
            self.refuse(error)
            raise

    @property
    def _under_way(self) -> Walk:
        if self._walk is None:
            raise ParameterError("no step is under way; begin one with start(x, y)")
        return self._walk


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


class Frontier:
    """How far each rank is in its program, and what can be next.

    Args:
        schedule: in the LOWERED form.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._programs, self._ranks = schedule.programs, schedule.placement.ranks
        self._deps = Dependencies(schedule)
        self._plane = schedule.num_stages * schedule.num_microbatches
        self._places = {action: (rank, step) for rank, step, action in schedule.actions()}
        self._at = [0] * schedule.num_ranks
        self._known: set[int] = set()
        self._unposted: Counter[tuple[int, int]] = Counter()

    def next_of(self, rank: int) -> Action | None:
        """The action that ``rank`` stands at; None at the end of its program."""
        program, at = self._programs[rank], self._at[rank]
        return program[at] if at < len(program) else None

    def obstacle(self, action: Action) -> str | None:
        """Why an action that a rank stands at cannot run yet; None if it can."""
        missing = next((fact for fact in self._needs(action) if fact not in self._known), None)
        if missing is not None:
            return f"{action} needs {self._deps.givers(missing)} first"
        for leaf in action.leaves:
            link = self._link(leaf)
            if leaf.kind in (Kind.SEND_F, Kind.SEND_B) and self._unposted[link] >= _AHEAD:
                return (
                    f"{action} would be message {_AHEAD + 1} from rank {link[0]} that rank "
                    f"{link[1]} has no receive for yet; let rank {link[1]} go on first"
                )
        return None

    def find(self, action: Action) -> tuple[int, int]:
        """The rank and step of an action that can run now.

        Raises:
            ParameterError: it cannot; says what has to run first.
        """
        if action not in self._places:
            raise ParameterError(f"{action} is no action of this schedule")
        rank, step = self._places[action]
        if step < self._at[rank]:
            raise ParameterError(f"{action} has run already")
        if step > self._at[rank]:
            raise ParameterError(
                f"{action} cannot run yet: rank {rank} comes to {self.next_of(rank)} first"
            )
        obstacle = self.obstacle(action)
        if obstacle is not None:
            raise ParameterError(obstacle)
        return rank, step

    def advance(self, rank: int) -> None:
        """The action that ``rank`` stood at has run."""
        action = self._programs[rank][self._at[rank]]
        self._at[rank] += 1
        self._known.update(self._deps.gives(action))
        for leaf in action.leaves:
            if leaf.kind in (Kind.SEND_F, Kind.SEND_B):
                self._unposted[self._link(leaf)] += 1
            elif leaf.kind in (Kind.RECV_F, Kind.RECV_B):
                self._unposted[self._link(leaf)] -= 1

    def _needs(self, action: Action) -> Iterator[int]:
        if action.parts and KINDS[action.kind].group is Group.COMMUNICATION:
            # The halves are posted together; whatever uses the received one waits for it.
            for part in action.parts:
                if part.kind in (Kind.SEND_F, Kind.SEND_B):
                    yield from self._deps.needs(part)
            return
        for fact in self._deps.needs(action):
            yield fact
            if fact // self._plane in (Fact.ARRIVED_F, Fact.ARRIVED_B):
                yield fact - self._plane  # it has been sent

    def _link(self, transfer: Action) -> tuple[int, int]:
        """The sending and the receiving rank."""
        here, away = transfer.stage, KINDS[transfer.kind].stage_step
        ends = (self._ranks[here], self._ranks[here + away])
        return ends if transfer.kind in (Kind.SEND_F, Kind.SEND_B) else ends[::-1]


class Stepping:
    """A step under way, of which the script runs each action.

    ``PipelineParallelism.start`` begins it. Iterating runs what is left, and gives each action once
    it has run::

        with pp.start(x, y) as stepping:
            stepping.run("0F0")
            print(stepping.output(0, 0))
            for action in stepping:
                print(action)
            loss = stepping.finish()

    Every rank runs its program in its order; which rank is next is free, as long as what an action
    needs has run. Tensors can be looked at until the step is over; all of them are kept until then.
    Leaving the ``with`` block before ``finish()`` abandons the step.

    Args:
        session: of the processes.
        schedule: that they run.
        processes: the ranks that each one plays.
        requests: what each process gets of the batch.
        finish: takes what each process gives in the end; gives the loss.

    Attributes:
        left: how many actions have not run.
        is_over: whether the step was finished or abandoned, or has failed.
    """

    def __init__(
        self,
        session: Session,
        schedule: Schedule,
        processes: Sequence[Sequence[int]],
        requests: Sequence[tuple[Any, ...]],
        finish: Callable[[list[StepOutput]], Tensor],
    ) -> None:
        self._session, self._schedule, self._finish = session, schedule, finish
        self._process_of = {rank: i for i, ranks in enumerate(processes) for rank in ranks}
        self._frontier = Frontier(schedule)
        self.left = sum(map(len, schedule.programs))
        self._session.change_each("begin_walk", requests)
        self.is_over = False

    @property
    def ready(self) -> tuple[Action, ...]:
        """The actions that can run now, by rank."""
        heads = map(self._frontier.next_of, range(self._schedule.num_ranks))
        return tuple(a for a in heads if a is not None and self._frontier.obstacle(a) is None)

    def run(self, action: Any) -> None:
        """Run an action where its rank is.

        Args:
            action: such as ``"0F0"``; an ``Action``, or an ``_Action`` of Monarch.

        Raises:
            ParameterError: it cannot be next; says what has to run first. Nothing has happened.
            FormatError: it is no action's text.
            Exception: what the user's module raised; the step is over then.
        """
        self._check_open()
        for one in as_actions(action):
            self._act(*self._frontier.find(one))

    def __iter__(self) -> Iterator[Action]:
        while self.left:
            for rank in range(self._schedule.num_ranks):
                action = self._run_next(rank)
                if action is not None:
                    yield action

    def sweep(self) -> tuple[Action | None, ...]:
        """Run the next action of each rank, if it can run; None stands for a rank that waits."""
        return tuple(self._run_next(rank) for rank in range(self._schedule.num_ranks))

    def input(self, stage: int, microbatch: int) -> tuple[Tree, ...]:
        """A copy of what the stage was called with.

        Raises:
            ParameterError: it has not been yet. So for the other three.
        """
        found: tuple[Tree, ...] = self._look("inputs", stage, microbatch)
        return found

    def output(self, stage: int, microbatch: int) -> Tree:
        """A copy of what the stage gave."""
        return self._look("outputs", stage, microbatch)

    def output_gradients(self, stage: int, microbatch: int) -> tuple[Tensor | None, ...]:
        """What the stage's backward starts from: one for each output that wants a gradient; after
        the last stage the weight of the loss."""
        found: tuple[Tensor | None, ...] = self._look("output_gradients", stage, microbatch)
        return found

    def input_gradients(self, stage: int, microbatch: int) -> tuple[Tensor | None, ...]:
        """What the stage's backward hands back: one for each input that wants a gradient; none for
        a batch that wants none."""
        found: tuple[Tensor | None, ...] = self._look("input_gradients", stage, microbatch)
        return found

    @property
    def losses(self) -> dict[int, Tensor]:
        """The losses so far, by microbatch."""
        self._check_open()
        last = self._process_of[self._schedule.placement.ranks[-1]]
        found: dict[int, Tensor] = self._session.ask_one(last, "losses_so_far")
        return found

    def finish(self) -> Tensor:
        """Run what is left, and end the step; the loss, as ``run`` gives it."""
        for _ in self:
            pass
        self._check_open()
        self.is_over = True
        return self._finish(self._session.change("end_walk"))

    def abandon(self) -> None:
        """End the step here. Gradients that were computed stay in ``.grad``: ``zero_grad()`` takes
        them away. Does nothing where the step is over."""
        if not self.is_over:
            self.is_over = True
            self._session.change("abandon_walk")

    def __enter__(self) -> Stepping:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    def _act(self, rank: int, step: int) -> None:
        try:
            self._session.ask_one(self._process_of[rank], "act", rank, step)
        except BaseException:
            self.is_over = True
            raise
        self._frontier.advance(rank)
        self.left -= 1

    def _run_next(self, rank: int) -> Action | None:
        self._check_open()
        action = self._frontier.next_of(rank)
        if action is None or self._frontier.obstacle(action) is not None:
            return None
        self._act(*self._frontier.find(action))
        return action

    def _look(self, what: Looked, stage: int, microbatch: int) -> Any:
        self._check_open()
        process = self._process_of[self._schedule.placement.rank_of(stage)]
        found = self._session.ask_one(process, "look", what, stage, microbatch)
        if found is None:
            raise ParameterError(
                f"stage {stage} has no {what.replace('_', ' ')} of microbatch {microbatch} (yet): "
                f"the action that {'uses' if what == 'inputs' else 'gives'} them has not run"
            )
        return found[0]

    def _check_open(self) -> None:
        if self.is_over:
            raise ParameterError("this step is over; begin another one with start(x, y)")


def as_actions(given: Any) -> tuple[Action, ...]:
    """The actions that an action, its text, or an ``_Action`` of Monarch stands for.

    Raises:
        FormatError: it is no action.
    """
    if isinstance(given, Action):
        return (given,)
    return read_text(str(given), DIALECTS["monarch" if is_monarchs(given) else "torch"])
