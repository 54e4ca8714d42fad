"""On which stream of a GPU the stages compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.controller.cases import data, make, wanted
from tests.reference import WIDTH, assert_gradients, linear_tanh, mse
from torch import nn

from fullbore.controller import PipelineParallelism
from fullbore.controller.streams import SideStream, check_stream
from fullbore.errors import ParameterError

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dispatch", ["step", "action"])
def test_on_the_cpu_they_mean_nothing(dispatch: str) -> None:
    modules, (x, y) = linear_tanh(2), data()
    reference = wanted(modules, x, y)
    streams: dict[str, Any] = {"compute_stream": "compute", "p2p_stream": True}
    with make(2, modules, dispatch=dispatch, **streams) as pp:
        pp.run(x, y)
        assert_gradients(modules, reference.gradients, pp.schedule)


def test_a_stream_is_one_of_a_few_things() -> None:
    assert check_stream(None, "compute_stream") is None
    assert check_stream("compute", "compute_stream") is True
    for wrong in (3, False, object()):
        with pytest.raises(ParameterError, match=r"p2p_stream is a \w+; give None, True or a name"):
            make(2, linear_tanh(2), p2p_stream=wrong)


class Recorded:
    """A stream that tells whom it waits for."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def wait_stream(self, other: Recorded) -> None:
        self._log.append(f"{self.name} waits for {other.name}")


@pytest.mark.parametrize("fails", [False, True])
def test_the_streams_wait_for_each_other_by_events(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    log: list[str] = []
    current, side = Recorded("current", log), Recorded("side", log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)

    class Entered:
        def __init__(self, stream: Recorded) -> None:
            self._name = stream.name

        def __enter__(self) -> None:
            log.append(f"on {self._name}")

        def __exit__(self, *_: object) -> None:
            log.append(f"off {self._name}")

    monkeypatch.setattr(torch.cuda, "stream", Entered)

    class OnGpu(nn.Module):
        def parameters(self, recurse: bool = True) -> Any:
            parameter = nn.Parameter(torch.zeros(1))
            return iter([type("P", (), {"is_cuda": True, "device": parameter.device})()])

    stream = SideStream(side, [OnGpu()])
    try:
        with stream.active():
            log.append("work")
            if fails:
                raise KeyError("boom")
    except KeyError:
        assert fails
    waits = ["side waits for current", "on side", "work", "off side", "current waits for side"]
    assert log == waits


@pytest.mark.gpu
@pytest.mark.parametrize("stream", ["compute", None])
def test_on_a_gpu_stages_compute_on_a_stream_of_their_own(stream: str | None) -> None:
    modules = linear_tanh(2)
    x, y = data()
    reference = wanted([m.to("cuda") for m in modules], x.to("cuda"), y.to("cuda"))
    seen: list[Any] = []
    modules[0].register_forward_hook(lambda *_: seen.append(torch.cuda.current_stream()))
    with PipelineParallelism(
        2,
        modules,
        compute_stream=stream,
        schedule="1f1b",
        batch_size=8,
        microbatch_size=2,
        loss_fn=mse,
        device="cuda",
    ) as pp:
        for _ in range(20):
            pp.zero_grad()
            # Made on the current stream, and let go of while the other one may still read it.
            pp.run(torch.ones(8, WIDTH, device="cuda") * 0 + x.to("cuda"), y.to("cuda"))
        assert all((s == torch.cuda.current_stream()) is (stream is None) for s in seen)
        assert_gradients(modules, reference.gradients, pp.schedule)
