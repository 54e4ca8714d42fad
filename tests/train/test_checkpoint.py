"""Checkpoints: whole or not at all, and checked when they are read."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fullbore.errors import ExecutionError, ParameterError
from fullbore.train import checkpoint as module
from fullbore.train.checkpoint import (
    Checkpoint,
    check_writable,
    load_checkpoint,
    pack,
    save_checkpoint,
    unpack,
)
from fullbore.train.model import build_model
from fullbore.train.optimizer import Optimizer
from fullbore.train.settings import ModelSize, Recipe

pytestmark = pytest.mark.torch

RECIPE = Recipe(ModelSize(layers=2, width=8, heads=2, sequence_length=4), seed=4)


@pytest.fixture
def held() -> Checkpoint:
    model = build_model(RECIPE.size, seed=RECIPE.seed)
    optimizer = Optimizer([model], RECIPE)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(0)
    return Checkpoint(RECIPE, 1, "abc", optimizer.weights(), optimizer.state())


def test_what_is_saved_is_loaded(held: Checkpoint, tmp_path: Path):
    path = tmp_path / "x.pt"
    save_checkpoint(path, held)
    found = load_checkpoint(path)
    assert (found.recipe, found.step, found.text) == (RECIPE, 1, "abc")
    assert all(map(torch.equal, found.model.values(), held.model.values()))
    for name, state in held.optimizer.items():
        assert all(torch.equal(found.optimizer[name][key], value) for key, value in state.items())


def test_the_file_holds_the_unsplit_model_s_state_dict(held: Checkpoint, tmp_path: Path):
    path = tmp_path / "x.pt"
    save_checkpoint(path, held)
    content = torch.load(path, weights_only=True)
    model = build_model(RECIPE.size, seed=0)
    model.load_state_dict(content["model"])
    assert all(torch.equal(p, held.model[name]) for name, p in model.named_parameters())


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    held: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "x.pt"
    save_checkpoint(path, held)
    before = path.read_bytes()

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ExecutionError, match=r"--save .*x.pt: cannot be written: .*No space left"):
        save_checkpoint(path, replace(held, step=2))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_usual_permissions(held: Checkpoint, tmp_path: Path):
    save_checkpoint(tmp_path / "x.pt", held)
    (tmp_path / "y").touch()
    assert (tmp_path / "x.pt").stat().st_mode == (tmp_path / "y").stat().st_mode


def change_a_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"hello world",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-10],
        change_a_bit,
    ],
    ids=["empty", "text", "cut in the middle", "cut at the end", "a bit changed"],
)
def test_a_damaged_file_is_refused(held: Checkpoint, tmp_path: Path, damage):
    path = tmp_path / "x.pt"
    save_checkpoint(path, held)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ParameterError, match=r"--resume .*x.pt: .*damaged"):
        load_checkpoint(path)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ParameterError, match="nowhere: cannot be read: No such file"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ParameterError, match="cannot be read: Is a directory"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format="other"), "not a checkpoint of `fullbore train`"),
        (lambda c: c.update(version=99), "version 99 of the format; .* reads version 1"),
        (lambda c: c.pop("step"), "not complete: 'step'"),
        (lambda c: c["recipe"].update(color="red"), "not complete: .*color"),
        (lambda c: c["recipe"]["size"].update(width=16), "not complete: .*shape"),
        (lambda c: c["recipe"]["size"].update(layers=3), "not complete: .*this size"),
        (lambda c: c["model"].pop("head.weight"), "not complete: .*this size"),
        (lambda c: c["optimizer"]["head.weight"].pop("exp_avg"), "not complete: head.weight"),
    ],
    ids=["format", "version", "step", "recipe", "width", "layers", "model", "optimizer"],
)
def test_a_file_of_something_else_is_refused(held, tmp_path: Path, change, message: str):
    path = tmp_path / "x.pt"
    save_checkpoint(path, held)
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)
    with pytest.raises(ParameterError, match=message):
        load_checkpoint(path)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path):
    path = tmp_path / "x.pt"
    torch.save({"format": module.FORMAT, "run": print}, path)
    with pytest.raises(ParameterError, match="not a checkpoint"):
        load_checkpoint(path)


def test_whether_a_place_can_be_written_is_known_beforehand(tmp_path: Path):
    check_writable(tmp_path / "x.pt")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ParameterError, match="No such file or directory"):
        check_writable(tmp_path / "nowhere" / "x.pt")
    with pytest.raises(ParameterError, match="is a folder"):
        check_writable(tmp_path)


def test_only_a_checkpoint_is_written_over(held: Checkpoint, tmp_path: Path):
    save_checkpoint(tmp_path / "x.pt", held)
    check_writable(tmp_path / "x.pt")
    (tmp_path / "thesis.tex").write_text("for years")
    with pytest.raises(ParameterError, match=r"thesis.tex: .* no checkpoint"):
        check_writable(tmp_path / "thesis.tex")


def test_packed_tensors_are_themselves_again():
    found = unpack(pack({"a": torch.arange(3), "b": {"c": torch.tensor(2)}}))
    assert found["a"].tolist() == [0, 1, 2]
    assert found["b"]["c"] == 2
