"""The package's metadata, and what the commands of the Makefile rest on."""

import re
import tomllib
from importlib.metadata import entry_points, metadata, requires, version
from pathlib import Path

import pytest

import fullbore
from tests.conftest import NEEDS_TORCH, NoTorch, is_left_out, marks_of_file

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PINS = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def test_installed_metadata():
    assert version("fullbore") == fullbore.__version__
    assert metadata("fullbore")["License-Expression"] == "BSD-3-Clause"
    (script,) = (e for e in entry_points(group="console_scripts") if e.name == "fullbore")
    assert script.value == "fullbore.cli:main"


def test_only_the_command_line_s_libraries_are_required():
    core = {re.split(r"\W", text)[0] for text in requires("fullbore") or () if "extra" not in text}
    assert core == {"click", "rich"}


def test_every_tool_and_dependency_is_pinned():
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[\[<>=]", text)[0] for group in groups for text in group} - {"fullbore"}
    assert names <= PINS.keys()


def test_the_lower_bound_of_torch_is_what_ci_runs():
    (bound,) = PROJECT["project"]["optional-dependencies"]["torch"]
    assert PINS["torch"].startswith(re.findall(r">=([\d.]+)", bound)[0])


def test_every_pip_install_is_constrained():
    text = (ROOT / "Makefile").read_text() + (ROOT / "README.md").read_text()
    installs = [line for line in text.splitlines() if re.search(r"pip install .*\[dev\]", line)]
    assert installs
    assert all("-c constraints.txt" in line for line in installs)


def test_marks_of_a_file_are_read_without_importing_it():
    assert marks_of_file("import torch\npytestmark = pytest.mark.torch\n") == {"torch"}
    several = "pytestmark = [\n    pytest.mark.gloo,\n    pytest.mark.slow,\n]\n"
    assert marks_of_file(several) == {"gloo", "slow"}
    assert marks_of_file("@pytest.mark.torch\ndef test_x(): pass\n") == set()


def test_a_torch_free_run_leaves_out_files_that_need_torch(tmp_path: Path):
    path = tmp_path / "test_x.py"
    path.write_text("import torch\n\npytestmark = pytest.mark.torch\n")
    assert is_left_out(path, "not gpu and not torch")
    assert not is_left_out(path, "not gpu")
    path.write_text("import torch\n")
    assert not is_left_out(path, "not torch")


def test_a_torch_free_run_refuses_to_import_torch():
    with pytest.raises(ModuleNotFoundError, match="mark"):
        NoTorch().find_spec("torch")
    assert NoTorch().find_spec("json") is None


def test_marks_that_need_torch_are_registered():
    registered = {text.partition(":")[0] for text in PROJECT["tool"]["pytest"]["markers"]}
    assert registered >= NEEDS_TORCH
