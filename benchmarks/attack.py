"""Attack what attnc claims: heads, networks, blocks, certificates for given inputs, learners, altered models. Zero slack.

python benchmarks/attack.py --minutes 30                     everything, and a table
python benchmarks/attack.py --minutes 5 --only altered       one kind
python benchmarks/attack.py --only altered --case "gpt2: hook on the activation"     one altered model
python benchmarks/attack.py --only altered --list            their names
The exit status is 1 where a claim was false, a case crashed with an error that is not attnc's, or an honest model was refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]


def main() -> int:
    from pages import one_thread, progress

    one_thread()
    import torch
    from attacks.run import altered_cases, attack
    from attacks.tally import KINDS

    options = _options(KINDS)
    torch.set_num_threads(1)
    if options.list:
        print("\n".join(altered_cases()))
        return 0
    if options.case is not None and options.case not in altered_cases():
        raise SystemExit(f"there is no altered model {options.case!r}: --list shows their names")
    kinds = (options.only,) if options.only else KINDS
    tally = attack(kinds, options.minutes, options.seed, progress, options.case)
    progress("")
    print("\n".join([*tally.problems(), "", tally.table()]))
    if options.json is not None:
        tally.write(options.json, seed=options.seed, minutes=options.minutes)
    return 0 if tally.passed else 1


def _options(kinds: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to attack, all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=kinds, help="one kind alone")
    parser.add_argument("--case", help="one altered model alone, by its name")
    parser.add_argument("--list", action="store_true", help="the names of the altered models")
    parser.add_argument("--json", type=Path, help="a file for all outcomes")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
