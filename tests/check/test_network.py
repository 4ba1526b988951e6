"""The checker of networks: proves what is true, and no false claim, however well it is sealed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb
from torch import Tensor, nn

import attnc
from attnc.check.compose import compose
from attnc.check.network import check_network
from attnc.check.values import EPS
from attnc.errors import CertificateError
from attnc.functions.balls import working
from attnc.network import pointwise
from attnc.network.network import Network, rebuilt
from attnc.program import Affine, BatchNorm, Pointwise, Program
from attnc.program.evaluate import exact
from attnc.records.certificate import Certificate, Verdict, Witness
from attnc.records.layers import Layer, NetworkNumbers, heads_of, pointwise_layer
from attnc.records.numbers import HeadNumbers
from attnc.records.record import Record
from tests.sampled import every


class Residual(nn.Module):
    """An activation called twice, sums, and a normalisation that is folded or not."""

    def __init__(self, folded: bool) -> None:
        super().__init__()
        self.enter, self.inner, self.leave = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.norm, self.folded = nn.BatchNorm1d(5), folded
        self.norm.running_mean, self.norm.running_var = (
            torch.linspace(-0.5, 0.5, 5),
            torch.linspace(0.5, 2, 5),
        )
        with torch.no_grad():
            self.norm.weight.copy_(torch.linspace(-1, 1, 5))
            self.norm.bias.copy_(torch.linspace(0.25, 0, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        inner = self.norm(self.inner(h)) if self.folded else self.norm(h + 0.5 * self.inner(h))
        h = h - 0.5 * torch.tanh(inner) if self.folded else torch.tanh(inner)
        return self.leave(h)


def chain(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), activation, nn.Linear(6, 2))


def tokens() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))


def wide_neuron() -> nn.Module:
    model = chain(nn.Tanh())
    with torch.no_grad():
        model[0].weight[4] *= 256
        model[2].weight[:, 4] /= 256
    return model


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "tanh": (lambda: chain(nn.Tanh()), (3,), 1e-3),
    "relu": (lambda: chain(nn.ReLU()), (3,), 1e-2),
    "gelu": (lambda: chain(nn.GELU()), (3,), 1e-2),
    "residual, folded": (lambda: Residual(True), (3,), 1e-3),
    "residual, not folded": (lambda: Residual(False), (3,), 1e-3),
    "tokens": (tokens, (2, 3), 1e-3),
    "groups": (wide_neuron, (3,), 1e-3),
    "softplus": (lambda: chain(nn.Softplus(threshold=0.25)), (3,), 1.0),
}
DTYPES = [torch.float32, torch.float64]


@cache
def compiled(name: str, dtype: torch.dtype = torch.float32) -> Network:
    make, shape, eps = CASES[name]
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        if name == "groups":  # no head is good enough for all neurons
            patch.setattr("attnc.lower.program_to_network.worst_bound", lambda heads: math.inf)
        return attnc.compile(
            make().to(dtype).eval(), domain=attnc.Box(-1, 1, shape=shape), eps=eps, dtype=dtype
        )


def judged(net: Network, certificate: Certificate | None = None, **other: Any) -> Verdict:
    """Of the file: the numbers and the program, or others."""
    parts = {"program": net.program, "numbers": net.numbers()} | other
    return check_network(parts["program"], parts["numbers"], certificate or net.certificate)


# What is true is proved.


@pytest.mark.parametrize(
    ("name", "dtype"),
    every(2, [(name, d) for i, name in enumerate(CASES) for d in (DTYPES if i % 2 else DTYPES[::-1])]),
)
def test_a_true_bound_is_proved_anew(name: str, dtype: torch.dtype) -> None:
    net = compiled(name, dtype)
    verdict = attnc.verify(net)
    assert verdict.status == "proved", verdict
    assert bool(verdict) and verdict.bound == net.certificate.bound and verdict.cells > 20
    assert f"{len(net.layers)} layer" in verdict.reason


def test_the_cases_are_what_they_say() -> None:
    kinds = {name: [layer.kind for layer in compiled(name).numbers().layers] for name in CASES}
    assert "combine" in kinds["residual, folded"] and "batch_norm" not in kinds["residual, folded"]
    assert "batch_norm" in kinds["residual, not folded"]
    assert "reshape" in kinds["tokens"]
    assert all(len(compiled("groups", dtype).layers[0].groups) > 1 for dtype in DTYPES)
    (step,) = (s for s in compiled("softplus").program.steps if isinstance(s, Pointwise))
    assert step.deviation == pytest.approx(math.log1p(math.exp(-0.25))) and step.beyond == 0.25
    assert step.deviation < compiled("softplus").certificate.bound


# What is false is not.


def with_head(certificate: Certificate, layer: int = 0, **changed: Any) -> Certificate:
    """Another claim about the first head of a layer."""
    heads = certificate.children[layer].children
    return with_layer(certificate, layer, children=(with_facts(heads[0], **changed), *heads[1:]))


def with_layer(certificate: Certificate, layer: int = 0, **changed: Any) -> Certificate:
    claims = list(certificate.children)
    claims[layer] = with_facts(claims[layer], **changed)
    return replace(certificate, children=tuple(claims))


def with_facts(certificate: Certificate, **changed: Any) -> Certificate:
    """Other fields, or other facts."""
    facts = {name: value for name, value in changed.items() if name in certificate.facts}
    other = {name: value for name, value in changed.items() if name not in facts}
    return replace(certificate, facts={**certificate.facts, **facts}, **other)


def head_of(certificate: Certificate) -> Certificate:
    return certificate.children[0].children[0]


def inner(certificate: Certificate, part: float) -> attnc.Interval:
    """The middle part of what the first head is proved on."""
    domain = head_of(certificate).interval
    middle, half = domain.middle, part * domain.width / 2
    return attnc.Interval(middle - half, middle + half)


def terms(certificate: Certificate, by: float) -> dict[str, float]:
    """Terms with the same sum, of which `by` moved from the approximation to the rounding."""
    return {"approximation": certificate.approximation - by, "rounding": certificate.rounding + by}


def moved(certificate: Certificate, by: float) -> Certificate:
    return replace(certificate, **terms(certificate, by))


FALSE: dict[str, Callable[[Certificate], Certificate]] = {
    "bound": lambda c: replace(c, bound=0.98 * c.bound),
    "approximation": lambda c: moved(c, c.approximation / 2),
    "no rounding": lambda c: replace(c, approximation=0.98 * c.bound, rounding=0.0),
    "error in": lambda c: with_layer(c, error_in=0.95 * c.children[0].facts["error_in"]),
    "error out": lambda c: with_layer(c, bound=0.95 * c.children[0].bound),
    "error in of the last layer": lambda c: with_layer(c, -1, error_in=0.95 * c.children[-1].facts["error_in"]),
    "error out of the last layer": lambda c: with_layer(c, -1, bound=0.95 * c.children[-1].bound),
    "no error in": lambda c: with_layer(c, error_in=0.0),
    "a head's interval": lambda c: with_head(c, holds_for=inner(c, 0.7)),
    "a head's bound": lambda c: with_head(c, bound=0.5 * head_of(c).bound),
    "a head's approximation": lambda c: with_head(c, approximation=0.0),
    "a head's rounding": lambda c: with_head(c, **terms(head_of(c), -head_of(c).rounding / 2)),
    "the box, by a tenth": lambda c: replace(c, holds_for=attnc.Box(-1.1, 1.1, shape=c.box.shape)),
    "the box, tenfold": lambda c: replace(c, holds_for=attnc.Box(-10, 10, shape=c.box.shape)),
    "the box, elsewhere": lambda c: replace(c, holds_for=attnc.Box(1, 3, shape=c.box.shape)),
    "the box's shape": lambda c: replace(c, holds_for=attnc.Box(-1, 1, shape=(c.box.size, 1))),
    "the function": lambda c: with_layer(c, function="sin"),
    "a head's function": lambda c: with_head(c, function="sin"),
    "both functions": lambda c: with_head(with_layer(c, function="sin"), function="sin"),
    "an unknown function": lambda c: with_head(with_layer(c, function="nix"), function="nix"),
    "which value a layer makes": lambda c: with_layer(c, value=c.children[0].facts["value"] + 1),
    "fewer neurons": lambda c: with_layer(c, neurons=[1, *c.children[0].facts["neurons"][1:]]),
    "a layer less": lambda c: replace(c, children=c.children[1:]),
    "a layer twice": lambda c: replace(c, children=(c.children[0], *c.children)),
    "a group less": lambda c: with_layer(c, children=c.children[0].children[:-1], neurons=c.children[0].facts["neurons"][:-1]),
    "a group twice": lambda c: with_layer(
        c, children=2 * c.children[0].children, neurons=2 * c.children[0].facts["neurons"]
    ),
    "the dtype": lambda c: replace(c, dtype={"float32": "float64", "float64": "float32"}[c.dtype]),
    "a head's dtype": lambda c: with_head(c, dtype={"float32": "float64", "float64": "float32"}[c.dtype]),
    "no such dtype": lambda c: replace(c, dtype="float128"),
    "a digest": lambda c: replace(c, digests=c.digests | {"stages.0.weight": "0" * 64}),
    "a digest less": lambda c: replace(c, digests={n: d for n, d in c.digests.items() if "bias" not in n}),
    "a digest more": lambda c: replace(c, digests=c.digests | {"stages.9.weight": "0" * 64}),
    "a head's digest": lambda c: with_head(c, digests=head_of(c).digests | {"key": "0" * 64}),
    "the program": lambda c: with_facts(c, program="0" * 64),
    "a witness outside": lambda c: replace(
        c, witness=replace(c.witness, input=(1.5, *c.witness.input[1:]))
    ),
    "a witness far outside": lambda c: replace(
        c, witness=replace(c.witness, input=(1e6, *c.witness.input[1:]))
    ),
    "a witness that the dtype does not hold": lambda c: replace(
        c, witness=replace(c.witness, input=(1 / 3 if c.dtype == "float32" else 2.0, *c.witness.input[1:]))
    ),
    "an output that is not there": lambda c: replace(c, witness=replace(c.witness, output=99)),
    "an output from the end": lambda c: replace(c, witness=replace(c.witness, output=-1)),
    "a witness above the bound": lambda c: replace(c, witness=replace(c.witness, error=2 * c.bound)),
    "a witness far above the bound": lambda c: replace(c, witness=replace(c.witness, error=100 * c.bound)),
}  # fmt: skip


WHERE_APPROXIMATION_ERRS = [
    "bound", "approximation", "no rounding", "error out", "a head's interval", "a head's bound", "a head's approximation",
    "the box, by a tenth", "the box, tenfold", "the box, elsewhere", "a witness outside", "a witness far outside",
    "a witness above the bound",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype", "claim"),
    [
        *(("residual, not folded", torch.float32, claim) for claim in FALSE),
        *(("relu", torch.float64, claim) for claim in WHERE_APPROXIMATION_ERRS),
    ],
)
def test_a_false_claim_is_never_proved(name: str, dtype: torch.dtype, claim: str) -> None:
    net = compiled(name, dtype)
    try:
        false = FALSE[claim](net.certificate)
    except attnc.errors.CertificateError:
        return
    verdict = judged(net, false)
    assert verdict.status in ("unknown", "refuted"), verdict
    assert_it_refutes(net, false, verdict)


def assert_it_refutes(net: Network, certificate: Certificate, verdict: Verdict) -> None:
    """Where the verdict is "refuted": an input of the box and the dtype at which the numbers err by more than the bound, or
    one of an interval at which a head does."""
    if verdict.status != "refuted":
        return
    assert verdict.input is not None and verdict.error is not None, "it says refuted, and not where"
    if len(verdict.input) == 1:
        claims = certificate.parts("layer")
        assert any(head_errs(*pair, verdict.input[0]) for pair in zip(net.layers, claims, strict=True))
        return
    at = np.array(verdict.input).reshape(certificate.box.shape)
    assert ((certificate.box.lo <= at) & (at <= certificate.box.hi)).all(), "it lies outside the box"
    x = torch.from_numpy(at).to(getattr(torch, certificate.dtype))
    assert np.array_equal(x.double().numpy(), at), "the dtype does not hold it"
    assert certificate.bound < verdict.error <= 1.05 * error_at(net, x)


def head_errs(layer: pointwise.Pointwise, claim: Certificate, s: float) -> bool:
    """Whether a head of the layer errs by more than is claimed of it at an input of its interval."""
    f = attnc.functions.get(claim.facts["function"])
    errs = [
        s in said.interval
        and abs(
            float(head(head.key.new_tensor([s]), strict=False))
            - float(f(torch.tensor([s], dtype=torch.float64)))
        )
        > said.bound
        for said, (_, head) in zip(claim.children, layer.groups, strict=True)
    ]
    return any(errs)


def error_at(net: Network, x: Tensor) -> float:
    """A lower bound of the largest |executed - exact|."""
    with working(192):
        meant, found = (
            exact(net.program, x.double().numpy()).ravel(),
            net(x, strict=False).double().ravel().tolist(),
        )
        return max(0.0, *(float(abs(arb(y) - v).lower()) for y, v in zip(found, meant, strict=True)))


@pytest.mark.parametrize("error", [0.0, 0.5, 2.0])
def test_a_witness_with_another_error_is_noticed_where_rounding_is_small(error: float) -> None:
    """relu in float64 errs by its approximation: the witness shows just that."""
    net = compiled("relu", torch.float64)
    c = net.certificate
    verdict = judged(net, replace(c, witness=replace(c.witness, error=error * c.witness.error)))
    assert verdict.status == "unknown" and "witness" in verdict.reason


@pytest.mark.parametrize("rounding", [2.0, 1e9])
def test_a_witness_cannot_hide_behind_a_rounding_that_is_said_to_be_large(rounding: float) -> None:
    """A term of rounding above the bound must not become the measure of a witness."""
    net = compiled("relu", torch.float64)
    c = net.certificate
    assert c.rounding < 1e-4 * c.bound and c.witness.error < 0.9 * c.bound
    hidden = replace(c, rounding=rounding * c.bound, witness=replace(c.witness, error=0.99 * c.bound))
    assert judged(net, hidden).status == "unknown"


def test_a_bound_below_the_witness_is_refuted_with_an_input() -> None:
    """Where approximation is what errs, so that rounding does not decide."""
    for name in ("relu", "gelu"):
        net = compiled(name, torch.float64)
        false = replace(net.certificate, bound=0.9 * net.certificate.witness.error)
        verdict = judged(net, false)
        assert verdict.status == "refuted" and not verdict
        assert_it_refutes(net, false, verdict)
        net = copy.deepcopy(net)
        net.certificate = false
        assert attnc.verify(net).status == "refuted"


def without_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the attack and without the heads' own checks: what is left is the composition."""
    monkeypatch.setattr("attnc.check.network._attack", lambda *args: None)
    monkeypatch.setattr(
        "attnc.check.network.check_head", lambda *args: Verdict("proved", "not looked at", cells=1)
    )


@pytest.mark.parametrize("name", ["relu", "residual, folded"])
@pytest.mark.parametrize("claim", ["bound", "approximation", "error out", "no error in", "a head's interval"])
def test_the_proof_itself_fails_where_the_claim_is_false(
    name: str, claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = compiled(name)
    without_attack(monkeypatch)
    assert judged(net).status == "proved"
    assert judged(net, FALSE[claim](net.certificate)).status == "unknown"


def test_a_claim_is_not_proved_of_a_box_with_a_corner_more() -> None:
    """One coordinate wider, on one side."""
    net = compiled("relu", torch.float64)
    for i in range(3):
        hi = np.ones(3)
        hi[i] = 1.5
        verdict = judged(net, replace(net.certificate, holds_for=attnc.Box(-np.ones(3), hi)))
        assert verdict.status in ("unknown", "refuted"), (i, verdict)


def test_a_smaller_box_and_a_larger_bound_are_proved() -> None:
    """What follows from the certificate is true as well."""
    net = compiled("tanh")
    c = net.certificate
    assert (
        judged(net, replace(c, approximation=c.approximation + c.bound, bound=2 * c.bound)).status == "proved"
    )
    half = attnc.Box(-0.5, 0.5, shape=(3,))
    inside = replace(c, holds_for=half, witness=replace(c.witness, input=(0.0, 0.0, 0.0), error=0.0))
    assert judged(net, inside).status == "proved"


# Other numbers, another program, their digests brought up to date.


def forged(net: Network, numbers: NetworkNumbers) -> Certificate:
    """The certificate with the digests of other numbers, in the heads' claims too."""
    claims: list[Certificate] = []
    layers = (layer for layer in numbers.layers if layer.kind == "pointwise")
    for claim, layer in zip(net.certificate.children, layers, strict=True):
        heads = zip(claim.children, heads_of(layer), strict=True)
        made = tuple(replace(said, digests=head.digests()) for said, (_, head) in heads)
        claims.append(replace(claim, children=made))
    return replace(net.certificate, digests=numbers.digests(), children=tuple(claims))


def variants(net: Network, by: float) -> Iterator[tuple[str, NetworkNumbers]]:
    """One number of one tensor, off by so much."""
    numbers = net.numbers()
    for i, layer in enumerate(numbers.layers):
        if layer.kind in ("affine", "batch_norm"):
            for part, array in layer.tensors.items():
                other = array.copy()
                other.flat[0 if layer.kind == "affine" else 1] += by
                changed = replace(layer, tensors={**layer.tensors, part: other})
                yield f"{part} of stage {i}", _with_stage(numbers, i, changed)
        elif layer.kind == "combine":
            first, *rest = layer.settings["coefficients"]
            changed = replace(layer, settings={"coefficients": (first + by, *rest)})
            yield f"sum of stage {i}", _with_stage(numbers, i, changed)
        elif layer.kind == "pointwise":
            (neurons, head), *others = heads_of(layer)
            value = (head.value + np.array([0.0, by])).astype(numbers.dtype).astype(np.float64)
            moved = HeadNumbers(head.query, head.key, value, head.output, head.dtype)
            changed = pointwise_layer(layer.input, layer.value, [(neurons, moved), *others])
            yield f"values of stage {i}", _with_stage(numbers, i, changed)


def _with_stage(numbers: NetworkNumbers, i: int, layer: Layer) -> NetworkNumbers:
    return NetworkNumbers((*numbers.layers[:i], layer, *numbers.layers[i + 1 :]), numbers.dtype)


@pytest.mark.parametrize("name", ["residual, not folded", "groups"])
def test_other_numbers_are_refuted_whatever_the_digests_say(name: str) -> None:
    net, seen = compiled(name), 0
    for what, numbers in variants(net, 0.125):
        certificate = forged(net, numbers)
        verdict = judged(net, certificate, numbers=numbers)
        assert verdict.status == "refuted", (what, verdict)
        assert_it_refutes(rebuilt(Record(numbers, certificate, net.program)), certificate, verdict)
        seen += 1
    assert seen >= 5


def test_numbers_a_little_off_are_not_proved_by_the_mathematics_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2e-5 is about the bound: no input shows it for sure, but the composition must not confirm it."""
    net, seen = compiled("residual, not folded"), 0
    without_attack(monkeypatch)
    for what, numbers in variants(net, 2e-5):
        if not what.startswith("values"):  # which the check of the head would notice
            verdict = judged(net, forged(net, numbers), numbers=numbers)
            assert verdict.status == "unknown", (what, verdict)
            seen += 1
    assert seen >= 8


def test_a_head_a_little_off_is_refuted_with_its_input() -> None:
    net = compiled("groups")
    ((_, numbers),) = (v for v in variants(net, 2e-5) if v[0].startswith("values"))
    certificate = forged(net, numbers)
    verdict = judged(net, certificate, numbers=numbers)
    assert verdict.status == "refuted"
    assert_it_refutes(rebuilt(Record(numbers, certificate, net.program)), certificate, verdict)


def test_numbers_that_differ_are_named_where_the_digests_are_old() -> None:
    net = compiled("residual, not folded")
    for what, numbers in variants(net, 1e-3):
        verdict = judged(net, numbers=numbers)
        assert verdict.status != "proved", what
        if not what.startswith("sum"):
            part, _, stage = what.partition(" of stage ")
            name = "0.value" if part == "values" else part
            assert verdict.reason.endswith(f"changed since it was issued: stages.{stage}.{name}")


@pytest.mark.parametrize("by", [0.125, 2e-5])
def test_another_program_is_never_proved_whatever_its_digest_says(by: float) -> None:
    net = compiled("tanh")
    for i in (0, 2):
        steps = list(net.program.steps)
        weight = steps[i].weight.copy()
        weight[1, 1] += by
        steps[i] = replace(steps[i], weight=weight)
        other = Program(net.program.shape, tuple(steps))
        assert "not those that were certified" in judged(net, program=other).reason
        certificate = with_facts(net.certificate, program=other.digest())
        verdict = judged(net, certificate, program=other)
        assert verdict.status in ("unknown", "refuted"), verdict
        assert by < 0.1 or verdict.status == "refuted"
        module = rebuilt(Record(net.numbers(), certificate, other))
        assert_it_refutes(module, certificate, verdict)


def test_a_program_that_deviates_more_than_was_reckoned_with() -> None:
    net = compiled("tanh")
    steps = list(net.program.steps)
    steps[1] = replace(steps[1], deviation=1e-4, beyond=0.5)
    other = Program(net.program.shape, tuple(steps))
    assert judged(net, with_facts(net.certificate, program=other.digest()), program=other).status == "unknown"
    steps[1] = replace(steps[1], deviation=1e-4, beyond=9.0)  # out of reach
    other = Program(net.program.shape, tuple(steps))
    assert judged(net, with_facts(net.certificate, program=other.digest()), program=other).status == "proved"


def test_another_function_in_the_program_is_never_proved() -> None:
    net = compiled("tanh")
    steps = list(net.program.steps)
    steps[1] = replace(steps[1], function=attnc.functions.sin())
    other = Program(net.program.shape, tuple(steps))
    certificate = with_facts(net.certificate, program=other.digest())
    assert judged(net, certificate, program=other).status == "unknown"
    claims = with_head(with_layer(certificate, function="sin"), function="sin")
    verdict = judged(net, claims, program=other)
    assert verdict.status == "refuted"
    assert_it_refutes(rebuilt(Record(net.numbers(), claims, other)), claims, verdict)


def test_float64_numbers_under_a_float32_certificate() -> None:
    """Widened, and their digests brought up to date: the heads' claims are for another dtype."""
    net = compiled("tanh")
    numbers = copy.deepcopy(net).double().numbers()
    assert judged(net, numbers=numbers).status == "unknown"
    certificate = replace(forged(net, numbers), dtype="float64")
    assert judged(net, certificate, numbers=numbers).status == "unknown"


# The module that runs.


class Off(Network):
    def forward(self, x: Tensor, strict: bool | None = None) -> Tensor:
        return super().forward(x, strict) + 1e-2


class OffAtOneOutput(Network):
    def forward(self, x: Tensor, strict: bool | None = None) -> Tensor:
        out = super().forward(x, strict).clone()
        out[..., -1] *= 1.01
        return out


class Blank(Network):
    def forward(self, x: Tensor, strict: bool | None = None) -> Tensor:
        return super().forward(x, strict) * math.nan


class OffAtOneInput(Network):
    """Which no attack will come upon."""

    def forward(self, x: Tensor, strict: bool | None = None) -> Tensor:
        return super().forward(x, strict) + (x == 0.123).all(-1, keepdim=True).to(x.dtype)


class Broken(Network):
    def forward(self, x: Tensor, strict: bool | None = None) -> Tensor:
        raise RuntimeError("no")


class Summed(Network):
    def forward(self, x: Tensor, strict: bool | None = None) -> Tensor:
        return super().forward(x, strict).sum(0)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (Off, "refuted"),
        (OffAtOneOutput, "refuted"),
        (Blank, "refuted"),
        (OffAtOneInput, "unknown"),
        (Broken, "unknown"),
        (Summed, "unknown"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_module_whose_forward_is_not_its_numbers(kind: type[Network], status: str) -> None:
    net = compiled("tanh")
    other = kind(list(copy.deepcopy(net).stages), net.program, net.certificate)
    assert kind.__name__ in other.why_not_certified(), "its numbers are the certified ones, its code is not"
    verdict = attnc.verify(other)
    assert verdict.status == status
    if status == "refuted" and kind is not Blank:
        assert_it_refutes(other, net.certificate, verdict)


def test_a_hook_is_noticed() -> None:
    net = copy.deepcopy(compiled("tanh"))
    net.register_forward_hook(lambda module, given, out: out + 1e-2)
    verdict = attnc.verify(net)
    assert verdict.status == "refuted"
    assert_it_refutes(net, net.certificate, verdict)
    net = copy.deepcopy(compiled("tanh"))
    net.stages[1].register_forward_hook(lambda module, given, out: 1.1 * out)
    assert attnc.verify(net).status == "refuted"
    net = copy.deepcopy(compiled("tanh"))
    handle = net.stages[1][0].register_forward_pre_hook(lambda module, given: None)
    assert attnc.verify(net).status == "unknown", "it changes nothing, but who knows"
    handle.remove()
    assert attnc.verify(net).status == "proved"


def test_another_dtype_is_unknown() -> None:
    for name, dtype in (("tanh", torch.float32), ("relu", torch.float64)):
        for other in {torch.float16, torch.bfloat16, torch.float32, torch.float64} - {dtype}:
            verdict = attnc.verify(copy.deepcopy(compiled(name, dtype)).to(other))
            assert verdict.status == "unknown"
            assert str(other).removeprefix("torch.") in verdict.reason
    mixed = copy.deepcopy(compiled("tanh"))
    mixed.stages[2].double()
    assert attnc.verify(mixed).status == "unknown"


def test_a_changed_parameter_is_named() -> None:
    net = copy.deepcopy(compiled("tanh"))
    net.stages[1][0].value.data[0, 0, 1] += 1e-6
    verdict = attnc.verify(net)
    assert verdict.status == "unknown" and "stages.1.0.value" in verdict.reason
    net.stages[0].weight.data.fill_(math.nan)
    assert attnc.verify(net).status == "unknown"


def test_a_setting_that_loosens_products_is_unknown() -> None:
    net, wide = compiled("tanh"), compiled("tanh", torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        verdict = attnc.verify(net)
        assert verdict.status == "unknown" and "medium" in verdict.reason
        assert attnc.verify(wide).status == "proved"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert attnc.verify(net).status == "proved"


def test_the_largest_error_seen_is_within_every_bound() -> None:
    """The witness in exact arithmetic: it is an input of the box, and shows its error."""
    for name in CASES:
        net = compiled(name, torch.float64)
        witness = net.certificate.witness
        x = torch.tensor(witness.input, dtype=torch.float64).reshape(net.program.shape)
        assert net.certificate.covers(x)
        assert witness.error <= error_at(net, x) + 2 * net.certificate.rounding
        assert max(witness.error, error_at(net, x)) <= net.certificate.bound
        if name in ("relu", "gelu"):
            assert net.certificate.quality < 100


def test_a_network_without_attention_is_checked_too() -> None:
    program = Program((2,), (Affine(0, np.array([[0.5, -0.25]]), np.array([0.1])),))
    net = attnc.compile(program, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-6)
    assert attnc.verify(net).status == "proved"
    false = replace(net.certificate, bound=0.9 * net.certificate.bound)
    assert judged(net, false).status == "unknown"


@pytest.mark.parametrize("changed", ["bound", "rounding"])
def test_the_heads_of_every_group_are_proved(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that says less of the last group is not proved, though all that follows from it would be."""
    monkeypatch.setattr("attnc.check.network._attack", lambda *given: None)
    net = compiled("groups")
    claim = net.certificate.children[0]
    *others, last = claim.children
    assert others and judged(net).status == "proved"
    head = replace(last, bound=last.bound / 4) if changed == "bound" else moved(last, -0.75 * last.rounding)
    assert judged(net, with_layer(net.certificate, children=(*others, head))).status != "proved"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layers_that_are_always_0_are_proved(dtype: torch.dtype) -> None:
    """Their errors are only the floor of the arithmetic of bounds, the same for the prover and the checker."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)).eval()
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.fill_(1.0)
            layer.bias.fill_(-5.0)
    net = attnc.compile(model.to(dtype), domain=attnc.Box(-1, 1, shape=(1,)), eps=1e-3, dtype=dtype)
    assert attnc.verify(net).status == "proved"


@pytest.mark.parametrize("stage", range(3))
def test_a_stage_without_inputs_is_named(stage: int) -> None:
    net = copy.deepcopy(compiled("gelu"))
    net.stages[stage].inputs = ()
    assert net.why_not_certified() is not None and attnc.verify(net).status == "unknown"


def test_a_layer_whose_terms_do_not_add_up_or_with_a_witness_is_no_certificate() -> None:
    (layer, *_) = compiled("gelu").certificate.children
    for changed in ({"rounding": 0.0, "approximation": 0.0}, {"witness": Witness((0.0,) * 3, 0, 1e9)}):
        with pytest.raises(CertificateError):
            replace(layer, **changed)


def test_a_folded_normalisation_counts_the_rounding_of_its_own_weights() -> None:
    """s = gain/√(variance + ε) is known within 8 units of the longest floats."""
    one, size = np.ones(1), 2.0**20
    program = Program((1,), (Affine(0, np.ones((1, 1)), one), BatchNorm(1, one * 0, one, one, one * 0, 0.0)))
    layers = [Layer("affine", (0,), 2, {"weight": np.ones((1, 1)), "bias": one})]
    plain = Program((1,), (Affine(0, np.ones((1, 1)), one),))
    box, dtype = attnc.Box(-size, size, shape=(1,)), "float64"
    folded = compose(program, layers, box, {}, dtype)[2].error
    same = compose(plain, [replace(layers[0], value=1)], box, {}, dtype)[1].error
    assert (folded - same).min() >= 8 * EPS * size
