"""The numbers of the explorer, docs/explorer/data.json, from objects that attnc builds.

    python benchmarks/explorer.py            writes the file
    python benchmarks/explorer.py --check    builds everything again and says which parts differ

Floating-point numbers are written with all their digits, so the browser reads the same doubles that Python holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pages import ROOT, one_thread, progress, write

one_thread()

from explorer_parts import heads, learners, token_programs, two_tokens  # noqa: E402
from explorer_transformer import transformer  # noqa: E402

PATH = ROOT / "docs" / "explorer" / "data.json"
PARTS: dict[str, Callable[[], Any]] = {
    "heads": heads,
    "two_tokens": two_tokens,
    "learners": learners,
    "transformer": transformer,
    "token_programs": token_programs,
}


def as_text(parts: dict[str, Any]) -> str:
    """JSON with a line for each part, without spaces."""
    lines = [
        f'"{name}": {json.dumps(part, separators=(",", ":"), ensure_ascii=False, allow_nan=False)}'
        for name, part in parts.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    made = {}
    for name, build in PARTS.items():
        progress(f"explorer: {name}")
        made[name] = json.loads(json.dumps(build()))
    if "--check" not in sys.argv[1:]:
        write(PATH, as_text(made))
        print(f"{PATH.relative_to(ROOT)}: {PATH.stat().st_size:,} bytes")
        return
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    different = [name for name in PARTS if stored.get(name) != made[name]]
    print(f"different: {', '.join(different)}" if different else "all parts are the same")
    raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
