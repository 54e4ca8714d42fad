"""The text, and what each step and each evaluation sees of it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fullbore.errors import ParameterError
from fullbore.train.data import EVAL_BATCHES, load_text
from fullbore.train.settings import ModelSize, Recipe

pytestmark = pytest.mark.torch

RECIPE = Recipe(ModelSize(layers=1, width=2, heads=1, sequence_length=4), batch_size=3, seed=5)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """A text whose bytes tell where they stand."""
    return write(tmp_path / "text", bytes(range(200)))


def test_a_file_is_read_as_it_is(counting: Path):
    text = load_text(counting, sequence_length=4)
    assert bytes(text.data) == bytes(range(200))
    assert text.num_train == 190


def test_a_folder_is_read_in_the_order_of_its_paths_without_hidden_and_binary_files(tmp_path: Path):
    write(tmp_path / "b.txt", b"bbbbbb")
    write(tmp_path / "a" / "z.txt", b"zzzzzz")
    write(tmp_path / ".git" / "x", b"no")
    write(tmp_path / ".hidden", b"no")
    write(tmp_path / "c.bin", b"no\0no")
    write(tmp_path / "empty", b"")
    text = load_text(tmp_path, sequence_length=2)
    assert bytes(text.data) == b"zzzzzz\nbbbbbb\n"
    assert text.skipped == 1


def test_files_that_cannot_be_read_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "a", b"aaaaaaaaaaaa")
    write(tmp_path / "b", b"b")
    original = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "b":
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert load_text(tmp_path, sequence_length=2).skipped == 1
    with pytest.raises(ParameterError, match="Permission denied"):
        load_text(tmp_path / "b", sequence_length=2)


def test_the_default_is_the_source_of_the_standard_library():
    text = load_text(None, sequence_length=128)
    assert len(text.data) > 5e6
    assert b"class OrderedDict(dict):" in text.data
    assert text.digest() == load_text(None, sequence_length=128).digest()


def test_too_little_text_is_refused(tmp_path: Path):
    path = write(tmp_path / "text", b"123456789")
    with pytest.raises(ParameterError, match=r"text: 9 bytes are too few .* at least 10 are"):
        load_text(path, sequence_length=4)


def test_an_empty_file_or_folder_is_refused(tmp_path: Path):
    with pytest.raises(ParameterError, match="there is no text in it"):
        load_text(tmp_path, sequence_length=4)
    with pytest.raises(ParameterError, match="empty: there is no text in it"):
        load_text(write(tmp_path / "empty", b""), sequence_length=4)


def test_as_little_text_as_the_message_asks_for_is_enough(tmp_path: Path):
    text = load_text(write(tmp_path / "text", bytes(range(10))), sequence_length=4)
    inputs, target = text.batch(RECIPE, 0)
    assert inputs.tolist() == [[0, 1, 2, 3]] * 3
    assert target.tolist() == [[1, 2, 3, 4]] * 3
    assert {tuple(row) for x, _ in text.held_out(RECIPE) for row in x.tolist()} == {(5, 6, 7, 8)}


def test_a_missing_text_is_refused(tmp_path: Path):
    with pytest.raises(ParameterError, match="nowhere: cannot be read: No such file"):
        load_text(tmp_path / "nowhere", sequence_length=4)


def test_a_step_s_batch_depends_on_seed_and_step_alone(counting: Path):
    text = load_text(counting, sequence_length=4)
    before = [text.batch(RECIPE, step) for step in range(5)]
    again = [text.batch(RECIPE, step) for step in (4, 3, 2, 1, 0)][::-1]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(before, again, strict=True))
    assert len({tuple(x[:, 0].tolist()) for x, _ in before}) == 5
    other = text.batch(replace(RECIPE, seed=6), 0)
    assert not torch.equal(other[0], before[0][0])


def test_a_target_is_the_next_byte(counting: Path):
    inputs, target = load_text(counting, sequence_length=4).batch(RECIPE, 7)
    assert inputs.shape == target.shape == (3, 4)
    assert inputs.dtype == torch.int64
    assert torch.equal(target, inputs + 1)


def test_training_and_evaluation_share_no_byte(counting: Path):
    text = load_text(counting, sequence_length=4)
    trained = {
        byte
        for step in range(300)
        for x in text.batch(RECIPE, step)
        for byte in x.flatten().tolist()
    }
    batches = list(text.held_out(RECIPE))
    held_out = {byte for batch in batches for x in batch for byte in x.flatten().tolist()}
    assert trained == set(range(190))
    assert held_out == set(range(190, 200))
    assert [len(x) for x, _ in batches] == [3] * EVAL_BATCHES
