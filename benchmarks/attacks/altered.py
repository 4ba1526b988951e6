"""Altered models: each is refused, or converted and truly within what is claimed."""

from __future__ import annotations

import time
import traceback
import warnings
import zlib
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch

import attnc
from attacks import alter_acts, alter_calls, alter_norms, alter_parts  # noqa: F401  (they register their alterations)
from attacks.claims import Judged, Rivals, judge_report
from attacks.layouts import LAYOUTS
from attacks.registry import ALTERATIONS, Alteration
from attacks.tally import Outcome
from attnc.errors import AttncError


@dataclass(frozen=True)
class Case:
    """An alteration of a model of a family."""

    alteration: Alteration
    family: str

    @property
    def name(self) -> str:
        return f"{self.family}: {self.alteration.name}"

    @property
    def dtype(self) -> torch.dtype:
        """By the name, so that a case is the same in every run."""
        if self.alteration.wide:
            return torch.float64
        narrow = zlib.crc32(self.name.encode()) % 4 == 0 and self.alteration.eps >= 1e-3
        return (
            torch.float32 if narrow or self.alteration.by_dtype or self.alteration.narrow else torch.float64
        )


def cases() -> list[Case]:
    return [Case(a, family) for a in ALTERATIONS.values() for family in LAYOUTS if family in a.families]


def attack(case: Case, seed: int, count: int = 240) -> Outcome:
    """Convert the altered model, and attack what is claimed of it."""
    began = time.perf_counter()
    outcome = Outcome("altered", case.name, "crashed", control=case.alteration.honest)
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _attack(case, seed, count, outcome, stack)
        except AttncError as problem:
            outcome.verdict, outcome.note = "refused", f"{type(problem).__name__}: {str(problem)[:200]}"
        except Exception as problem:
            outcome.verdict, outcome.note = "crashed", said(problem)
    outcome.seconds = time.perf_counter() - began
    return outcome


def said(problem: Exception) -> str:
    """A problem in one line, with the last place in attnc, or else in the attack, that it passed."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = (
        [f for f in frames if "/attnc/" in f.filename]
        or [f for f in frames if "/attacks/" in f.filename]
        or frames
    )
    where = "/".join(own[-1].filename.split("/")[-3:])
    return f"{type(problem).__name__}: {str(problem)[:150]} ({where}:{own[-1].lineno})"


def _attack(case: Case, seed: int, count: int, outcome: Outcome, stack: ExitStack) -> None:
    alteration, layout = case.alteration, LAYOUTS[case.family]
    made = [layout.build(case.dtype, alteration.gain) for _ in range(3)]
    for model in made if alteration.alter is not None else []:
        assert alteration.alter is not None
        alteration.alter(model)
        if "trai" not in alteration.name:  # else a new part in training mode would be reason enough to refuse
            model.module.eval()
    if alteration.around is not None:
        if case.family.startswith(
            "encoder"
        ):  # so that the activation is a module, whose class can be patched
            for model in made:
                alter_calls.act_module(model).eval()
        alteration.around(made[0], stack)
    original, wide, converted = made
    if not _runs(original):
        outcome.verdict, outcome.note = "refused", "the altered model itself does not run"
        try:
            attnc.convert_(converted.module, approximation=alteration.eps)
            outcome.verdict = "measured"
        except AttncError:
            pass
        return
    report = attnc.convert_(converted.module, approximation=alteration.eps)
    wide.module.double()
    sound = not alteration.by_dtype and _runs(wide)  # a tensor that is not registered stays behind
    rng = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    judged = judge_report(Rivals(original, wide if sound else None, converted), report, rng, count)
    settle(outcome, judged)


def settle(outcome: Outcome, judged: Judged) -> None:
    """The verdict on what was claimed."""
    outcome.ratio, outcome.claimed, outcome.measured = judged.ratio, judged.claimed, judged.measured
    outcome.inputs, outcome.note = judged.inputs, judged.note
    outcome.verdict = "false" if judged.ratio > 1 else "converted" if judged.proved else "measured"
    if judged.proved and judged.inputs == 0:
        outcome.verdict, outcome.note = "crashed", f"nothing was attacked: {judged.note}"


def _runs(model: object) -> bool:
    """Whether the altered model can be run at all."""
    try:
        with torch.no_grad():
            model.run(2, model.layout.tokens)  # type: ignore[attr-defined]
    except Exception:
        return False
    return True
