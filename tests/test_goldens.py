from pathlib import Path

import pytest

from tests.goldens import Golden


def test_an_equal_text_passes(tmp_path: Path):
    (tmp_path / "a.txt").write_text("0F0\n0B0\n")
    Golden(tmp_path, update=False)("a.txt", "0F0\n0B0")


def test_a_different_text_fails_with_its_diff(tmp_path: Path):
    (tmp_path / "a.txt").write_text("0F0\n0B0\n")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)--update-golden.*-0B0\n\+0I0"):
        Golden(tmp_path, update=False)("a.txt", "0F0\n0I0\n")
    assert (tmp_path / "a.txt").read_text() == "0F0\n0B0\n"


def test_a_missing_file_fails(tmp_path: Path):
    with pytest.raises(pytest.fail.Exception, match="--update-golden writes it"):
        Golden(tmp_path, update=False)("a.txt", "0F0")


def test_update_writes_the_file(tmp_path: Path):
    Golden(tmp_path, update=True)("passes/a.txt", "0F0")
    assert (tmp_path / "passes" / "a.txt").read_text() == "0F0\n"


def test_the_fixture_compares_with_the_projects_files(golden: Golden, request):
    assert golden.folder == request.config.rootpath / "tests" / "golden"
    assert golden.update is request.config.getoption("--update-golden")
