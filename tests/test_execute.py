"""The interpreter, and the symbolic worker that the other tests rely on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fullbore.errors import ExecutionError, PeerFailed
from fullbore.execute import Call, Interpreter, bind
from fullbore.formats import loads, parse_action
from fullbore.ir import KINDS, Action, Dependencies, Kind, Placement, Schedule, fuse
from tests.symbolic import WrongUse, reference, run


class Recorder:
    """Notes what it is told; `failure` is raised on the second forward."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.failure = failure

    def __getattr__(self, name: str):
        def note(*args: int) -> None:
            self.notes.append((name, *args))
            if name == "forward" and self.failure and self.notes.count(("forward", *args)) == 2:
                raise self.failure

        return note

    def together(self, action: Action, parts: Sequence[Call]) -> None:
        self.notes.append(("together", action))
        for part in parts:
            part()


CALLS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "backward_input",
    Kind.W: "backward_weight",
    Kind.SEND_F: "send_forward",
    Kind.RECV_F: "recv_forward",
    Kind.SEND_B: "send_backward",
    Kind.RECV_B: "recv_backward",
    Kind.UNSHARD: "unshard",
    Kind.RESHARD: "reshard",
    Kind.REDUCE_GRAD: "reduce_grad",
}


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_its_call(kind: Kind):
    worker = Recorder()
    if kind in CALLS and KINDS[kind].has_microbatch:
        bind(Action(2, kind, 3), worker)()
        assert worker.notes == [(CALLS[kind], 2, 3)]
    elif kind in CALLS:
        bind(Action(2, kind), worker)()
        assert worker.notes == [(CALLS[kind], 2)]
    else:
        one, other = (Action(i, part, 3) for i, part in enumerate(KINDS[kind].parts))
        action = fuse(kind, one, other)
        bind(action, worker)()
        parts = [(CALLS[part.kind], part.stage, 3) for part in (one, other)]
        assert worker.notes == [("together", action), *parts]


def interpreter(texts: str, worker: Recorder) -> Interpreter:
    return Interpreter([(1, parse_action(text)) for text in texts.split()], worker)


def test_a_program_runs_in_order_and_again():
    worker = Recorder()
    steps = interpreter("2F0 2F1 2B0", worker)
    assert worker.notes == []
    steps.run()
    once = [("forward", 2, 0), ("forward", 2, 1), ("backward", 2, 0)]
    assert worker.notes == once
    steps.run()
    assert worker.notes == once * 2


def test_around_surrounds_each_action():
    worker = Recorder()

    @contextmanager
    def around(action: Action) -> Iterator[None]:
        worker.notes.append(("enter", action))
        yield
        worker.notes.append(("leave", action))

    steps = interpreter("2F0 (2F1;2B0)OVERLAP_F_B", worker)
    steps.run(around=around)
    first, second = (action for _, action in steps.actions)
    assert worker.notes == [
        ("enter", first),
        ("forward", 2, 0),
        ("leave", first),
        ("enter", second),
        ("together", second),
        ("forward", 2, 1),
        ("backward", 2, 0),
        ("leave", second),
    ]


@contextmanager
def nothing(_: Action) -> Iterator[None]:
    yield


@pytest.mark.parametrize("around", [None, nothing])
@pytest.mark.parametrize(
    ("texts", "place"),
    [
        ("2F0 2B0 2F0 2B0", "rank 1, stage 2, action 2F0"),
        ("2F0 (5I1;2F0)OVERLAP_F_B", "rank 1, stage 2, 5, action (5I1;2F0)OVERLAP_F_B"),
    ],
)
def test_the_users_exception_gains_a_note(around: Any, texts: str, place: str):
    failure = KeyError("weight")
    worker = Recorder(failure)
    with pytest.raises(KeyError) as caught:
        interpreter(texts, worker).run(around=around)
    assert caught.value is failure
    assert failure.__notes__ == [place]
    assert worker.notes[-1] == ("forward", 2, 0)


@pytest.mark.parametrize("around", [None, nothing])
def test_an_execution_error_learns_where_it_happened(around: Any):
    failure = ExecutionError("no answer")
    with pytest.raises(ExecutionError) as caught:
        interpreter("2F0 2F0", Recorder(failure)).run(around=around)
    assert caught.value is failure
    assert str(failure) == "rank 1, stage 2, action 2F0: no answer"


def test_an_execution_error_that_knows_is_believed():
    failure = PeerFailed("gone", rank=0, stage=7, action="7F3")
    with pytest.raises(PeerFailed, match="rank 0, stage 7, action 7F3: gone"):
        interpreter("2F0 2F0", Recorder(failure)).run()


def test_an_interrupt_says_where_it_came():
    failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        interpreter("2F0 2F0", Recorder(failure)).run()
    assert failure.__notes__ == ["rank 1, stage 2, action 2F0"]


def schedule(text: str) -> Schedule:
    return loads(text, format="csv")


RIGHT = {
    "one rank": "0F0,1F0,1B0,0B0\n",
    "split": "0F0,0F1,0I0,0I1,0W1,0W0\n1F0,1I0,1W0,1F1,1I1,1W1\n",
    "overlap": "0F0,0F1,1F0,(1F1;1I0)OVERLAP_F_B,1W0,(1B1;0F2)OVERLAP_F_B,0B0,1F2,1B2,0B1,0B2\n",
    "forward only": "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n",
    "sharded": (
        "0UNSHARD,0F0,0RESHARD,0SEND_F0,0RECV_B0,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1I0,1SEND_B0,1W0,1REDUCE_GRAD,1RESHARD\n"
    ),
    "vee": (
        "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
        "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0\n"
    ),
    "batched": (
        "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0)SEND_F_RECV_B,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1)SEND_B_RECV_F,1F1,1B1,1SEND_B1\n"
    ),
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_right_schedules_compute_what_a_plain_loop_does(text: str):
    found = schedule(text)
    result = run(found)
    assert result == reference(found)
    assert set(result.outputs) == set(range(found.num_microbatches))


def test_the_terms():
    result = run(schedule("0F0,0B0\n1F0,1B0\n"))
    hidden = ("F", 0, 0, ("x", 0))
    output = ("F", 1, 0, hidden)
    loss = ("dloss", 0, output)
    assert result.outputs == {0: output}
    first, second = result.weight_gradients
    assert dict(second) == {("dw", 1, 0, hidden, loss): 1}
    assert dict(first) == {("dw", 0, 0, ("x", 0), ("dx", 1, 0, hidden, loss)): 1}


def test_the_order_of_accumulation():
    assert run(schedule(RIGHT["split"])).accumulated == ((1, 0), (0, 1))
    assert run(schedule(RIGHT["forward only"])).accumulated == ((), ())


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("batched", "0RECV_B1,0B1", "0B1", "rank 0 is stuck at 0B1"),
        ("batched", ",1SEND_B1", "", "rank 0 is stuck at 0RECV_B1"),
        ("batched", ",0RECV_B1,0B1", "", "left: messages"),
        (
            "forward only",
            "1RECV_F0,1F0,1RECV_F1,1F1",
            "1RECV_F1,1RECV_F0,1F0,1F1",
            "takes the mess",
        ),
        ("forward only", "0SEND_F1", "0SEND_F1,0SEND_F1", "is not there to be sent"),
        ("forward only", "1F1", "1F1,1F1", "has not arrived|runs twice"),
        (
            "vee",
            "1F0,2F0,",
            "1F0,1SEND_F0,2F0,",
            "is no message between ranks|not there to be sent",
        ),
        ("sharded", "0RECV_B0,0UNSHARD", "0RECV_B0", "stage 0 is not unsharded"),
        ("sharded", "0UNSHARD,0F0,0RESHARD", "0UNSHARD,0F0", "stage 0 is unsharded twice"),
        ("sharded", ",1RESHARD", "", r"left: \[1\]"),
        ("sharded", "0RESHARD\n", "0RESHARD,0RESHARD\n", "stage 0 is not unsharded"),
        ("sharded", "0REDUCE_GRAD", "0REDUCE_GRAD,0REDUCE_GRAD", "too early or twice"),
        ("split", ",0W0", "", r"left: \[\(0, 0\)\]"),
        ("split", "0W0", "0W0,0W0", "finds nothing kept"),
        ("split", "1W1", "1W1,1I1", "finds nothing saved"),
        ("split", "1W1", "1W1,1B1", "finds nothing saved"),
        ("one rank", ",0B0", "", "left: "),
    ],
)
def test_wrong_schedules_are_found_out(name: str, old: str, new: str, message: str):
    assert old in RIGHT[name]
    with pytest.raises(WrongUse, match=message):
        run(schedule(RIGHT[name].replace(old, new)))


def test_a_gradient_after_the_reduction_is_found_out():
    found = loads("# num_microbatches: 1\nrank 0: 0F0 0F1 0B0 0REDUCE_GRAD 0B1\n", format="txt")
    with pytest.raises(WrongUse, match="stage 0 is already reduced"):
        run(found)


@st.composite
def runnable(draw: st.DrawFn) -> Schedule:
    """Any order of F and B, or F, I and W, that respects the dependencies."""
    placement = draw(st.sampled_from([Placement.linear(3), Placement.vee(2), Placement((0, 0, 1))]))
    left: list[Action] = []
    for stage in range(placement.num_stages):
        for microbatch in range(2):
            kinds = draw(st.sampled_from([(Kind.F, Kind.B), (Kind.F, Kind.I, Kind.W)]))
            left += [Action(stage, kind, microbatch) for kind in kinds]
    programs: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    deps = Dependencies(Schedule(((),) * placement.num_ranks, placement, 2))
    holds: set[int] = set()
    while left:
        ready = [action for action in left if holds.issuperset(deps.needs(action))]
        action = draw(st.sampled_from(ready))
        programs[placement.ranks[action.stage]].append(action)
        holds.update(deps.gives(action))
        left.remove(action)
    return Schedule(tuple(map(tuple, programs)), placement, 2)


@settings(max_examples=20)
@given(runnable())
def test_whatever_order_can_run_computes_the_same(found: Schedule):
    assert run(found) == reference(found)
