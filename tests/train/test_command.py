"""`fullbore train`, all ranks in this process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import fullbore as fb
from fullbore.cli import main
from fullbore.runtime import Pipeline
from fullbore.sim import load_costs, load_profile
from fullbore.train import stages
from fullbore.train.model import loss_fn

pytestmark = pytest.mark.torch

TINY = ["--width", 16, "--heads", 2, "--sequence-length", 16, "--batch-size", 4, "--lr", 0.01]
HERE = ["--transport", "local"]
SOURCE = Path(__file__).parent


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(*options: object) -> Result:
    arguments = ["train", *HERE, "--text", str(SOURCE), *map(str, options)]
    return CliRunner().invoke(main, arguments)


def start(schedule: str, ranks: int, *options: object) -> dict[str, Any]:
    """A new run of a tiny model; its summary."""
    result = train(
        "-p", ranks, "-m", 4, "--layers", 8, *TINY, "--schedule", schedule, *options, "--json"
    )
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def test_the_loss_falls_and_everything_equals_the_unpipelined_model():
    facts = start("zbv", 2, "--steps", 20, "--check")
    assert facts["outcome"] == "finished"
    assert facts["last_loss"] < facts["first_loss"] - 1
    assert facts["held_out_loss"] < facts["first_loss"] - 1
    # 8 blocks of 11 parameters, embedding 2, norm 2, head 1; 4 losses.
    assert facts["check"]["compared"] == 20 * (8 * 11 + 5 + 4)
    assert facts["check"]["largest_difference"] == 0
    assert facts["check"]["equal"]


@pytest.mark.parametrize(
    ("schedule", "ranks"),
    [
        ("gpipe", 1),
        ("1f1b", 3),
        ("interleaved_1f1b", 2),
        ("interleaved_zero_bubble", 2),
        ("dualpipev", 2),
    ],
)
def test_every_family_trains_the_same_model(schedule: str, ranks: int):
    facts = start(schedule, ranks, "--steps", 4, "--check")
    assert facts["check"]["equal"]
    assert facts["last_loss"] == start("zbv", 1, "--steps", 4)["last_loss"]


def test_another_order_of_accumulation_differs_by_rounding_only():
    facts = start("looped_bfs", 2, "--steps", 10, "--check")
    check = facts["check"]
    assert not check["equal"]
    assert not check["wrong"]
    assert 0 < check["relative"] < 1e-5


def test_uneven_microbatches_are_compared_too():
    facts = start("1f1b", 2, "--steps", 3, "--batch-size", 5, "--check")
    assert facts["check"]["equal"]


def test_a_schedule_from_a_file(tmp_path: Path):
    path = tmp_path / "mine.csv"
    fb.save(fb.build("1f1b", num_ranks=2, num_microbatches=4), path)
    result = train("--schedule", path, "--steps", 2, "--layers", 2, *TINY, "--check", "--json")
    facts = json.loads(result.stdout)
    assert facts["check"]["equal"]
    assert (facts["schedule"], facts["num_ranks"]) == (str(path), 2)


def test_an_invalid_file_is_named(tmp_path: Path):
    path = tmp_path / "twice.csv"
    path.write_text("0F0,0F0,0B0\n")
    result = train("--schedule", path)
    assert result.exit_code == 1
    assert f"{path} is not valid: 1 finding(s)" in result.stderr


def test_a_wrong_pipeline_is_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def wrong(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 1.01 * loss_fn(output, target)

    monkeypatch.setattr(stages, "loss_fn", wrong)
    result = train("-m", 2, *TINY, "--steps", 3, "--check", "--save", tmp_path / "x.pt")
    assert result.exit_code == 1
    assert "step 1: the pipeline differs from the unpipelined model" in result.stderr
    assert not (tmp_path / "x.pt").exists()


def test_one_wrong_gradient_is_named(monkeypatch: pytest.MonkeyPatch):
    def step_and_spoil(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
        out = step(pipeline, *args, **kwargs)
        weight = pipeline._stages[1].module.get_parameter("blocks.2.mlp.0.weight")
        weight.grad[3, 4] = torch.nextafter(weight.grad[3, 4], torch.tensor(1.0))
        return out

    step = Pipeline.step
    monkeypatch.setattr(Pipeline, "step", step_and_spoil)
    result = train("-m", 2, *TINY, "--steps", 3, "--check", "--json")
    assert result.exit_code == 1
    assert "step 1" in result.stderr
    assert "blocks.2.mlp.0.weight" in result.stderr
    facts = json.loads(result.stdout)
    assert (facts["outcome"], facts["last_step"]) == ("mismatch", 1)
    assert facts["check"]["where"] == "blocks.2.mlp.0.weight"


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path):
    options = ["-m", 2, *TINY[:-1], "1e30", "--steps", 50, "--save", tmp_path / "x.pt", "--json"]
    result = train(*options)
    assert result.exit_code == 1
    assert "try a smaller --lr" in result.stderr
    facts = json.loads(result.stdout)
    assert (facts["outcome"], facts["last_loss"]) == ("diverged", None)
    assert facts["last_step"] < 50
    assert not (tmp_path / "x.pt").exists()


def content(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["model"].keys() == other["model"].keys()
    for name, weight in one["model"].items():
        assert torch.equal(weight, other["model"][name]), name
        for key, value in one["optimizer"][name].items():
            assert torch.equal(value, other["optimizer"][name][key]), (name, key)


def test_a_run_goes_on_under_another_schedule_as_if_nothing_had_happened(tmp_path: Path):
    whole, part = tmp_path / "whole.pt", tmp_path / "part.pt"
    uninterrupted = start("gpipe", 1, "--steps", 7, "--save", whole)
    start("zbv", 2, "--steps", 3, "--save", part)
    middle = train("--resume", part, "--save", part, "-m", 4, "--schedule", "1f1b", "-p", 4,
                   "--steps", 5, "--check", "--json")  # fmt: skip
    assert json.loads(middle.stdout)["first_step"] == 4
    assert json.loads(middle.stdout)["check"]["equal"]
    resumed = train("--resume", part, "--save", part, "-m", 4, "--schedule", "dualpipev",
                    "--steps", 7, "--json")  # fmt: skip
    facts = json.loads(resumed.stdout)
    assert (facts["first_step"], facts["last_step"]) == (6, 7)
    assert facts["last_loss"] == uninterrupted["last_loss"]
    assert facts["held_out_loss"] == uninterrupted["held_out_loss"]
    assert content(part)["step"] == content(whole)["step"] == 7
    assert_same_state(content(part), content(whole))


def test_checkpoints_are_written_every_so_often(tmp_path: Path):
    path = tmp_path / "x.pt"
    result = train("-m", 2, *TINY, "--steps", 5, "--save", path, "--save-every", 2)
    notes = [line for line in result.stderr.splitlines() if "saved" in line]
    assert notes == [f"saved {path} after step {step}" for step in (2, 4, 5)]
    assert content(path)["step"] == 5


def test_another_text_is_remarked_upon(tmp_path: Path):
    path = tmp_path / "x.pt"
    train("-m", 2, *TINY, "--steps", 1, "--save", path)
    same = train("-m", 2, "--steps", 2, "--resume", path)
    other = train("-m", 2, "--steps", 2, "--resume", path, "--text", SOURCE / "test_command.py")
    assert "another text" not in same.stderr
    assert "another text" in other.stderr
    assert other.exit_code == 0


def test_a_finished_run_has_nothing_to_resume(tmp_path: Path):
    path = tmp_path / "x.pt"
    train("-m", 2, *TINY, "--steps", 2, "--save", path)
    result = train("-m", 2, "--steps", 2, "--resume", path)
    assert result.exit_code == 2
    assert "--steps is 2, and the checkpoint has 2 behind it" in result.stderr


def test_evaluation_every_so_often_changes_nothing():
    assert (
        start("zbv", 2, "--steps", 4, "--eval-every", 1)["last_loss"]
        == start("zbv", 2, "--steps", 4)["last_loss"]
    )


def test_a_profile_of_the_latest_steps_is_written(tmp_path: Path):
    folder = tmp_path / "out" / "profile"
    facts = start("interleaved_zero_bubble", 2, "--steps", 3, "--profile", folder)
    names = ["costs.json", "profile.json", "report.txt", "step.html", "step.trace.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    profile = load_profile(folder / "profile.json")
    assert len(profile.steps) == 3
    costs = load_costs(folder / "costs.json").table(profile.schedule.placement)
    assert min(*costs.F, *costs.I, *costs.W) > 0
    assert min(*costs.activation_bytes, *costs.kept_bytes, *costs.static_bytes) > 0
    assert "0F " in (folder / "report.txt").read_text("utf-8")
    assert facts["step_seconds"]["predicted"] > 0
    assert json.loads((folder / "step.trace.json").read_text("utf-8"))["traceEvents"]


def test_a_profile_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path, message in (
        (tmp_path / "file" / "out", "file/out: cannot be written: Not a directory"),
        (tmp_path / "file", "file: is a file; give the name of a folder"),
    ):
        result = train("-m", 2, *TINY, "--steps", 1, "--profile", path)
        assert result.exit_code == 2
        assert message in result.stderr
        assert "step" not in result.stdout


def test_the_summary_in_words_ends_with_the_loss():
    result = train("-m", 2, *TINY, "--steps", 2, "--check")
    work, check, loss = result.stdout.splitlines()
    assert work.startswith("zbv_zero_bubble: 2 ranks, 4 stages, 2 microbatches")
    assert "equal the unpipelined model's, bit for bit (largest difference 0)" in check
    assert loss.startswith("loss: 5.5")
    assert "at step 2" in loss
    assert result.stderr.splitlines()[0] == "starting zbv_zero_bubble on 2 ranks"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schedule", "nonsense"], "there is no family 'nonsense'"),
        (["--layers", 3], "4 stages, so the model needs at least 4 layers; it has 3"),
        (["--text", "/nowhere"], "/nowhere: cannot be read"),
        (["--sequence-length", 10**9], "bytes are too few"),
        (["--save", "/nowhere/x.pt"], "cannot be written"),
        (["--save-every", 1], "--save-every needs --save"),
        (["--resume", "/nowhere/x.pt"], "cannot be read"),
        (["--resume", __file__], "not a checkpoint"),
        (["--batch-size", 1], "at least the number of microbatches, 8; got 1"),
        (["--lr", "-1"], "must be a positive number"),
        (["--steps", 0], "not in the range"),
    ],
)
def test_nonsense_is_refused_before_anything_starts(options: list[object], message: str):
    result = train(*options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "starting" not in result.stderr
    assert not result.stdout


def test_help_has_examples_and_defaults():
    result = train("--help")
    assert result.exit_code == 0
    assert "fullbore train --schedule zbv --ranks 2 --check" in result.stdout
    assert "[default: 128]" in result.stdout
