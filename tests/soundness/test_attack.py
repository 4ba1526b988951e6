"""A short run of benchmarks/attack.py: no claim is false, nothing crashes, honest models convert; and the attack can fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [path for path in (str(ROOT / "benchmarks"), str(ROOT)) if path not in sys.path]

from attacks import blocks, claims, heads, learners, networks, run  # noqa: E402
from attacks.layouts import LAYOUTS  # noqa: E402
from attacks.tally import Outcome, Tally  # noqa: E402

import attnc  # noqa: E402

CASES = run.altered_cases()
# Of each cause that was once open, one or two that are quick to judge.
KNOWN = (
    "opt: activation (function) zero below 0.02",
    "encoder: activation (class) zero below 0.02", "opt: hook on the activation", "llama: pre-hook on the activation",
    "llama: hook in disguise on the block", "llama: class of the block swapped in disguise", "llama: gate and up exchanged",
    "llama: class of the norm monkeypatched", "llama: _call_impl of the block", "encoder first: _call_impl of the second map",
    "encoder first: dropout replaced by LayerNorm", "llama: parent that calls the block without its norm",
    "llama: block that is used elsewhere without a norm", "llama: norm is passed over by a layer in disguise",
    "encoder first: a fast path of another activation", "opt: pruning on the first map",
    "opt: a weight as a plain attribute on the second map", "compiled sequential: activation is ReLU6 with max_val 8",
    "compiled module: root: without gradients", "compiled module: root: writes into a contiguous input",
    "made dense head of sigmoid: autocast", "made head of silu: hook", "made head of tanh: compiled call with a narrow bump",
    "made head: numbers of another", "made function: a borrowed name", "made head: a witness that was raised",
)  # fmt: skip
CONTROLS = tuple(
    f"{family}: nothing" for family in ("llama", "opt", "encoder", "sequential", "compiled module")
)


def assert_true(outcome: Outcome) -> None:
    assert outcome.verdict in ("refused", "converted", "measured"), Tally([outcome]).problems()


@pytest.mark.parametrize("name", KNOWN)
def test_altered_models_are_refused_or_true(name: str) -> None:
    assert_true(CASES[name](0))


def test_altered_models_of_a_seed_are_refused_or_true() -> None:
    quick = [name for name in CASES if name.startswith(("opt:", "encoder:", "sequential:", "llama:"))]
    chosen = np.random.default_rng(13).choice(quick, 16, replace=False)
    for name in chosen.tolist():
        assert_true(CASES[name](0))


@pytest.mark.parametrize("name", CONTROLS)
def test_honest_models_convert(name: str) -> None:
    outcome = CASES[name](0)
    assert outcome.verdict == "converted" and outcome.control, outcome
    assert outcome.ratio <= 1 and outcome.inputs > 1000


@pytest.mark.parametrize(
    ("attack", "seeds"),
    [
        (heads.attack, (1, 9, 20, 21, 22)),
        (networks.attack, (3, 11)),
        (blocks.attack, (5, 23)),
        (learners.attack, (1, 8, 9)),
    ],
    ids=["heads", "networks", "blocks", "learners"],
)
def test_no_input_exceeds_its_bound(attack: Callable[[int], Outcome], seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        outcome = attack(seed)
        assert outcome.verdict == "converted" and 0 < outcome.ratio <= 1, Tally([outcome]).problems()


def test_there_are_enough_altered_models() -> None:
    assert len(CASES) >= 200 and set(run.controls()) <= set(CASES)


def test_a_bound_that_is_too_low_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    proved = heads.supnorm
    monkeypatch.setattr(
        heads, "supnorm", lambda *a, **k: replace(proved(*a, **k), bound=0.2 * proved(*a, **k).bound)
    )
    assert heads.attack(20).verdict == "false"


def test_a_claim_about_another_model_is_found() -> None:
    """The original has a hook on its activation, the converted model had none."""
    original, converted = (LAYOUTS["opt"].build() for _ in range(2))
    report = attnc.convert_(converted.module, approximation=1e-2)
    original.act.register_forward_hook(lambda _, args, out: out.clamp(max=1.0))
    judged = claims.judge_report(
        claims.Rivals(original, None, converted), report, np.random.default_rng(0), 60
    )
    assert judged.ratio > 1
    lower = SimpleNamespace(
        blocks=[replace(b, approximation=1e-9, rounding=0.0, bound=1e-9) for b in report.blocks]
    )
    honest = claims.Rivals(LAYOUTS["opt"].build(), None, converted)
    assert claims.judge_report(honest, lower, np.random.default_rng(0), 60).ratio > 1
    assert claims.judge_report(honest, report, np.random.default_rng(0), 60).ratio <= 1


def test_the_tally_fails_where_a_case_does(tmp_path: Path) -> None:
    good, bad = (
        Outcome("heads", "a", "converted", 0.5, inputs=10),
        Outcome("heads", "b", "false", 2.0, 1.0, 2.0),
    )
    assert Tally([good]).passed and not Tally([good, bad]).passed
    assert not Tally([Outcome("altered", "c", "crashed")]).passed
    assert not Tally([Outcome("altered", "d", "refused", control=True)]).passed
    Tally([good, bad]).write(tmp_path / "run.json", seed=0)
    assert "false" in Tally([good, bad]).table() and (tmp_path / "run.json").stat().st_size > 100
