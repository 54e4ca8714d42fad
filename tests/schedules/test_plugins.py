"""Families that other packages bring along."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fullbore.errors import ParameterError
from fullbore.schedules import FAMILIES, build, families, resolve

GOOD = """
from fullbore.ir import Kind, Schedule
from fullbore.schedules import Family

def build(placement, num_microbatches):
    raise ValueError("never built in these tests")

FAMILY = Family("sideways", build, "linear", "sideways", "a test", aliases=("SideWays", "sw"))
"""
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """``install(module, text)`` puts a distribution with one schedule plug-in on the path."""

    def add(module: str, text: str) -> None:
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[fullbore.schedules]\n{module}_entry = {module}:FAMILY\n"
        )

    monkeypatch.syspath_prepend(tmp_path)
    return add


def test_a_plugin_is_found_by_every_name_and_listed(install: Install):
    install("plugin_good", GOOD)
    assert {resolve(name) for name in ("sideways", "ScheduleSideWays", "SW")} == {"sideways"}
    assert list(families()) == [*FAMILIES, "sideways"]
    assert "sideways" not in FAMILIES


def test_a_plugin_builds(install: Install):
    install(
        "plugin_builds",
        GOOD.replace('raise ValueError("never built in these tests")', "return make(placement)")
        + "from fullbore.schedules import build as own\n"
        + "def make(where): return own('gpipe', num_ranks=where.num_ranks, num_microbatches=3)\n",
    )
    schedule = build("sideways", num_ranks=2, num_microbatches=3)
    assert schedule.name == "sideways"
    assert schedule == build("gpipe", num_ranks=2, num_microbatches=3)


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        (
            "plugin_raises",
            "import a_module_that_is_missing",
            r"'plugin_raises_entry' \(plugin_raises:FAMILY\) cannot be loaded: ModuleNotFoundError",
        ),
        (
            "plugin_other",
            "FAMILY = 3",
            r"'plugin_other_entry' \(plugin_other:FAMILY\) must be a .*Family; it is a int",
        ),
        (
            "plugin_clash",
            GOOD.replace('"sideways", build', '"GPIPE", build'),
            r"'plugin_clash_entry' .* a name that gpipe has: 'gpipe'",
        ),
    ],
)
def test_a_broken_plugin_is_named(install: Install, module: str, text: str, message: str):
    install(module, text)
    with pytest.raises(ParameterError, match=message):
        families()
    with pytest.raises(ParameterError, match=rf"no family 'something'.*{message}"):
        resolve("something")


def test_a_broken_plugin_hides_no_other_family(install: Install):
    install("plugin_bad", "FAMILY = None")
    install("plugin_fine", GOOD)
    assert resolve("gpipe") == "gpipe"
    assert resolve("sideways") == "sideways"


def test_two_plugins_cannot_share_a_name(install: Install):
    install("plugin_one", GOOD)
    install("plugin_two", GOOD)
    with pytest.raises(ParameterError, match="uses a name that sideways has"):
        families()


def test_no_plugin_is_loaded_for_a_known_name(install: Install):
    install("plugin_untouched", "raise SystemExit('loaded')")
    assert resolve("1F1B") == "1f1b"
