"""Whatever the command line is given, it ends with 0, 1 or 2, and with a message for 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given, note
from hypothesis import strategies as st
from tests.adversarial.budget import budget

from fullbore.cli import main
from fullbore.formats import save
from fullbore.passes import lower
from fullbore.schedules import build

pytestmark = pytest.mark.slow

FILES = {
    "a.csv": "0F0,0B0\n1F0,1B0\n",
    "dead.csv": "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
    "junk.csv": "0F0,junk\n",
    "twice.csv": "0F0,0F0\n",
    "forward.csv": "0F0,0F1\n1F0,1F1\n",
    "monarch.csv": "0F0,0BW0\n",
    "far.csv": "0F999999999,0B999999999\n",
    "many.json": '{"fullbore":1,"programs":{"0":["0F0"]},"num_microbatches":1000000000000}',
    "none.json": '{"fullbore":1,"programs":{"0":[]},"placement":[0],"num_microbatches":1}',
    **dict.fromkeys(("empty.csv", "empty.json", "empty.txt", "other.xlsx"), ""),
}
FAMILIES = ("1f1b", "zbv", "gpipe", "forward_only", "DualPipeV")
SOURCES = (
    *(*FILES, "bytes.csv", "bytes.json", "low.csv", "low.json", "folder.csv", "missing.csv"),
    *(*FAMILIES, "nosuch", "", "-", ".", ".csv", "/dev/null", "\udcff.csv"),
)
TARGETS = ("out.csv", "out.json", "out.txt", "folder.csv", "no/such.csv", "", "x.y", "/dev/full")
PLACEMENTS = ("0", "0,1", "1,0", "0,0", "0,2", "", "x", "0,,1", "-1", "999999999", "1e9")
NUMBERS = ("1", "2", "3", "7", "0", "-1", "x", "3001", "99999999999999999999")
READING = {
    "--ranks": NUMBERS,
    "--microbatches": NUMBERS,
    "--stages-per-rank": NUMBERS,
    "--placement": PLACEMENTS,
    "--dialect": ("torch", "monarch", "x"),
}
WRITING = {"--format": ("csv", "json", "txt", "x"), "--to-dialect": ("torch", "monarch")}
PIPELINES = (
    *("", ",", "x", "a{", "{}", "merge_backward", "split_backward,insert_communication"),
    *("insert_communication,insert_communication", "insert_unshard{max_active_stages=0}"),
)
FLAG = ("",)
VERBS: dict[str, tuple[int, dict[str, tuple[str, ...]]]] = {
    "list": (0, {"--json": FLAG}),
    "show": (
        1,
        {
            **READING,
            **dict.fromkeys(("--json", "--lowered", "--no-lowered", "--compact", "--color"), FLAG),
            "--width": NUMBERS,
        },
    ),
    "verify": (1, {**READING, "--json": FLAG, "--model": ("per_edge", "buffered", "x")}),
    "lower": (
        1,
        {
            **READING,
            **WRITING,
            **dict.fromkeys(("--shard", "--sink", "--batch"), FLAG),
            "--max-active-stages": NUMBERS,
            "--pipeline": PIPELINES,
            "--output": TARGETS,
        },
    ),
    "convert": (
        2,
        {
            **WRITING,
            "--from-dialect": ("torch", "monarch"),
            "--placement": PLACEMENTS,
            "--microbatches": NUMBERS,
        },
    ),
    "diff": (2, {**READING, "--json": FLAG}),
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The folder that the commands run in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("cli"))
        for name, text in FILES.items():
            Path(name).write_text(text)
        for name in ("bytes.csv", "bytes.json"):
            Path(name).write_bytes(bytes(range(256)))
        Path("folder.csv").mkdir()
        for name in ("low.csv", "low.json"):
            save(lower(build("zbv", num_ranks=2, num_microbatches=3), batch=True), name)
        yield


def drawn(random: Random) -> list[str]:
    verb = random.choice(sorted(VERBS))
    count, options = VERBS[verb]
    arguments = [verb, *(random.choice(SOURCES) for _ in range(count))]
    if verb == "convert":
        arguments[-1] = random.choice(TARGETS)
    for option in random.sample(sorted(options), min(len(options), random.choice((0, 1, 2, 3)))):
        arguments += [option, *filter(None, [random.choice(options[option])])]
    if random.randrange(2) and not set(arguments).isdisjoint(FAMILIES):
        arguments += ["-p", "2", "-m", "3"]
    return arguments


@budget()
@given(st.randoms(use_true_random=True))
def test_every_command_line_ends_well(random: Random) -> None:
    arguments = drawn(random)
    note(" ".join(map(repr, arguments)))
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        assert result.stdout == ""
        assert 0 < len(result.stderr) < 3000
