"""One run: every kind of attack gets its share of the time, and every altered model its turn."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from attacks import altered, blocks, compiled, families, heads, inputs, learners, made, networks
from attacks.tally import Outcome, Tally

Say = Callable[[str], None]
SHARES = {
    "heads": 0.2,
    "networks": 0.12,
    "blocks": 0.12,
    "families": 0.1,
    "inputs": 0.06,
    "learners": 0.06,
    "altered": 0.34,
}
SEEDED = {
    "heads": heads.attack,
    "networks": networks.attack,
    "blocks": blocks.attack,
    "families": families.attack,
    "inputs": inputs.attack,
    "learners": learners.attack,
}


def altered_cases() -> dict[str, Callable[[int], Outcome]]:
    """Every altered model, by its name; each is attacked with a seed."""
    found: dict[str, Callable[[int], Outcome]] = {}
    for case in altered.cases():
        found[case.name] = lambda seed, c=case: altered.attack(c, seed)  # type: ignore[misc]
    for one in compiled.cases():
        found[one.name] = lambda seed, c=one: compiled.attack(c, seed)  # type: ignore[misc]
    for name, judge in made.cases():
        found[name] = lambda seed, n=name, j=judge: made.attack(n, j)  # type: ignore[misc]
    return found


def controls() -> list[str]:
    """The honest ones among them, which have to convert."""
    return [name for name in altered_cases() if name.endswith((": nothing", ": nothing, large gain"))]


def attack(kinds: tuple[str, ...], minutes: float, seed: int, say: Say, named: str | None = None) -> Tally:
    """Attack each kind for its share of the time; one altered model alone where it is named."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    tally, whole = Tally(), sum(SHARES[kind] for kind in kinds)
    if named is not None:
        tally.add(altered_cases()[named](seed))
        return tally
    for kind in kinds:
        until = time.perf_counter() + 60 * minutes * SHARES[kind] / whole
        for make in _altered(seed) if kind == "altered" else _seeded(kind, seed):
            outcome = make()
            tally.add(outcome)
            say(f"{kind}: {outcome.name}: {outcome.verdict}")
            if time.perf_counter() > until:
                break
    return tally


def _seeded(kind: str, seed: int) -> Iterator[Callable[[], Outcome]]:
    for i in count():
        yield lambda i=i: SEEDED[kind](1_000 * seed + i)  # type: ignore[misc]


def _altered(seed: int) -> Iterator[Callable[[], Outcome]]:
    """The controls first, then all others in the order of the seed; once each."""
    cases, first = altered_cases(), controls()
    rest = [name for name in cases if name not in set(first)]
    order = first + [rest[i] for i in np.random.default_rng(seed).permutation(len(rest))]
    for name in order:
        yield lambda n=name: cases[n](seed)  # type: ignore[misc]
