"""Examples in the help of a command."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """An epilog that shows command lines, one a line."""
    # click leaves the line breaks of a paragraph alone that begins with a backspace.
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
