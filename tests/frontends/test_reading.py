"""How operations of a captured graph are read: what hands numbers on, what is a function, a norm, a gated block. Small graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from attnc.errors import AttncError, InputError, UnsupportedError
from attnc.frontends import aten
from attnc.frontends.capture import Captured, capture
from attnc.frontends.transformers import find_blocks, read_sites
from attnc.frontends.transformers.blocks import NormRead, read_norm
from attnc.frontends.transformers.expressions import NotElementwiseError, expression_of, function_of

Form = Callable[..., Any]


class Formula(nn.Module):
    def __init__(self, form: Form, *sizes: int) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.ones(sizes, dtype=torch.float64)) if sizes else None

    def forward(self, x: Tensor) -> Any:
        return self.form(x) if self.weight is None else self.form(x, self.weight)


def captured(form: Form, shape: tuple[int, ...], *sizes: int, grad: bool = True) -> tuple[Captured, fx.Node]:
    example = torch.zeros(shape, dtype=torch.float64)
    found = capture(Formula(form, *sizes).eval(), (example,), grad=grad)
    assert isinstance(found.outputs[0], fx.Node)
    return found, found.outputs[0]


def source(form: Form, shape: tuple[int, ...], **how: bool) -> bool:
    """Whether what is returned are the numbers of the input."""
    found, node = captured(form, shape)
    return aten.origin(node, **how) is found.inputs[0]


HANDED_ON: list[tuple[Form, tuple[int, ...]]] = [
    (lambda x: x.clone(), (2, 3, 4)),
    (lambda x: F.dropout(x, 0.5, False), (2, 3, 4)),
    (lambda x: x.reshape(6, 4).to(torch.float64), (2, 3, 4)),
    (lambda x: x.flatten(0, 1).unsqueeze(0), (2, 3, 4)),
]
REORDERED: list[tuple[Form, tuple[int, ...]]] = [
    (lambda x: x.transpose(0, 1), (2, 3, 4)),
    (lambda x: x.permute(1, 0, 2), (2, 3, 4)),
    (lambda x: x[1][:2], (2, 3, 4)),
]
CAST: list[tuple[Form, tuple[int, ...]]] = [(lambda x: x.float(), (2, 3))]
COMPUTED: list[tuple[Form, tuple[int, ...]]] = [
    (lambda x: F.dropout(x, 0.5, True), (2, 3, 4)),
    (lambda x: x.half(), (2, 3)),
    (lambda x: x.view(torch.int64), (2, 3)),
    (lambda x: x.transpose(1, 2), (2, 4, 4)),
    (lambda x: x.permute(0, 2, 1), (2, 4, 4)),
    (lambda x: x.reshape(6, 2, 2), (2, 3, 4)),
    (lambda x: x[..., :2], (2, 3, 4)),
    (lambda x: x.select(2, 1), (2, 4, 4)),
]


@pytest.mark.parametrize("i", range(len(HANDED_ON)))
def test_what_hands_numbers_on(i: int) -> None:
    assert source(*HANDED_ON[i])


@pytest.mark.parametrize("i", range(len(REORDERED)))
def test_vectors_may_be_reordered_where_only_their_set_matters(i: int) -> None:
    assert source(*REORDERED[i], rows=True)
    assert not source(*REORDERED[i])


@pytest.mark.parametrize("i", range(len(CAST)))
def test_casts_count_only_where_they_may(i: int) -> None:
    assert source(*CAST[i], casts=True)
    assert not source(*CAST[i], rows=True)


@pytest.mark.parametrize("i", range(len(COMPUTED)))
def test_what_makes_other_numbers(i: int) -> None:
    assert not source(*COMPUTED[i], rows=True, casts=True)


FUNCTIONS: list[tuple[Form, str | None]] = [
    (lambda s: s.clamp(-1, 3), "clip(-1,3)"),
    (lambda s: s.clamp(0, 8), "clip(0,8)"),
    (lambda s: s.clamp(min=0), "relu"),
    (lambda s: s.clamp(max=3), None),
    (lambda s: F.threshold(s, 0, 0), "relu"),
    (lambda s: F.softplus(s, 2.0, 30.0), None),
    (lambda s: F.softplus(s, 2.0, float("inf")), "softplus(2)"),
    (lambda s: torch.ops.aten.elu(s, 0.5), "elu(0.5)"),
    (lambda s: torch.ops.aten.elu(s, 0.5, 2.0), None),
    (lambda s: F.threshold(s, 0.1, 0.0), None),
    (lambda s: torch.ops.aten.elu(s, 0.5, 1.0, 2.0), None),
    (lambda s: F.leaky_relu(s, 0.3), "leaky_relu(0.3)"),
    (lambda s: F.gelu(s, approximate="tanh"), "gelu_tanh"),
    (lambda s: s.pow(2), "square"),
    (lambda s: s.pow(3), None),
    (lambda s: s * torch.sigmoid(1.702 * s), "quick_gelu"),
    (lambda s: s * torch.sigmoid(1.7 * s), None),
    (lambda s: 0.5 * torch.relu(s), None),
    (lambda s: torch.tanh(2 * s), None),
]


@pytest.mark.parametrize("i", range(len(FUNCTIONS)))
def test_which_function_it_is(i: int) -> None:
    form, name = FUNCTIONS[i]
    assert function_of(expression_of(form)) == name


NOT_ELEMENTWISE: list[Form] = [
    lambda s: torch.add(s, s.tanh(), alpha=2.0),
    lambda s: torch.div(s, 0.5, rounding_mode="floor"),
    lambda s: s.view(torch.int64).clamp(0, 6).view(torch.float64),
    lambda s: F.dropout(s.tanh(), 0.5, True),
    lambda s: s.tanh().half().double(),
    lambda s: s.T.contiguous().view(s.shape),
    lambda s: s * torch.ones(4, dtype=torch.float64),
    lambda s: s.cumsum(-1),
]


@pytest.mark.parametrize("i", range(len(NOT_ELEMENTWISE)))
def test_what_is_not_one_function_of_every_number(i: int) -> None:
    with pytest.raises(NotElementwiseError):
        expression_of(NOT_ELEMENTWISE[i])


def norm(form: Form, shape: tuple[int, ...] = (2, 3, 4), *sizes: int) -> NormRead | None:
    found, node = captured(form, shape, *(sizes or (4,)))
    return read_norm(node, found)


def rms(z: Tensor, eps: float = 1e-6, dim: int = -1, keep: bool = True) -> Tensor:
    return torch.rsqrt(z.pow(2).mean(dim, keepdim=keep) + eps)


NORMS: list[tuple[Form, str, float, bool]] = [
    (lambda z, w: w * (z * rms(z)), "rms", 1e-6, False),
    (lambda z, w: z * rms(z, 1e-3) * (1 + w), "rms", 1e-3, True),
    (lambda z, w: w * (z.float() * rms(z.float())).double(), "rms", 1e-6, False),
    (lambda z, w: (w * (z * rms(z))).transpose(0, 1)[1:], "rms", 1e-6, False),
    (lambda z, w: w * (z * torch.rsqrt((z * z).mean(-1, keepdim=True) + 0.5)), "rms", 0.5, False),
    (lambda z, w: F.layer_norm(z, (4,), w, None, 1e-3), "layer", 1e-3, False),
    (lambda z, w: F.rms_norm(z, (4,), w, 1e-3), "rms", 1e-3, False),
]


@pytest.mark.parametrize("i", range(len(NORMS)))
def test_norms(i: int) -> None:
    form, kind, eps, one_plus = NORMS[i]
    found = norm(form)
    assert found is not None and found.weight is not None
    assert (found.kind, found.eps, bool(found.one_plus), found.features) == (kind, eps, one_plus, 4)
    assert found.domain().gain.tolist() == [2.0 if one_plus else 1.0] * 4


NO_NORMS: list[tuple[Form, tuple[int, ...], tuple[int, ...]]] = [
    (lambda z, w: w * (z * rms(z, dim=1)), (2, 4, 4), (4,)),
    (lambda z, w: w * (z * rms(z, keep=False)), (4, 4), (4,)),
    (lambda z, w: w * (z * rms(z, dim=2)), (2, 3, 4), (4,)),  # another axis for inputs of another rank
    (lambda z, w: F.layer_norm(z, z.shape[1:]), (3, 4), (4,)),
    (lambda z, w: w * (2 * z * rms(z)), (2, 3, 4), (4,)),
    (lambda z, w: w * ((z + 1) * rms(z)), (2, 3, 4), (4,)),
    (lambda z, w: z * (z * rms(z)) * w, (2, 3, 4), (4,)),
    (lambda z, w: w * (w * (z * rms(z))), (2, 3, 4), (4,)),
    (lambda z, w: w * (z * rms(z)), (2, 3, 4), (3, 4)),
    (lambda z, w: (2 + w) * (z * rms(z)), (2, 3, 4), (4,)),
    (lambda z, w: w * (z * rms(z)), (2, 3, 1), (4,)),
    (lambda z, w: torch.add(1.0 * w, w, alpha=2) * (z * rms(z)), (2, 3, 4), (4,)),
    (lambda z, w: w * (z * torch.rsqrt(z.pow(4).mean(-1, keepdim=True) + 1e-6)), (2, 3, 4), (4,)),
    (lambda z, w: w * (z * torch.rsqrt((z * z[:1]).mean(-1, keepdim=True) + 1e-6)), (1, 3, 4), (4,)),
    (lambda z, w: w * (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True))), (2, 3, 4), (4,)),
    (lambda z, w: (w * (z * rms(z))).transpose(1, 2), (2, 4, 4), (4,)),
    (lambda z, w: F.dropout(w * (z * rms(z)), 0.5, True), (2, 3, 4), (4,)),
    (lambda z, w: F.layer_norm(z, (3, 4), w), (2, 3, 4), (3, 4)),
    (lambda z, w: F.layer_norm(z, (4,), 2 * w), (2, 3, 4), (4,)),
    (
        lambda z, w: w * (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True, dtype=torch.bfloat16) + 1e-6)),
        (2, 3, 4),
        (4,),
    ),
    (lambda z, w: w * (z.bfloat16() * rms(z.bfloat16())), (2, 3, 4), (4,)),
]


@pytest.mark.parametrize("i", range(len(NO_NORMS)))
def test_what_is_not_known_to_be_a_norm(i: int) -> None:
    form, shape, sizes = NO_NORMS[i]
    assert norm(form, shape, *sizes) is None


class Gated(nn.Module):
    """A gated block behind a norm; `join` says what enters its last map."""

    def __init__(self, join: Form, wide: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.gate, self.up = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(4, wide)
        self.down, self.act, self.join = nn.Linear(8, 4), nn.SiLU(), join
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.join(self, self.norm(x)))  # type: ignore[no-any-return]


class Split(nn.Module):
    """The norm outside, as in transformers, so that the block may be replaced as a whole."""

    def __init__(self, join: Form, wide: int = 8) -> None:
        super().__init__()
        inner = Gated(join, wide)
        self.norm, inner.norm = inner.norm, nn.Identity()
        self.mlp = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "join", [lambda m, x: m.act(m.gate(x)) * m.up(x), lambda m, x: m.up(x) * m.act(m.gate(x))]
)
def test_the_map_of_the_activation_comes_first(join: Form) -> None:
    (site,) = find_blocks(Split(join)).blocks
    assert site.up is not None
    assert (site.first.name, site.up.name, site.second.name) == ("mlp.gate", "mlp.up", "mlp.down")
    assert (site.activation, site.norm_name) == ("silu", "norm")


@pytest.mark.parametrize(
    ("join", "wide"),
    [
        (lambda m, x: m.act(m.gate(x)) * m.up(2 * x), 8),
        (lambda m, x: m.act(m.gate(x)) * m.up(x), 1),
        (lambda m, x: m.act(m.gate(x)) * m.up(x).roll(1, -1), 8),
        (lambda m, x: torch.add(m.act(m.gate(x)), m.up(x), alpha=2), 8),
        (lambda m, x: m.gate(x) * m.up(x), 8),
    ],
    ids=["two inputs", "broadcast", "rolled", "alpha", "no activation"],
)
def test_products_that_are_no_gated_block(join: Form, wide: int) -> None:
    with pytest.raises(InputError):
        find_blocks(Split(join, wide))


def test_maps_of_two_inputs_are_left_alone_beside_blocks() -> None:
    model = nn.Sequential(Split(lambda m, x: m.act(m.gate(x)) * m.up(2 * x)), mlp(nn.GELU())).eval()
    assert [site.name for site in find_blocks(model).blocks] == ["1.2"]


class Product(nn.Module):
    """x W + b by addmm, as in transformers' Conv1D."""

    def __init__(self, rows: int, columns: int, **factors: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(rows, columns)), nn.Parameter(torch.randn(columns))
        self.factors = factors

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight, **self.factors)


@pytest.mark.parametrize("factors", [{}, {"alpha": 2.0}, {"beta": 2.0}], ids=str)
def test_factors_of_a_map(factors: dict[str, float]) -> None:
    model = nn.Sequential(nn.LayerNorm(4), Product(4, 8, **factors), nn.GELU(), Product(8, 4)).double().eval()
    if factors:
        with pytest.raises(InputError):
            find_blocks(model)
    else:
        assert find_blocks(model).blocks[0].first.transposed


def mlp(activation: nn.Module, *between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    parts = (nn.LayerNorm(4), nn.Linear(4, 8), activation, *between, nn.Linear(8, 4))
    return nn.Sequential(*parts).double().eval()


class Uses(nn.Module):
    """A block whose forward is a formula of its parts."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.other, self.up, self.down = (
            nn.LayerNorm(4), nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4),
        )  # fmt: skip
        self.adapter, self.act, self.flag, self.form = nn.Linear(4, 4), nn.GELU(), False, form
        with torch.no_grad():
            self.other.weight.fill_(50.0)
        self.double().eval()

    def block(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self, x)  # type: ignore[no-any-return]


def test_nothing_is_known_of_a_block_behind_two_norms() -> None:
    (site,) = find_blocks(Uses(lambda m, x: m.block(m.norm(m.adapter(x))) + m.block(m.other(x)))).blocks
    assert site.norm is None and "2 times" in site.remarks[0]
    (site,) = find_blocks(Uses(lambda m, x: m.block(m.norm(m.adapter(x))) + m.block(m.norm(x)))).blocks
    assert site.norm is None, "a part of the model did not run: m.other"


def test_the_same_norm_twice_is_one() -> None:
    model = Uses(lambda m, x: m.block(m.norm(m.adapter(x))) + m.block(m.norm(m.other(x))))
    (site,) = find_blocks(model).blocks
    assert site.norm_name == "norm"


def test_a_part_that_did_not_run_may_stand_in_between() -> None:
    def form(m: Any, x: Tensor) -> Tensor:
        normed = m.norm(m.other(x))
        return m.block(m.adapter(normed) if m.flag else normed)  # type: ignore[no-any-return]

    (site,) = find_blocks(Uses(form)).blocks
    assert site.norm is None and "adapter" in site.remarks[0]


def test_an_activation_that_is_used_elsewhere_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        find_blocks(Uses(lambda m, x: m.block(m.norm(x)) + m.act(m.adapter(m.other(x)))))


def test_a_block_with_other_maps_at_another_place_is_refused() -> None:
    def form(m: Any, x: Tensor) -> Tensor:
        return m.block(m.norm(x)) + m.down(m.act(F.linear(x, m.up.weight)))  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedError):
        find_blocks(Uses(form))


def test_a_change_in_place_of_what_another_reads_is_read() -> None:
    """s is changed after a view of it was made; the second map reads the view."""

    def form(m: Any, x: Tensor) -> Tensor:
        s = m.up(m.norm(m.adapter(m.other(x))))
        view = s.view(s.shape)
        s.mul_(3.0)
        return m.down(m.act(view))  # type: ignore[no-any-return]

    with pytest.raises(InputError):
        find_blocks(Uses(form))


class GradDependent(nn.Module):
    def forward(self, s: Tensor) -> Tensor:
        return F.gelu(s) if torch.is_grad_enabled() else F.silu(s)


@pytest.mark.parametrize("read", [find_blocks, read_sites])
def test_a_forward_that_depends_on_the_grad_mode_is_refused(read: Callable[[nn.Module], object]) -> None:
    with pytest.raises(UnsupportedError, match="gradients"):
        read(mlp(GradDependent()))


class Holds(nn.GELU):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))


def observed(part: nn.Module, kind: str) -> nn.Module:
    getattr(part, f"register_{kind}")(lambda *given: None)
    return part


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_pre_hook"])
def test_hooks_of_what_is_replaced_are_not_lost(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="hooks"):
        find_blocks(mlp(observed(nn.GELU(), kind)))


def test_tensors_of_what_is_replaced_are_not_lost() -> None:
    with pytest.raises(UnsupportedError):
        find_blocks(mlp(Holds()))


def test_constants_are_compared_by_what_they_hold() -> None:
    """A tensor that forward makes is another object in every recording."""
    model = Uses(lambda m, x: m.block(m.norm(m.other(m.adapter(x)))) * torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert len(find_blocks(model).blocks) == 1
    calls: list[int] = []

    def form(m: Any, x: Tensor) -> Tensor:
        calls.append(1)
        return m.block(m.norm(m.other(m.adapter(x)))) * torch.tensor([float(len(calls))])  # type: ignore[no-any-return]

    with pytest.raises(AttncError):
        find_blocks(Uses(form))


@pytest.mark.parametrize("eps", [0.0, -1e-5, 1e-30, float("nan")])
def test_a_norm_without_an_eps_bounds_nothing(eps: float) -> None:
    model = mlp(nn.GELU())
    model[0].eps = eps
    with pytest.raises(UnsupportedError, match="eps="):
        find_blocks(model)


@pytest.mark.parametrize(
    "between", [nn.Dropout(), nn.Hardtanh(-0.1, 0.1), nn.LayerNorm(8), nn.Flatten(0)], ids=repr
)
def test_what_stands_where_the_dropout_was(between: nn.Module) -> None:
    model = mlp(nn.GELU(), between).double()
    if isinstance(between, nn.Dropout):
        assert find_blocks(model).blocks[0].activation == "gelu"
    else:
        with pytest.raises(AttncError):
            find_blocks(model)
