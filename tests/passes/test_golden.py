"""What each pass does to a small schedule."""

import pytest
from tests.goldens import Golden
from tests.passes.samples import lines

from fullbore.ir import Schedule
from fullbore.passes import PASSES, parse_pipeline
from fullbore.schedules import build

# A schedule, what is done to it first, and the pass with the options to show.
CASES = {
    "merge_backward": ("zbv", "", "merge_backward"),
    "split_backward": ("dualpipev", "", "split_backward"),
    "fuse_overlap": ("1f1b", "", "fuse_overlap"),
    "expand_overlap": ("dualpipev", "", "expand_overlap"),
    "forward_only": (
        "zbv",
        "insert_unshard{max_active_stages=1},insert_communication",
        "forward_only",
    ),
    "insert_unshard": ("interleaved_1f1b", "", "insert_unshard{max_active_stages=1}"),
    "insert_reduce_grad": ("interleaved_zero_bubble", "", "insert_reduce_grad"),
    "insert_communication": ("dualpipev", "", "insert_communication"),
    "sink_receives": ("interleaved_1f1b", "insert_communication", "sink_receives"),
    "batch_communication": ("1f1b", "insert_communication,sink_receives", "batch_communication"),
    "unbatch_communication": (
        "1f1b",
        "insert_communication,sink_receives,batch_communication",
        "unbatch_communication",
    ),
}


def section(title: str, found: Schedule) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines(found))]


@pytest.mark.parametrize("name", [*PASSES])
def test_golden(name: str, golden: Golden):
    family, first, shown = CASES[name]
    before = build(family, num_ranks=2, num_microbatches=4)
    for each in parse_pipeline(first):
        before = each(before)
    (last,) = parse_pipeline(shown)
    title = ",".join(filter(None, (family, first)))
    text = [*section(title, before), *section(str(last), last(before))]
    golden(f"passes/{name}.txt", "\n".join(text))
