"""Texts that tests compare with files."""

import difflib
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Golden:
    """Compares texts with the files of a folder, or rewrites these with `update`."""

    folder: Path
    update: bool

    def __call__(self, name: str, text: str) -> None:
        path = self.folder / name
        text = text.rstrip("\n") + "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            return
        if not path.exists():
            pytest.fail(f"there is no {path}; --update-golden writes it", pytrace=False)
        expected = path.read_text("utf-8")
        if text == expected:
            return
        diff = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), f"golden/{name}", "this run", lineterm=""
        )
        message = "\n".join([f"{name} differs; --update-golden accepts the change", *diff])
        pytest.fail(message, pytrace=False)
