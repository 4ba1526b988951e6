"""Lookups: the constant of the lattice, the two provers, and what neither believes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb

import attnc
from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.check import lookup as check_lookup
from attnc.check.network import check_network
from attnc.check.values import CheckError
from attnc.functions.balls import lower, upper, working
from attnc.heads.tensor import Lattice, grid_axes
from attnc.lower.function_to_network import selection
from attnc.network.network import Network
from attnc.program import Affine, BlackBox, Lookup, Program
from attnc.program.evaluate import differentiable, exact
from attnc.program.lookup import envelopes
from attnc.prove.bounds import HeadErrors, LayerInputs, ValueBounds
from attnc.prove.compose import compose
from attnc.prove.lookup import axes_of, lookup_bounds, tails
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import seal
from attnc.records.layers import Layer, NetworkNumbers
from attnc.records.record import Record, write
from tests import parts as layers

BOX = attnc.Box(0, 1, shape=(2, 1))


def bounds_on(step: Lookup, stage: Layer, lo: np.ndarray, hi: np.ndarray, a: Arithmetic) -> ValueBounds:
    zero = np.zeros_like(lo)
    program, stage = (
        Program(lo.shape, (dataclasses.replace(step, input=0),)),
        dataclasses.replace(stage, value=1),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        return lookup_bounds(LayerInputs(program, stage, [ValueBounds(lo, hi, zero, zero)], a, HeadErrors()))


def bowl(x: torch.Tensor) -> torch.Tensor:
    """1-Lipschitz in each output."""
    far = (x - 0.3).flatten(1).square().sum(1).sqrt()
    return torch.stack([far, 0.5 - far], 1).unsqueeze(-1)


def made(dtype: torch.dtype = torch.float64, eps: float = 0.1) -> Network:
    return attnc.compile(bowl, domain=BOX, eps=eps, lipschitz=1, dtype=dtype)


@pytest.fixture(scope="module")
def net() -> Network:
    return made()


def parts(net: Network) -> tuple[Lookup, Layer]:
    (step,) = (s for s in net.program.steps if isinstance(s, Lookup))
    (stage,) = (s for s in net.numbers().layers if s.kind == "lookup")
    return step, stage


@pytest.mark.parametrize("c", [1.11, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("count", [2, 3, 9])
def test_the_constant_of_the_lattice(c: float, count: int) -> None:
    """Σ W_k (x - k)² against 1/4 and the tails, at 2,000 places up to half a step beyond the ends, in 128 bits."""
    with working(128):
        bound = arb(0.25) + tails(arb(c))
        worst = arb(0)
        for i in range(2001):
            x = arb(-0.5) + arb(count) * i / 2000
            weights = [(-arb(c) * (x - k) ** 2).exp() for k in range(count)]
            spread = sum((w * (x - k) ** 2 for k, w in enumerate(weights)), arb(0)) / sum(weights, arb(0))
            worst = worst.max(spread)
        assert worst <= bound
        assert lower(worst / bound) > (0.99 if c == 8 else 0.4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_provers_agree(dtype: str) -> None:
    step, stage = parts(made(getattr(torch, dtype)))
    a = ARITHMETIC[dtype]
    one = bounds_on(step, stage, np.zeros(2), np.ones(2), a)
    with working(96):
        _, errors, approximation = check_lookup.bounds(step, stage, [arb(0.5, 0.5)] * 2, a)
        for mine, theirs in zip(one.error.tolist(), map(upper, errors), strict=True):
            assert abs(mine - theirs) < 2e-3 * mine
        assert abs(one.approximation.max() - upper(approximation)) < 2e-3 * one.approximation.max()


TERMS = {
    "scores": (400, 1.0, 0.0, 0.0),  # E = 0.2: the factor of the weights
    "sums": (40, 1e-9, 0.0, 3.0),  # nothing but the roundings of two sums, on values near 3
    "noise": (40, 1e-9, 1e-3, 0.0),
}


@pytest.mark.parametrize("term", TERMS)
def test_two_provers_agree_where_one_term_is_all(term: str) -> None:
    """Each in turn dominates the bound in float32; it is what the docstring of `lookup` says, and both have it."""
    count, lipschitz, noise, height = TERMS[term]
    axis = grid_axes(np.zeros(1), np.ones(1), [count])[0]
    values = np.full((count, 1), height).astype(np.float32).astype(np.float64)
    step = Lookup(0, axis.points[:, None], values, lipschitz, noise)
    stage = selection(Lattice((axis,), values), np.array([0.5]), "float32")
    one = bounds_on(step, stage, np.zeros(1), np.ones(1), ARITHMETIC["float32"])
    with working(96):
        _, errors, _ = check_lookup.bounds(step, stage, [arb(0.5, 0.5)], ARITHMETIC["float32"])
        assert float(one.error[0]) == pytest.approx(upper(errors[0]), rel=0.01)
    u, half_a_cell = 2.0**-24, 0.5 / count
    smallest = {
        "scores": 1.2 * half_a_cell,
        "sums": (2 * count + 4) * u * height,  # softmax's sum, three for the quotient, the last sum
        "noise": noise,
    }[term]
    assert smallest <= float(one.error[0]) <= 1.4 * smallest


@pytest.mark.parametrize("c", [1.2, 2.0, 4.0])
@pytest.mark.parametrize("beyond", [0.0, 0.2], ids=["box", "beyond"])
def test_a_softer_lattice_costs_what_its_weights_spread(c: float, beyond: float) -> None:
    """√(Σ W_k (x - L_k)²), the largest of 40,000 places: less is claimed by neither prover."""
    axis = dataclasses.replace(grid_axes(np.zeros(1), np.ones(1), [8])[0], sharpness=c * 64)
    step = Lookup(0, axis.points[:, None], np.zeros((8, 1)), 1.0)
    stage = selection(Lattice((axis,), step.values), np.array([0.5]), "float64")
    lo, hi = -beyond, 1 + beyond
    x = np.linspace(lo, hi, 40_001)
    weights = np.exp(-c * 64 * (x[:, None] - axis.points) ** 2)
    spread = (weights * (x[:, None] - axis.points) ** 2).sum(1) / weights.sum(1)
    one = bounds_on(step, stage, np.array([lo]), np.array([hi]), ARITHMETIC["float64"])
    with working(96):
        _, _, approximation = check_lookup.bounds(
            step, stage, [arb(0.5, 0.5 + beyond)], ARITHMETIC["float64"]
        )
        theirs = upper(approximation)
    true = float(np.sqrt(spread.max()))
    assert true <= one.approximation.max() <= (1.6 if c < 2 else 1.2) * true
    assert true <= theirs <= (1.6 if c < 2 else 1.1) * true


def test_an_uneven_axis_costs_its_unevenness() -> None:
    """f was asked a fifth of a step beside the place that the scores select."""
    axis = grid_axes(np.zeros(1), np.ones(1), [10])[0]
    points = axis.points[:, None].copy()
    stage = selection(Lattice((axis,), np.zeros((10, 1))), np.array([0.5]), "float64")
    found = []
    for moved in (0.0, 0.02):
        points[4] += moved
        step = Lookup(0, points, np.zeros((10, 1)), 1.0)
        one = bounds_on(step, stage, np.zeros(1), np.ones(1), ARITHMETIC["float64"])
        with working(96):
            _, errors, _ = check_lookup.bounds(step, stage, [arb(0.5, 0.5)], ARITHMETIC["float64"])
            found.append((float(one.error[0]), upper(errors[0])))
    assert all(after >= before + 0.0199 for before, after in zip(*found, strict=True))


def test_points_that_are_no_lattice_are_not_proved(net: Network) -> None:
    step, stage = parts(net)
    points = step.points.copy()
    points[[3, 4]] = points[[4, 3]]
    assert axes_of(points) is None
    moved = dataclasses.replace(step, points=points)
    assert bounds_on(moved, stage, np.zeros(2), np.ones(2), ARITHMETIC["float64"]).error.max() == np.inf
    with working(96), pytest.raises(CheckError):
        check_lookup.bounds(moved, stage, [arb(0.5, 0.5)] * 2, ARITHMETIC["float64"])


@pytest.mark.parametrize("what", ["soft", "one key", "one offset", "centre", "value", "wider box", "huge"])
def test_numbers_that_do_not_fit_cost_what_they_may_cost(net: Network, what: str) -> None:
    """Both provers see it: nothing is proved, or as much more than before as the change can do."""
    step, stage = parts(net)
    key, offset = stage.tensor("key"), stage.tensor("offset")
    change: dict[str, Any] = {
        "soft": {"key": key / 16, "offset": offset / 16},
        "one key": {"key": key + np.eye(len(key), 2, -5) * 100},
        "one offset": {"offset": offset + np.eye(1, len(offset), 7)[0]},
        "centre": {"centre": stage.tensor("centre") + 0.25},
        "value": {"values": stage.tensor("values") + np.eye(len(key), 2, -9)},
        "huge": {"key": key * 1e200, "offset": offset * 1e200},
    }.get(what, {})
    other = dataclasses.replace(stage, tensors={**stage.tensors, **change})
    hi = np.array([1.0, 2.0 if what == "wider box" else 1.0])
    a = ARITHMETIC["float64"]
    before = bounds_on(step, stage, np.zeros(2), np.ones(2), a)
    after = bounds_on(step, other, np.zeros(2), hi, a)
    one = float(after.error.max())
    two = float("inf")
    with working(96), contextlib.suppress(CheckError):
        _, theirs, _ = check_lookup.bounds(step, other, [arb(0.5, 0.5), arb(hi[1] / 2, hi[1] / 2)], a)
        two = max(map(upper, theirs))
    assert (min(one, two) == float("inf")) == (what not in ("value", "wider box"))
    assert min(one, two) > float(before.error.max()) + {"value": 0.9, "wider box": 0.8}.get(what, 0.1)


def test_the_network_is_what_is_proved(net: Network) -> None:
    copy = made()
    with torch.no_grad():
        copy.selections[0].values[5, 0] += 1e-9
    assert attnc.verify(net).status == "proved"
    assert attnc.verify(copy).status == "unknown" and "values" in str(copy.why_not_certified())


@pytest.mark.parametrize("field", ["bound", "approximation", "lookup"])
def test_a_claim_that_says_less_is_not_proved(net: Network, field: str) -> None:
    copy, known = made(), net.certificate
    if field == "lookup":
        lookup = dataclasses.replace(known.children[0], bound=0.98 * known.bound)
        copy.certificate = dataclasses.replace(known, children=(lookup,))
    else:
        lower = {field: 0.98 * getattr(known, field)}
        rounding = known.rounding + (0.03 * known.approximation if field == "approximation" else 0)
        copy.certificate = dataclasses.replace(known, **{"rounding": rounding, **lower})
    assert attnc.verify(copy).status == "unknown"


def test_a_bound_below_the_envelopes_is_refuted_or_unknown(net: Network) -> None:
    copy, known = made(), net.certificate
    witness = dataclasses.replace(known.witness, error=0.0)
    copy.certificate = dataclasses.replace(known, bound=1e-9, rounding=1e-10, witness=witness)
    assert attnc.verify(copy).status != "proved"


def test_another_constant_is_another_program(net: Network) -> None:
    step, _ = parts(net)
    steps = [dataclasses.replace(s, lipschitz=0.5) if s is step else s for s in net.program.steps]
    copy = made()
    copy.program = Program(net.program.shape, tuple(steps))
    assert "not those that were certified" in attnc.verify(copy).reason
    assert copy.why_not_certified() is not None


def test_round_trip(net: Network, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    net.save(path)
    again = attnc.load(path)
    x = torch.rand(50, 2, 1, dtype=torch.float64)
    assert isinstance(again, Network) and torch.equal(again(x), net(x))
    assert (again.form, again.notes, again.certificate) == (net.form, net.notes, net.certificate)
    assert attnc.verify(path).status == "proved"


def edited(path: Path, change: Any, reseal: bool = True) -> Path:
    """The file with other metadata, its seal made to fit."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8 : 8 + size])
    (name,) = head["__metadata__"]
    about = json.loads(head["__metadata__"][name])
    change(about)
    if reseal:
        about["seal"] = seal(about)
    head["__metadata__"][name] = json.dumps(about)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    out = path.with_name("edited.safetensors")
    out.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])
    return out


CHANGES = {
    "no certificate": lambda a: a.update(certificate=None),
    "an unknown form": lambda a: a["presentation"].update(form="three-layer"),
    "a layout of another form": lambda a: a["presentation"].update(layout="heads", form="attention-softmax"),
    "notes that are no text": lambda a: a["presentation"].update(notes=[1]),
    "a bound edited": lambda a: a["certificate"].update(bound=1e-9),
    "a field too many": lambda a: a.update(extra=1),
    "a lookup gone": lambda a: a["certificate"].update(children=[]),
    "a stage of another kind": lambda a: a["layers"][1].update(kind="selector"),
    "points that are no number": lambda a: a["certificate"]["facts"].update(points="many"),
    "a theorem without a name": lambda a: a["presentation"].update(theorem={"bound": 1.0}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_edited_file_is_not_read(net: Network, tmp_path: Path, change: Any) -> None:
    net.save(tmp_path / "net.safetensors")
    path = edited(tmp_path / "net.safetensors", change)
    with pytest.raises(attnc.AttncError):
        attnc.load(path)
    with pytest.raises(attnc.AttncError):
        attnc.verify(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a["certificate"]["facts"].update(error=1e-30),
        lambda a: a["certificate"]["facts"].update(points=10**9),
        lambda a: a["presentation"].update(notes=["proved for every function"]),
        lambda a: a.update(seal="ab" * 32),
    ],
    ids=["error", "points", "notes", "seal"],
)
def test_what_is_said_is_sealed(net: Network, tmp_path: Path, change: Any) -> None:
    net.save(tmp_path / "net.safetensors")
    path = edited(tmp_path / "net.safetensors", change, reseal=False)
    for read in (attnc.load, attnc.verify):
        with pytest.raises(attnc.errors.CertificateError):
            read(path)


def forged(net: Network, tmp_path: Path, **claim: Any) -> Path:
    """The file of a network with other words about its function, every digest and seal made to fit."""
    step, _ = parts(net)
    known = net.certificate
    steps = tuple(dataclasses.replace(step, **claim) if s is step else s for s in net.program.steps)
    program = Program(net.program.shape, steps)
    witness = dataclasses.replace(known.witness, error=0.0)
    lies = {"bound": 1e-12, "approximation": 1e-12, "rounding": 1e-12}
    assumed = next(step.assumed for step in program.steps if isinstance(step, Lookup))
    own = {**known.children[0].facts, "assumed": assumed}
    lookup = dataclasses.replace(known.children[0], facts=own, **lies)
    facts = {**known.facts, "program": program.digest()}
    certificate = dataclasses.replace(known, facts=facts, witness=witness, children=(lookup,), **lies)
    path = tmp_path / "forged.safetensors"
    write(path, Record(net.numbers(), certificate, program))
    return path


@pytest.mark.parametrize(
    "claim", [{"lipschitz": 0.0, "noise": 0.0}, {"lipschitz": 0.01}], ids=["flat", "slow"]
)
def test_values_that_contradict_their_constant_prove_nothing(
    net: Network, tmp_path: Path, claim: Any
) -> None:
    """There is no such function, so that anything would be true of every one."""
    verdict = attnc.verify(forged(net, tmp_path, **claim))
    assert verdict.status in ("unknown", "refuted")
    with working(96):
        said = check_lookup.contradiction(dataclasses.replace(parts(net)[0], **claim))
    assert said is not None and "no function has its values" in said


@pytest.mark.parametrize("worse", [0.0, 1e-9], ids=["attained", "exceeded"])
def test_every_pair_of_points_is_compared(worse: float) -> None:
    """Two points far apart that use up the constant exactly, and by a part in a billion more."""
    axis = np.linspace(0, 1, 300)[:, None]
    values = np.zeros((300, 1))
    values[0], values[-1] = -0.5, 0.5 + worse
    step = Lookup(0, axis, values, 1.0, 0.0)
    with working(96):
        assert check_lookup.contradiction(dataclasses.replace(step, lipschitz=0.5 * 299 * (1 + 1e-6))) is None
        steep = dataclasses.replace(step, values=np.linspace(-0.5, 0.5 + worse, 300)[:, None], noise=2.0**-50)
        assert (check_lookup.contradiction(steep) is None) == (worse == 0)


def test_a_lookup_has_an_anchor_for_every_point(net: Network, tmp_path: Path) -> None:
    step, _ = parts(net)
    known = net.certificate
    for few in (step.points[:-1], np.concatenate([step.points, step.points[:1] + 2])):
        values = np.resize(step.values, (len(few), 2))
        changed = dataclasses.replace(step, points=few, values=values)
        program = Program(net.program.shape, tuple(changed if s is step else s for s in net.program.steps))
        verdict = check_network(
            program,
            net.numbers(),
            dataclasses.replace(known, facts={**known.facts, "program": program.digest()}),
        )
        assert verdict.status == "unknown"


def test_nothing_is_certified_of_a_function_that_is_not_stored(net: Network) -> None:
    known = net.certificate
    step, _ = parts(net)
    steps = tuple(BlackBox(step.input, 2) if s is step else s for s in net.program.steps)
    program = Program(net.program.shape, steps)
    verdict = check_network(
        program, net.numbers(), dataclasses.replace(known, facts={**known.facts, "program": program.digest()})
    )
    assert verdict.status == "unknown"


def test_a_lookup_of_inputs_with_an_error_is_not_proved(net: Network) -> None:
    """Behind an affine map that rounds: the proof is about inputs as they are."""
    step, stage = parts(net)
    known = net.certificate
    weight = np.array([[0.3, 0.1], [0.1, 0.3]])
    program = Program((2,), (Affine(0, weight, np.array([0.1, 0.1])), dataclasses.replace(step, input=1)))
    stages = (
        layers.affine(0, 1, weight, np.array([0.1, 0.1])),
        dataclasses.replace(stage, inputs=(1,), value=2),
    )
    numbers = NetworkNumbers(stages, "float64")
    terms = {"bound": 9.0, "approximation": 9.0, "rounding": 0.0}
    lookup = dataclasses.replace(known.children[0], facts={**known.children[0].facts, "value": 2}, **terms)
    witness = dataclasses.replace(known.witness, error=0.0)
    certificate = dataclasses.replace(
        known,
        holds_for=attnc.Box(0, 1, shape=(2,)),
        facts={**known.facts, "program": program.digest()},
        digests=numbers.digests(),
        children=(lookup,),
        witness=witness,
        **terms,
    )
    verdict = check_network(program, numbers, certificate)
    assert verdict.status == "unknown" and "its inputs have an error" in verdict.reason
    assert compose(program, stages, certificate.holds_for, {}, "float64")[2].error.max() == float("inf")


def test_a_single_point_in_a_huge_box() -> None:
    step = Lookup(0, np.zeros((1, 1)), np.zeros((1, 1)), 0.0)
    stage = layers.lookup(0, 1, np.zeros(1), np.zeros((1, 1)), np.zeros(1), np.zeros((1, 1)))
    with working(96):
        check_lookup.bounds(step, stage, [arb(0, 1e200)], ARITHMETIC["float64"])  # no error
    one = bounds_on(step, stage, np.array([-1e200]), np.array([1e200]), ARITHMETIC["float64"])
    assert float(one.error[0]) == float("inf")  # a square overflows: nothing is claimed


def test_a_measured_network_is_not_proved_however_it_is_stored(tmp_path: Path) -> None:
    net = attnc.compile(
        lambda x: x.i0(), domain=attnc.Box(-1, 1, shape=(1, 1)), eps=1e-4, dtype=torch.float64
    )
    assert net.certificate.status is Status.MEASURED and net.certificate.error <= 1e-4
    net.save(tmp_path / "net.safetensors")
    again = attnc.load(tmp_path / "net.safetensors")
    for what in (net, again, tmp_path / "net.safetensors"):
        verdict = attnc.verify(what)
        assert verdict.status == "unknown" and "measured" in verdict.reason
    with pytest.raises(attnc.errors.InputError, match="black box"):
        exact(net.program, np.zeros((1, 1, 1)))
    with pytest.raises(attnc.errors.InputError, match="black box"):
        differentiable(net.program, torch.zeros(1, 1, 1, dtype=torch.float64))


def test_what_was_measured_says_how_far_to_trust_it() -> None:
    box = attnc.Box(-1, 1, shape=(1, 1))
    net = attnc.compile(lambda x: x.i0(), domain=box, eps=1e-3, dtype=torch.float64)
    found = net.certificate
    assert found.status is Status.MEASURED and found.facts["points"] == 65536
    assert 0.99 < found.facts["confidence"] < 1
    at = torch.tensor([[found.witness.input]], dtype=torch.float64)
    assert float((net(at) - at.i0()).abs()) == pytest.approx(found.error, rel=1e-6)


def test_envelopes_hold_every_function() -> None:
    draw = np.random.default_rng(3)
    points, x = draw.random((40, 2)), draw.random((30, 2))
    f = lambda p: np.abs(p - 0.4).sum(1, keepdims=True) / np.sqrt(2)  # noqa: E731
    step = Lookup(0, points, f(points), 1.0, 1e-15)
    low, high = (t.numpy() for t in envelopes(step, torch.from_numpy(x)))
    assert (low <= f(x) + 1e-12).all() and (f(x) <= high + 1e-12).all()
    balls = exact(Program((2,), (step,)), x)
    for ball, a, b, y in zip(balls[:, 0], low[:, 0], high[:, 0], f(x)[:, 0], strict=True):
        assert lower(ball) <= y <= upper(ball)
        assert lower(ball) <= a + 1e-12 and b - 1e-12 <= upper(ball)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": np.zeros((3, 2))}, "shapes"),
        ({"lipschitz": -1.0}, "not negative"),
        ({"lipschitz": float("nan")}, "not negative"),
        ({"noise": float("inf")}, "not negative"),
        ({"values": np.zeros((4, 1), dtype=int)}, "float32 or float64"),
    ],
    ids=["lengths", "negative", "nan", "endless noise", "whole numbers"],
)
def test_a_lookup_that_makes_no_sense(change: dict[str, Any], said: str) -> None:
    fine: dict[str, Any] = {
        "input": 0,
        "points": np.zeros((4, 2)),
        "values": np.zeros((4, 1)),
        "lipschitz": 1.0,
    }
    with pytest.raises(attnc.errors.InputError, match=said):
        Lookup(**{**fine, **change})


def test_shapes_of_lookups() -> None:
    step = Lookup(0, np.zeros((4, 2)), np.zeros((4, 3)), 1.0)
    assert Program((2,), (step,)).shapes == ((2,), (3,))
    for program in ((2, 1), (3,)):
        with pytest.raises(attnc.errors.InputError):
            Program(program, (step,))
    with pytest.raises(attnc.errors.InputError, match="reshape"):
        Program((2, 1), (BlackBox(0, 1),))
    with pytest.raises(attnc.errors.InputError):
        BlackBox(0, 0)


def test_certificates_of_lookups_round_trip(net: Network) -> None:
    assert net.certificate.proved
    assert Certificate.from_json(net.certificate.to_json()) == net.certificate
    forged = net.certificate.to_json()
    forged["children"][0]["facts"]["anchors"] = 7
    with pytest.raises(attnc.errors.CertificateError):
        Certificate.from_json(forged)


def test_the_certificate_states_what_it_assumes_of_the_function() -> None:
    """A bound from a Lipschitz constant that the user gave is conditional, printed so, and not proved without the condition."""
    from dataclasses import replace

    box = attnc.Box(-1, 1, shape=(1, 1))
    net = attnc.compile(lambda x: x.i0(), domain=box, eps=0.1, lipschitz=1, dtype=torch.float64)
    assert "Lipschitz constant 1" in str(net.certificate)
    (lookup,) = net.certificate.children
    assert attnc.verify(net).status == "proved" and lookup.facts["assumed"]["lipschitz"] == 1
    for facts in (
        {key: value for key, value in lookup.facts.items() if key != "assumed"},
        {**lookup.facts, "assumed": {"lipschitz": 0.5, "noise": 0.0}},
    ):
        net.certificate = replace(net.certificate, children=(replace(lookup, facts=facts),))
        assert attnc.verify(net).status == "unknown"
