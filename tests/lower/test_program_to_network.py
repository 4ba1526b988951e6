"""program → network: what eps is met, what is said where it is not, and how few anchors it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from flint import arb
from torch import Tensor, nn

import attnc
from attnc import functions
from attnc.domain import Interval
from attnc.errors import AttncError, ConvergenceError, PrecisionError
from attnc.functions.balls import working
from attnc.heads.target import Plan
from attnc.lower.function_to_head import few_digits, head_within
from attnc.lower.layers import lower_steps
from attnc.lower.pointwise import by_reach
from attnc.network.network import Network
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Program, Reshape
from attnc.program.evaluate import exact
from tests.sampled import only

WIDE, NARROW = torch.float64, torch.float32


def mlp(activation: Callable[[], nn.Module], *widths: int, seed: int = 0) -> nn.Sequential:
    """As torch initialises it."""
    torch.manual_seed(seed)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1]).eval()


def compiled(model: nn.Module | Program, d: int, eps: float, dtype: torch.dtype = NARROW) -> Network:
    if isinstance(model, nn.Module):
        model = model.to(dtype)
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(d,)), eps=eps, dtype=dtype)


def anchors(net: Network) -> int:
    return sum(int(head.key.shape[1]) for layer in net.layers for head in layer)


def inputs(net: Network, count: int) -> Tensor:
    """Of the box, corners among them."""
    box, draw = net.certificate.holds_for, np.random.default_rng(5)
    u = draw.random((count, *box.shape))
    u[::3] = u[::3].round()
    x = torch.from_numpy(box.lo + u * (box.hi - box.lo)).to(next(net.parameters()).dtype)
    return x[box.contains(x)]


def largest_error(net: Network, x: Tensor) -> float:
    """An upper bound of |executed - exact| over a few inputs."""
    with working(192):
        meant, found = exact(net.program, x.double().numpy()).ravel(), net(x).double().ravel().tolist()
        return max(float(abs(arb(y) - v).upper()) for y, v in zip(found, meant, strict=True))


# The figures.


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (0, *range(2, 8)))])
@pytest.mark.parametrize(
    ("activation", "dtype", "eps"),
    only(
        [(nn.Tanh, NARROW, 1e-3), (nn.ReLU, WIDE, 1e-4), (nn.GELU, NARROW, 1e-3)],
        [(a, *d) for a in (nn.Tanh, nn.ReLU, nn.GELU) for d in ((WIDE, 1e-4), (NARROW, 1e-3))],
    ),
)
def test_an_mlp_of_64_neurons_and_two_layers(
    activation: type[nn.Module], dtype: torch.dtype, eps: float, seed: int
) -> None:
    model = mlp(activation, 16, 64, 64, 4, seed=seed)
    net = compiled(model, 16, eps, dtype)
    assert net.certificate.bound <= eps
    assert net.why_not_certified() is None
    x = inputs(net, 3000)
    assert len(x) == 3000
    assert float((net(x) - model(x).detach()).abs().max()) <= eps
    assert largest_error(net, x[:6]) <= net.certificate.bound
    assert anchors(net) <= 16
    assert all(len(layer.groups) == 1 for layer in net.layers)


def test_the_bound_is_no_more_than_eps_asked_and_the_terms_make_it_up() -> None:
    for eps in (1e-2, 3e-4, 1e-5):
        c = compiled(mlp(nn.Tanh, 3, 6, 2), 3, eps).certificate
        assert c.witness.error <= c.bound <= eps
        assert (
            max(c.approximation, c.rounding) <= 1.01 * c.bound <= 1.01 * 1.01 * (c.approximation + c.rounding)
        )
        assert 0 < c.children[0].facts["error_in"] < c.children[0].bound


# What cannot be met.


@pytest.mark.parametrize(
    ("activation", "widths", "dtype", "eps", "term"),
    [
        (nn.Sigmoid, (1, 1, 1), WIDE, 1e-16, "rounding"),
        pytest.param(nn.Sigmoid, (3, 6, 2), NARROW, 1e-6, "rounding", marks=pytest.mark.slow),
        pytest.param(nn.Tanh, (3, 6, 2), WIDE, 1e-15, "rounding", marks=pytest.mark.slow),
        pytest.param(nn.ReLU, (3, 6, 2), WIDE, 1e-9, "approximation", marks=pytest.mark.slow),
        pytest.param(nn.GELU, (3, 6, 2), NARROW, 1e-7, "rounding", marks=pytest.mark.slow),
        pytest.param(nn.Hardtanh, (3, 6, 2), NARROW, 1e-6, "rounding", marks=pytest.mark.slow),
    ],
)
def test_an_eps_out_of_reach_names_the_layer_and_what_can_be_met(
    activation: type[nn.Module], widths: tuple[int, ...], dtype: torch.dtype, eps: float, term: str
) -> None:
    model = mlp(activation, *widths)
    with pytest.raises(PrecisionError) as refused:
        compiled(model, widths[0], eps, dtype)
    text, reachable = str(refused.value), refused.value.reachable
    assert f"eps={eps:g} in {str(dtype).removeprefix('torch.')}" in text
    assert all(word in text for word in (f"{term} error", "layer 1", activation.__name__.lower()))
    assert ("dtype=torch.float64" in text) == (dtype is NARROW)
    assert f"{reachable:g}" in text and reachable > eps
    assert compiled(model, widths[0], reachable, dtype).certificate.bound <= reachable


@pytest.mark.slow
def test_a_wide_layer_gets_a_lattice_where_other_designs_fail() -> None:
    """Values of tuned heads cancel on wide intervals; those of a lattice do not."""
    model = nn.Sequential(nn.Linear(1, 1), nn.GELU()).eval().double()
    with torch.no_grad():
        model[0].weight.fill_(64.0)
        model[0].bias.fill_(0.0)
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(1,)), eps=1e-9)
    assert net.layers[0].groups[0][1].design == "lattice"
    x = torch.linspace(-1, 1, 2001, dtype=WIDE)[:, None]
    assert float((net(x) - model(x)).detach().abs().max()) <= net.certificate.bound <= 1e-9
    with pytest.raises(PrecisionError) as refused:
        attnc.compile(model, domain=attnc.Box(-1, 1, shape=(1,)), eps=1e-13)
    assert refused.value.reachable is not None and refused.value.reachable < 1e-9


def test_affine_maps_alone_are_named_too() -> None:
    for dtype, unit in ((NARROW, 2.0**-24), (WIDE, 2.0**-53)):
        model = nn.Linear(30, 2).eval()
        with pytest.raises(PrecisionError) as refused:
            compiled(model, 30, unit / 8, dtype)
        net = compiled(model, 30, refused.value.reachable, dtype)
        assert net.layers == [] and net.certificate.bound <= refused.value.reachable < 1000 * unit
        assert net.certificate.parts("layer") == () and net.certificate.approximation == 0
        assert largest_error(net, inputs(net, 20)) <= net.certificate.bound


@pytest.mark.slow
def test_a_wide_model_in_float32() -> None:
    """Rounding of wide sums refuses the eps. All that the message offers works: the larger eps, float64, and the bound of a given
    input, which does not allow for the worst order of summation."""
    model, box, eps = mlp(nn.Sigmoid, 8, 1024, 2), attnc.Box(-1, 1, shape=(8,)), 3e-5
    with pytest.raises(PrecisionError) as refused:
        attnc.compile(model, domain=box, eps=eps)
    text, reachable = str(refused.value), refused.value.reachable
    assert reachable is not None and reachable > eps
    assert all(
        word in text for word in ("dtype=torch.float64", f"eps >= {reachable:g}", "net.certified(x)", "width")
    )
    net = attnc.compile(model, domain=box, eps=reachable)
    assert net.certificate.proved and eps < net.certificate.bound <= reachable
    assert net.certified(torch.full((1, 8), 0.5)).largest < eps / 10
    assert attnc.compile(model, domain=box, eps=eps, dtype=WIDE).certificate.bound <= eps


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [NARROW, WIDE], ids=str)
def test_what_is_reachable_with_two_layers_can_be_met(dtype: torch.dtype) -> None:
    model = mlp(nn.Tanh, 3, 6, 6, 2)
    with pytest.raises(PrecisionError) as refused:
        compiled(model, 3, 1e-15, dtype)
    reachable = refused.value.reachable
    assert compiled(model, 3, reachable, dtype).certificate.bound <= reachable


def test_a_deviation_of_the_source_is_not_called_rounding() -> None:
    """softplus with a threshold within reach: neither heads nor a wider dtype help, and the message must not say so."""
    model = mlp(lambda: nn.Softplus(threshold=0.25), 3, 6, 2)
    with pytest.raises(PrecisionError) as refused:
        compiled(model, 3, 1e-3)
    assert "affine layers" not in str(refused.value)
    assert "torch.float64" not in str(refused.value)
    assert compiled(model, 3, refused.value.reachable).certificate.bound <= refused.value.reachable


@pytest.mark.slow
def test_a_head_that_misses_its_share_is_the_closest_that_is_known() -> None:
    """Asked for less, the search comes within 0.03; asked for more, it must not come back with something worse."""
    f, wide = functions.gelu(), Interval(-4608.0, 4608.0)
    within = head_within(Plan(f, wide, "float32"), 3e-2).certificate
    assert within.bound <= 3e-2
    missed = head_within(Plan(f, wide, "float32"), 1e-3).certificate
    assert 1e-3 < missed.bound <= 2 * within.bound


# Huge and tiny numbers.


def scaled(model: nn.Module, by: float) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(by)
    return model


@pytest.mark.parametrize(
    ("activation", "dtype", "by"),
    [
        (nn.Tanh, NARROW, 1e38),
        (nn.ReLU, NARROW, 1e20),
        (nn.ReLU, NARROW, 1e38),
        (nn.GELU, NARROW, 1e36),
        (nn.Tanh, WIDE, 1e300),
        (nn.GELU, WIDE, 1e150),
    ],
)
def test_what_may_overflow_is_refused(activation: type[nn.Module], dtype: torch.dtype, by: float) -> None:
    with pytest.raises(PrecisionError):
        compiled(scaled(mlp(activation, 3, 6, 2).to(dtype), by), 3, 1e-3, dtype)


def test_float64_weights_that_float32_does_not_hold() -> None:
    model = mlp(nn.Tanh, 3, 6, 2).double()
    with torch.no_grad():
        model[2].weight[0, 0] = 1e60
    with pytest.raises(PrecisionError, match=r"dtype=torch\.float64"):
        attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-3, dtype=NARROW)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU], ids=lambda a: a.__name__)
def test_neurons_that_reach_too_far_name_their_layer(activation: type[nn.Module]) -> None:
    """On an interval of 10^10 a head cannot follow: which layer asks for that?"""
    with pytest.raises((PrecisionError, ConvergenceError)):
        compiled(scaled(mlp(activation, 3, 6, 2), 1e10), 3, 1e-3)


@pytest.mark.parametrize("reach", [1e30, 1e300])
def test_a_huge_box_is_refused_or_met(reach: float) -> None:
    with pytest.raises(AttncError):
        attnc.compile(
            mlp(nn.Tanh, 3, 6, 2).double(), domain=attnc.Box(-reach, reach, shape=(3,)), eps=1e-3, dtype=WIDE
        )


@pytest.mark.parametrize("by", [1e-30, 1e-40])
def test_tiny_weights(by: float) -> None:
    """1e-40 is subnormal in float32: such numbers may be flushed, and the bound knows it."""
    net = compiled(scaled(mlp(nn.ReLU, 3, 6, 2), by), 3, 1e-3)
    assert largest_error(net, inputs(net, 10)) <= net.certificate.bound < 1e-35


def test_zero_weights_and_constant_neurons() -> None:
    dead = scaled(mlp(nn.ReLU, 3, 6, 2), 0.0)
    net = compiled(dead, 3, 1e-3)
    assert torch.equal(net(inputs(net, 5)), torch.zeros(5, 2))
    part = mlp(nn.Tanh, 3, 6, 2)
    with torch.no_grad():
        part[0].weight[2:5] = 0
        part[0].bias[2] = 0
        part[2].weight[1] = 0
    net = compiled(part, 3, 1e-3)
    assert largest_error(net, inputs(net, 10)) <= net.certificate.bound <= 1e-3
    assert torch.equal(net(inputs(net, 5))[:, 1], part[2].bias[1].detach().expand(5))


@pytest.mark.parametrize("dtype", [NARROW, WIDE], ids=str)
def test_one_neuron(dtype: torch.dtype) -> None:
    net = compiled(mlp(nn.Sigmoid, 1, 1, 1), 1, 1e-3, dtype)
    assert net(inputs(net, 4)).shape == (4, 1)
    assert largest_error(net, inputs(net, 30)) <= net.certificate.bound <= 1e-3
    assert attnc.verify(net).status == "proved"


def test_attention_first_and_last() -> None:
    eye = np.eye(2, dtype=np.float32)
    for steps in (
        (Pointwise(0, functions.tanh()), Affine(1, eye)),
        (Affine(0, eye), Pointwise(1, functions.tanh())),
    ):
        net = compiled(Program((2,), steps), 2, 1e-3)
        assert largest_error(net, inputs(net, 20)) <= net.certificate.bound <= 1e-3
        assert net.certificate.children[0].facts["error_in"] < 1e-6


def test_coordinates_that_are_fixed() -> None:
    """lo == hi: the box is a segment, or one point; the reach, and so the error, is smaller there."""
    model = mlp(nn.Tanh, 3, 6, 2)
    whole = compiled(model, 3, 1e-3)
    for lo, hi in (([-1.0, 0.5, 0.25], [1.0, 0.5, 0.25]), ([0.5, 0.5, -1.0], [0.5, 0.5, -1.0])):
        net = attnc.compile(model, domain=attnc.Box(torch.tensor(lo), torch.tensor(hi)), eps=1e-3)
        assert largest_error(net, inputs(net, 20)) <= net.certificate.bound <= 1e-3
        assert attnc.verify(net).status == "proved"
        narrow, full = (n.certificate.children[0].children[0].interval.width for n in (net, whole))
        assert narrow < full
        assert not net.certificate.covers(torch.tensor([0.0, 0.0, 0.0]))


# How few anchors.


@cache
def wide_neuron(activation: type[nn.Module], eps: float) -> Network:
    """Neuron 2 reaches 2048 and is divided by 1024 behind, the others reach 1."""
    model = nn.Sequential(nn.Linear(2, 4), activation(), nn.Linear(4, 1)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.5, 0.25], [-0.25, 0.75], [1024.0, -1024.0], [0.5, -0.5]]))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[1.0, -0.5, 2.0**-10, 0.75]]))
        model[2].bias.fill_(0.125)
    return compiled(model, 2, eps)


@pytest.mark.parametrize(
    ("activation", "loose", "tight"),
    [(nn.GELU, 0.3, 5e-5), pytest.param(nn.ReLU, 0.3, 3e-3, marks=pytest.mark.slow)],
    ids=["gelu", "relu"],
)
@pytest.mark.slow
def test_groups_are_made_where_eps_asks_for_them(
    activation: type[nn.Module], loose: float, tight: float
) -> None:
    (layer,) = wide_neuron(activation, loose).layers
    assert len(layer.groups) == 1 and layer.groups[0][0] is None
    net = wide_neuron(activation, tight)
    (layer,) = net.layers
    assert [neurons.tolist() for neurons, _ in layer.groups] == [[2], [0, 1, 3]]
    far, near = net.certificate.children[0].children
    assert far.interval.hi >= 2048 and near.interval.hi <= 1.25
    assert far.bound > tight > near.bound, "the wide head alone would not do"
    assert largest_error(net, inputs(net, 20)) <= net.certificate.bound <= tight


def test_groups_by_reach() -> None:
    def groups(lo: np.ndarray, hi: np.ndarray) -> list[np.ndarray | None]:
        far = max(float(np.abs([lo, hi]).max()), 1e-200)
        return [neurons for _, neurons in by_reach(lo, hi, 4, unit=far, step=4.0, least=2.0**-40 * far)]

    lo = np.array([-1.0, -100.0, 0.0, -0.5, -20.0])
    assert [g.tolist() for g in groups(lo, -lo)] == [[1], [4], [0, 3], [2]]
    assert groups(np.full(5, -2.0), np.full(5, 3.0)) == [None]
    assert groups(np.zeros(3), np.zeros(3)) == [None]
    for seed in range(20):
        draw = np.random.default_rng(seed)
        reach = 10.0 ** draw.uniform(-8, 8, (3, 40))
        found = groups(-reach, reach)
        assert 1 < len(found) <= 4
        assert sorted(np.concatenate(found).tolist()) == list(range(40))
        tops = [reach[:, g].max() for g in found]
        assert tops == sorted(tops, reverse=True)
        assert all(reach[:, g].max() > reach[:, h].max(0).max() for g, h in pairwise(found))


def test_a_looser_eps_never_takes_more_anchors() -> None:
    """And the bound is not far below eps where anchors are dear: no layer was given far better heads than it needs."""
    model = mlp(nn.GELU, 2, 3, 1)
    nets = [compiled(model, 2, eps, WIDE) for eps in (1e-2, 1e-4, 1e-6)]
    counts = [anchors(net) for net in nets]
    assert counts == sorted(counts) and counts[0] < counts[-1] <= 4 * counts[0]
    assert 1e-8 < nets[-1].certificate.bound <= 1e-6


def test_heads_of_a_layer_share_their_numbers() -> None:
    """What attention adds does not grow with the width."""
    added = []
    for width in (4, 64, 256):
        net = compiled(mlp(nn.Tanh, 4, width, 2), 4, 1e-2)
        added.append(sum(p.numel() for layer in net.layers for p in layer.parameters()))
        own = sum(p.numel() for p in net.parameters())
        assert own == added[-1] + (4 * width + width) + (2 * width + 2)
    assert max(added) < 100


@pytest.mark.parametrize("eps", [1.0, 2.9e-4, 1e-300, 7e-5, 123.0, 5e-324, 1.7e308])
def test_few_digits_are_below_and_close(eps: float) -> None:
    short = few_digits(eps)
    assert 0 < short <= eps
    assert eps < 1e-300 or short >= eps / 2.01


def test_the_same_wish_is_met_by_the_same_head() -> None:
    first, second = (compiled(mlp(nn.Tanh, 3, 6, 2), 3, 1e-3) for _ in range(2))
    assert first.numbers().digests() == second.numbers().digests()
    assert first.certificate == second.certificate
    first.layers[0][0].value.data.zero_()
    assert second.why_not_certified() is None, "heads are shared as numbers, not as tensors"
    assert compiled(mlp(nn.Tanh, 3, 6, 2), 3, 1e-3).why_not_certified() is None


# Deviations.


def test_the_deviation_of_softplus_is_part_of_the_bound() -> None:
    """torch's softplus is the identity beyond its threshold. Without the deviation the bound would be false of the module."""
    model = mlp(lambda: nn.Softplus(threshold=0.25), 3, 6, 2).double()
    net = compiled(model, 3, 1.0, WIDE)
    ideal = [Pointwise(s.input, s.function) if isinstance(s, Pointwise) else s for s in net.program.steps]
    without = compiled(Program((3,), tuple(ideal)), 3, 1e-2, WIDE).certificate.bound
    x = inputs(net, 4000)
    off = float((net(x) - model(x).detach()).abs().max())
    assert without < off <= net.certificate.bound
    weight, deviation = model[2].weight.abs().sum(1).max().item(), math.log1p(math.exp(-0.25))
    assert net.certificate.bound <= 1.01 * (weight * deviation + 1e-2)
    assert net.certificate.approximation >= off - 1e-6, "the source's deviation is no rounding"


def test_a_threshold_out_of_reach_costs_nothing() -> None:
    model = mlp(nn.Softplus, 3, 6, 2)
    (step,) = (s for s in compiled(model, 3, 1e-3).program.steps if isinstance(s, Pointwise))
    assert step.deviation > 0 and step.beyond == 20
    ideal = mlp(lambda: nn.Softplus(threshold=1e6), 3, 6, 2)
    assert compiled(model, 3, 1e-3).certificate.bound == compiled(ideal, 3, 1e-3).certificate.bound


# Layers.


def norm(input: int, dtype: type = np.float64) -> BatchNorm:
    parts = (np.linspace(a, b, 3).astype(dtype) for a, b in ((-1, 1), (0.5, 2), (1, 3), (0, 1)))
    return BatchNorm(input, *parts, 1e-5)


WEIGHT, BIAS = np.arange(9.0).reshape(3, 3) / 7, np.array([0.1, -0.2, 0.3])


@pytest.mark.parametrize(
    ("steps", "kinds"),
    [
        ((Affine(0, WEIGHT), norm(1)), ["affine"]),
        ((Affine(0, WEIGHT), norm(1), norm(2)), ["affine", "batch_norm"]),
        ((norm(0), Affine(1, WEIGHT)), ["batch_norm", "affine"]),
        ((Affine(0, WEIGHT), norm(1), Combine((2, 1), (1.0, 1.0))), ["affine", "batch_norm", "combine"]),
        (
            (Affine(0, WEIGHT), norm(1), Affine(1, WEIGHT), Combine((2, 3), (1.0, 1.0))),
            ["affine", "batch_norm", "affine", "combine"],
        ),
        ((Affine(0, WEIGHT), norm(1), norm(1), Combine((2, 3), (1.0, 1.0))), ["affine", "batch_norm", "batch_norm", "combine"]),
        ((Affine(0, WEIGHT), Pointwise(1, functions.tanh()), norm(2)), ["affine", "pointwise", "batch_norm"]),
        ((Affine(0, WEIGHT), Reshape(1, (3,)), norm(2)), ["affine", "reshape", "batch_norm"]),
        ((Affine(0, WEIGHT), norm(1), Affine(2, WEIGHT), norm(3)), ["affine", "affine"]),
    ],
)  # fmt: skip
def test_a_normalisation_is_folded_only_into_a_map_that_nothing_else_reads(
    steps: tuple, kinds: list[str]
) -> None:
    stages = lower_steps(Program((3,), steps), "float64")
    assert [stage.kind for stage in stages] == kinds
    assert stages[-1].value == len(steps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_folded_is_the_product(dtype: str) -> None:
    """diag(a) W and a∘b + c, each number within a unit in the last place of the exact one."""
    step = norm(1)
    (stage,) = lower_steps(Program((3,), (Affine(0, WEIGHT, BIAS), step)), dtype)
    assert stage.tensor("weight").dtype == stage.tensor("bias").dtype == np.dtype(dtype) and (
        stage.input,
        stage.value,
    ) == (0, 2)
    unit = 2.0**-23 if dtype == "float32" else 2.0**-52
    with working(192):
        for i in range(3):
            scale = arb(step.gain[i]) / (arb(step.variance[i]) + arb(step.epsilon)).sqrt()
            for j in range(3):
                meant = scale * arb(WEIGHT[i, j])
                assert abs(arb(float(stage.tensor("weight")[i, j])) - meant) <= unit * abs(meant)
            meant = scale * (arb(BIAS[i]) - arb(step.mean[i])) + arb(step.shift[i])
            size = abs(scale * arb(BIAS[i])) + abs(scale * arb(step.mean[i])) + abs(arb(step.shift[i]))
            assert abs(arb(float(stage.tensor("bias")[i])) - meant) <= 2 * unit * size


def test_folded_or_not_the_same_program_is_certified() -> None:
    """The value that is read once more changes what runs, not what is meant."""
    first, second = Affine(0, WEIGHT, BIAS), norm(1)
    plain = compiled(Program((3,), (first, second, Pointwise(2, functions.tanh()))), 3, 1e-3, WIDE)
    steps = (first, second, Pointwise(2, functions.tanh()), Combine((3, 1), (1.0, 0.0)))
    other = compiled(Program((3,), steps), 3, 1e-3, WIDE)
    assert len(plain.stages) == 2 and len(other.stages) == 4
    x = inputs(plain, 20)
    assert float((plain(x) - other(x)).abs().max()) <= plain.certificate.bound + other.certificate.bound
    for net in (plain, other):
        assert largest_error(net, x) <= net.certificate.bound
        assert attnc.verify(net).status == "proved"


def test_numbers_are_rounded_to_the_dtype() -> None:
    program = Program((3,), (Affine(0, WEIGHT, BIAS), Combine((1, 0), (0.1, 1.0))))
    linear, total = lower_steps(program, "float32")
    assert np.array_equal(linear.tensor("weight"), WEIGHT.astype(np.float32))
    assert np.array_equal(linear.tensor("bias"), BIAS.astype(np.float32))
    assert total.settings["coefficients"] == (float(np.float32(0.1)), 1.0)
    assert lower_steps(program, "float64")[1].settings["coefficients"] == (0.1, 1.0)
    net = compiled(program, 3, 1e-4)
    assert largest_error(net, inputs(net, 20)) <= net.certificate.bound
