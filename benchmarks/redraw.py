"""How long the explorer's panels take to redraw in Chromium: `python benchmarks/redraw.py`.

The time is that of the script that follows a change of a control, by performance.now(); CPU is the processor time of the page's
process for one redraw, which other programs do not inflate. The frames are those that requestAnimationFrame gives while the
panel redraws in every one of them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "extensions"))
sys.path.insert(0, str(ROOT / "docs" / "explorer"))

import bundle  # noqa: E402
import chromium  # noqa: E402

MOVES = {  # what happens → panel, control, the values that it takes in turn
    "one head, s": ("head", "head-s", [i / 6 - 8 for i in range(97)]),
    "one head, 24 anchors, sharpness": ("head", "head-sharpness", [i / 24 - 2 for i in range(97)]),
    "two layers, turn": ("surface", "surface-turn", list(range(0, 360, 4))),
    "two layers, x": ("surface", "surface-x1", [i / 48 - 1 for i in range(97)]),
    "two layers, other network": (
        "surface",
        "surface-network",
        ["grid-110", "lattice-20", "lattice-49", "lattice-81"],
    ),
    "learner, step": ("learner", "learner-step", list(range(41))),
    "transformer, block": ("transformer", "transformer-block", list(range(1, 7))),
    "norm": ("norm", "norm-square", [i / 8 - 6 for i in range(97)]),
    "token program, other program": ("tokens", "tokens-program", ["sort", "dyck-2", "parity", "reverse"]),
}
COUNT, WARM = 200, 30
TIMES = """([name, values, warm, count]) => {
  const input = document.querySelector(`[data-control="${name}"]`), times = [];
  const event = input.tagName === "SELECT" ? "change" : "input";
  for (let i = 0; i < warm + count; i++) {
    input.value = values[i % values.length];
    const before = performance.now();
    input.dispatchEvent(new Event(event));
    if (i >= warm) times.push(performance.now() - before);
  }
  return times.sort((a, b) => a - b);
}"""
FRAMES = """(panel) => new Promise((done) => {
  const first = performance.now();
  let count = 0;
  const next = () => {
    attncExplorer.panels[panel].draw();
    count += 1;
    if (performance.now() - first < 1000) requestAnimationFrame(next);
    else done((1000 * count) / (performance.now() - first));
  };
  requestAnimationFrame(next);
})"""


def processor_time(session: Any) -> float:
    """Seconds that the processes of pages have used."""
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    return float(sum(process["cpuTime"] for process in found if process["type"] == "renderer"))


def main() -> None:
    if (missing := chromium.why_missing()) is not None:
        raise SystemExit(missing)
    path = Path(tempfile.mkdtemp()) / "explorer.html"
    path.write_text(bundle.standalone(), encoding="utf-8")
    with chromium.browser() as browser:
        session = browser.new_browser_cdp_session()
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(path.as_uri())
        ready = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        print(f"page: {path.stat().st_size:,} bytes, all panels drawn after {ready:.0f} ms\n")
        print(f"{'':34}  median ms   95 % ms   largest ms   CPU ms   frames/s")
        for name, (panel, control, values) in MOVES.items():
            if "24" in name:
                page.select_option('[data-control="head-anchors"]', "24")
            before = processor_time(session)
            times = page.evaluate(TIMES, [control, values, WARM, COUNT])
            used = 1000 * (processor_time(session) - before) / (WARM + COUNT)
            frames = page.evaluate(FRAMES, panel)
            middle, most = times[len(times) // 2], times[int(0.95 * len(times))]
            print(f"{name:34} {middle:10.2f} {most:9.2f} {times[-1]:12.2f} {used:8.2f} {frames:10.1f}")


if __name__ == "__main__":
    main()
