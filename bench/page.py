"""How long the interactive page takes to draw a frame while one zooms, in headless Chromium.

    .venv/bin/python -m bench.page [--ranks 16 --stages-per-rank 4 --microbatches 105]

Zooms from the whole step down to a thousandth of it and back, one frame a step, and times each:
drawing, and drawing with rasterisation, which reading a pixel back forces; and the time from one
frame to the next. The browser has no GPU. What else the machine does shows in single frames, so the
last column takes each frame's quietest round before it looks for the longest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from tests.browser import Browser

from fullbore.schedules import build
from fullbore.sim import UniformCosts
from fullbore.view.page import render_page
from fullbore.view.panel import simulated

MEASURE = """
new Promise((done) => {
  const page = window.fullbore;
  const times = { draw: [], painted: [], interval: [] };
  const frames = 120;
  let last = performance.now();
  page.fit();
  const frame = (n) => {
    const start = performance.now();
    if (n > 0) times.interval.push(start - last);
    last = start;
    page.zoom(n < frames / 2 ? 0.891 : 1 / 0.891, page.length * 0.37);
    page.draw();
    times.draw.push(performance.now() - start);
    for (const chart of page.charts) chart.context.getImageData(0, 0, 1, 1);
    times.painted.push(performance.now() - start);
    if (n + 1 < frames) requestAnimationFrame(() => frame(n + 1));
    else done(times);
  };
  requestAnimationFrame(() => frame(0));
})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--family", default="interleaved_zero_bubble")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--stages-per-rank", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=105)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    schedule = build(
        options.family,
        num_ranks=options.ranks,
        num_microbatches=options.microbatches,
        stages_per_rank=options.stages_per_rank,
    )
    costs = UniformCosts(F=1, I=1.1, W=0.9, latency=0.1, activation_bytes=2**30)
    page = render_page([simulated(schedule, costs)])
    print(f"{schedule.num_actions} actions; {len(page) / 1e6:.2f} MB of HTML")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        path.write_text(page, "utf-8")
        with Browser(Path(folder, "profile"), size=(1600, 1000)) as browser:
            browser.open(path.as_uri(), ready="window.fullbore")
            version = browser.call("Browser.getVersion")["product"]
            size = browser.evaluate("[innerWidth, innerHeight]")
            print(f"{version}, {size[0]} x {size[1]} pixels, no GPU")
            print("| shown | ms | median | 95 % | longest | longest, quietest round |")
            print("|---|---|---|---|---|---|")
            for toggles in ([], ["critical"]):
                for name in toggles:
                    browser.evaluate(f"window.fullbore.toggle({json.dumps(name)})")
                rounds = [browser.evaluate(MEASURE) for _ in range(options.rounds)]
                for kind in rounds[0]:
                    found = sorted(time for times in rounds for time in times[kind])
                    frames = zip(*(times[kind] for times in rounds), strict=True)
                    numbers = (
                        *(statistics.median(found), found[int(len(found) * 0.95)], found[-1]),
                        max(map(min, frames)),
                    )
                    row = " | ".join(f"{number:.1f}" for number in numbers)
                    print(f"| {' '.join(toggles) or 'all'} | {kind} | {row} |")


if __name__ == "__main__":
    main()
