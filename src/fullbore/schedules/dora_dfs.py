"""DORA, depth first: Monarch's name for interleaved 1F1B."""

from __future__ import annotations

from dataclasses import replace

from fullbore.schedules import interleaved_1f1b

# The order is the same at every size, so there is one function for both names.
FAMILY = replace(
    interleaved_1f1b.FAMILY,
    name="dora_dfs",
    description="interleaved 1f1b, by the name that it has in Monarch",
    source="Monarch, monarch/parallel/pipelining/scheduler.py, github.com/meta-pytorch/monarch",
    aliases=(),
    options={},
)
