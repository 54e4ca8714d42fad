"""How Monarch is set up, and what happens without it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import monarch.actor
import pytest

from fullbore.controller.actor import FaultHook

pytestmark = [pytest.mark.torch, pytest.mark.monarch]


def run_python(text: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def test_the_controller_does_not_import_monarch():
    printed = run_python("import fullbore.controller, sys; print('monarch' in sys.modules)")
    assert printed == "False\n"


def test_without_monarch_the_error_says_what_to_install():
    printed = run_python(
        "import sys; sys.modules['monarch'] = None\n"
        "import importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "def hidden(name, *rest): return None if name == 'monarch' else find(name, *rest)\n"
        "del sys.modules['monarch']; m.PathFinder.find_spec = hidden\n"
        "from torch import nn\n"
        "import fullbore\n"
        "from fullbore.controller import PipelineParallelism\n"
        "try: PipelineParallelism(1, [nn.Linear(2, 2)], schedule='gpipe', engine='monarch')\n"
        "except fullbore.MissingExtra as error: print(error)\n"
    )
    assert printed == "engine='monarch' needs torchmonarch: pip install 'fullbore[monarch]'\n"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the hook that there was is told."""
    found: list[Any] = []
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", found.append)
    return found


def fault(name: str) -> Any:
    return SimpleNamespace(mesh_name=name)


def test_faults_that_are_not_the_engines_go_to_the_hook_that_there_was(seen: list[Any]):
    hook, hurt = FaultHook(), [False]
    hook.install(lambda: hurt[0])
    monarch.actor.unhandled_fault_hook(other := fault("other"))
    hurt[0] = True
    monarch.actor.unhandled_fault_hook(fault("own"))
    assert seen == [other]
    assert [name for name, _ in hook.texts] == ["own"]


def test_a_hook_that_heard_of_nothing_goes(seen: list[Any]):
    before = monarch.actor.unhandled_fault_hook
    hook = FaultHook()
    hook.install(lambda: False)
    assert monarch.actor.unhandled_fault_hook is hook
    hook.retire()
    assert monarch.actor.unhandled_fault_hook == before


def test_news_of_an_end_may_come_after_it(seen: list[Any]):
    hook = FaultHook()
    hook.install(lambda: True)
    hook.retire()
    monarch.actor.unhandled_fault_hook(fault("late"))
    assert not seen


def test_a_hook_that_was_set_since_stays(seen: list[Any]):
    hook = FaultHook()
    hook.install(lambda: False)
    later: Any = lambda _: None  # noqa: E731 - it is compared
    monarch.actor.unhandled_fault_hook = later
    hook.retire()
    assert monarch.actor.unhandled_fault_hook is later


def test_news_of_an_end_that_the_engine_brings_about_may_come_after_it(seen: list[Any]):
    hooks = [FaultHook() for _ in range(2)]
    for hook in hooks:
        hook.install(lambda: False)
        hook.retire(kills=True)
        monarch.actor.unhandled_fault_hook(fault("late"))
    assert not seen
    assert [len(hook.texts) for hook in hooks] == [1, 1]


def test_hooks_whose_time_is_over_are_forgotten(seen: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fullbore.controller.actor._AFTERMATH_SECONDS", 0.0)
    for _ in range(2000):  # more than calls can be nested
        hook = FaultHook()
        hook.install(lambda: False)
        hook.retire(kills=True)
        while not hook.is_over:
            pass
    monarch.actor.unhandled_fault_hook(other := fault("other"))
    assert seen == [other]
