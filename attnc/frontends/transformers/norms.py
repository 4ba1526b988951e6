"""Norms in a captured graph: torch's own operations, RMS norms written out as transformers does, and converted norms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, fx, nn

from attnc.domain import Normed
from attnc.errors import Problem
from attnc.frontends import aten
from attnc.frontends.capture import Captured
from attnc.frontends.problems import DTYPES, HALF, tensor_problem
from attnc.network.norm import Norm

NORMS = ("layer_norm", "rms_norm")
NORM = "attnc.norm"  # a norm that is converted, in a captured graph
LAST = ("mul", "div", "add")  # operations that a norm may end with, where it is written out
LEAST_EPS = 1e-24  # far above the square of what float32 flushes to zero
MOST_EPS = 1e9  # far below the largest mean square of a token that a converted norm accepts


@dataclass(frozen=True, eq=False)
class NormRead:
    """A norm as it is executed: x = gain∘z/√(mean z² + eps) + shift, z centred in a LayerNorm (Gemma: gain = 1 + weight)."""

    name: str  # the part of the model in which it runs
    kind: str  # "layer" or "rms"
    features: int
    eps: float | None  # None: torch's default for rms, the dtype's own
    weight: Tensor | None
    bias: Tensor | None
    one_plus: torch.dtype | None = None  # the dtype in which 1 + weight is taken, where that is the gain
    half: bool = False  # whether some of its numbers are rounded to bfloat16 or float16

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for norms that make the same numbers: the same tensors, kind and eps."""
        return self.kind, self.features, self.eps, id(self.weight), id(self.bias), self.one_plus, self.half

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Gain and shift, with their names in the model."""
        for key, tensor in (("weight", self.weight), ("bias", self.bias)):
            if tensor is not None:
                yield f"{self.name}.{key}", tensor

    def problems(self) -> Iterator[Problem]:
        """Why its outputs are not bounded: with an eps that underflows, tiny inputs may be returned longer than √d."""
        if self.eps is not None and not LEAST_EPS <= self.eps <= MOST_EPS:
            accepted = (
                f"give {LEAST_EPS:.0e} to {MOST_EPS:.0e}, so that rounding does not matter for tiny inputs"
            )
            reason = f"has eps={self.eps}: {accepted}"
            yield Problem(self.name, reason)
        for name, tensor in self.tensors():
            if (refused := tensor_problem(tensor, half=True)) is not None:
                yield Problem(name, refused)

    def domain(self) -> Normed:
        """Every vector that it can return, rounded to half precision if it is."""
        found = self.gain_and_shift()
        return found.rounded() if self.half else found

    def gain_and_shift(self) -> Normed:
        """Every vector that it can return in exact arithmetic. Gemma adds 1 + weight in float32, whatever the dtype of the
        model."""
        weight = self.weight
        if weight is not None and self.one_plus is not None:
            weight = 1.0 + weight.to(self.one_plus)
        gain = torch.ones(self.features) if weight is None else weight.detach()
        shift = torch.zeros(self.features) if self.bias is None else self.bias.detach()
        numbers = (np.array(t.to("cpu", torch.float64).numpy()) for t in (gain, shift))
        return Normed(self.kind == "layer", *numbers)


def read_norm(node: fx.Node, captured: Captured) -> NormRead | None:
    """The norm whose outputs are the vectors that a node computes; None if it is not recognised."""
    found = _read(aten.origin(node, rows=True), captured)
    return None if found is None else _with_precision(node, *found)[1]


def normed_by(node: fx.Node, captured: Captured) -> fx.Node | None:
    """What enters the norm whose outputs a node returns; None if it is not recognised."""
    found = _read(aten.origin(node), captured)
    return None if found is None else aten.origin(found[0], casts=True, half=True)


def norms_in(captured: Captured) -> Iterator[tuple[fx.Node, fx.Node, NormRead]]:
    """Every norm that the graph runs: the node that it computes, the node that enters it, and the norm."""
    for node in captured.graph.nodes:
        found = _read(node, captured) if aten.name(node) in (*NORMS, NORM, *LAST) else None
        ends = aten.name(node) not in LAST or not any(_is_norm(user, captured) for user in node.users)
        if found is not None and ends:
            last = _cast(node, captured)
            entering, norm = _with_precision(last, *found)
            yield last, aten.origin(entering, casts=True, half=True), norm


def _cast(node: fx.Node, captured: Captured) -> fx.Node:
    """The result of a norm in the dtype in which its module returns it."""
    (user, *others) = [user for user in node.users if aten.name(user) != "_assert_tensor_metadata"] or (node,)
    through = aten.name(user) in aten.CASTS and not others and captured.path(user) == captured.path(node)
    return _cast(user, captured) if through else node


def _with_precision(node: fx.Node, entering: fx.Node, norm: NormRead) -> tuple[fx.Node, NormRead]:
    """The norm, with a note if a number between its input and a node has half precision."""
    return entering, replace(norm, half=bool(dtypes_between(node, entering) & set(HALF)))


def dtypes_between(node: fx.Node, entering: fx.Node) -> set[object]:
    """The dtypes of the numbers that are computed between the input of a norm and a node, the node's own included."""
    begin, todo, seen = aten.origin(entering, casts=True, half=True), [node], set[fx.Node]()
    while todo:
        at = todo.pop()
        if at in seen or at is begin:
            continue
        seen.add(at)
        todo += at.all_input_nodes
    return {aten.dtype(at) for at in seen}


def _is_norm(user: fx.Node, captured: Captured) -> bool:
    """Whether an operation, or one behind casts of it, computes a norm: then the norm ends there."""
    if aten.name(user) in LAST:
        return _read(user, captured) is not None
    through = aten.unchanged(user, casts=True, half=True) is not None
    return through and any(_is_norm(next_, captured) for next_ in user.users)


def _read(node: fx.Node, captured: Captured) -> tuple[fx.Node, NormRead] | None:
    """What enters the norm that a node computes, and the norm."""
    if aten.name(node) in NORMS:
        return _fused(node, captured)
    if aten.name(node) != NORM:
        return _shifted(node, captured) if aten.name(node) == "add" else _written_out(node, captured)
    given = aten.arguments(node)
    part = captured.parts.get(str(given["name"]))
    if not isinstance(part, Norm):
        return None
    kind, heads = "layer" if part.centred else "rms", part.heads
    tensors = (part.weight, part.bias, part.one_plus)
    return given["x"], NormRead(str(given["name"]), kind, heads.dim, heads.offset, *tensors)


def _fused(node: fx.Node, captured: Captured) -> tuple[fx.Node, NormRead] | None:
    given = aten.arguments(node)
    sizes = given["normalized_shape"]
    if not isinstance(sizes, (list, tuple)) or len(sizes) != 1:
        return None
    tensors = [given.get(key) for key in ("weight", "bias")]
    gain = _gain(tensors[0], captured) if isinstance(tensors[0], fx.Node) else None
    found, one_plus = [gain and gain[0], _tensor(tensors[1], captured)], gain and gain[1]
    if any(given is not None and tensor is None for given, tensor in zip(tensors, found, strict=True)):
        return None
    part = captured.parts[captured.path(node)]
    fixed = found[0] is not None or isinstance(part, (nn.LayerNorm, nn.RMSNorm))
    if not fixed and len(aten.shape(node) or ()) < 3:
        return None  # F.layer_norm(x, x.shape[1:]) is another norm for inputs of another rank
    kind, eps = "layer" if aten.name(node) == "layer_norm" else "rms", given["eps"]
    least = float(eps) if isinstance(eps, (int, float)) else None
    weight, bias = found
    return given["input"], NormRead(captured.path(node), kind, int(sizes[0]), least, weight, bias, one_plus)


def _shifted(node: fx.Node, captured: Captured) -> tuple[fx.Node, NormRead] | None:
    """A norm that is written out, plus a tensor of the model, in one module."""
    if aten.arguments(node).get("alpha", 1) != 1:
        return None
    for key, other in (("self", "other"), ("other", "self")):
        inner, bias = _argument(node, key), _tensor(aten.arguments(node).get(other), captured)
        if inner is None or bias is None or aten.name(inner) == "add" or inner.op == "placeholder":
            continue
        found = _written_out(inner, captured)
        if found is None or tuple(bias.shape) != (found[1].features,) or captured.path(node) != found[1].name:
            continue
        return found[0], replace(found[1], bias=bias)
    return None


def _written_out(node: fx.Node, captured: Captured) -> tuple[fx.Node, NormRead] | None:
    """weight · (z · rsqrt(mean(z²) + eps)), in any order, with casts between float types, and 1 + weight for weight; or with
    a division by sqrt. z is x - mean(x) in a LayerNorm."""
    size = aten.shape(node)
    roots = [(f, inverse) for f, inverse in _factors(node) if _is_root(f, inverse)]
    inner = _mean_square(roots[0][0]) if len(roots) == 1 else None
    if inner is None or not size:
        return None
    z, eps = inner
    x = _centred(z)
    factors = list(_factors(node, z))
    rest = [f for f, _ in factors if f is not roots[0][0]]
    again = [
        f for f in rest if f is not z and x is not None and _centred(f) is x
    ]  # x - mean(x), written twice
    same = [f for f in rest if f is z] + [f for f in again if aten.dtype(f) == aten.dtype(z)]
    if len(same) != 1 or aten.shape(z) != size or any(inverse for f, inverse in factors if f in rest):
        return None
    gains = [_gain(f, captured) for f in rest if f is not same[0]]
    if len(gains) > 1 or None in gains or _is_rounded_early(node, roots[0][0], z, same[0]):
        return None
    weight, one_plus = (gains[0] or (None, None)) if gains else (None, None)
    if weight is not None and tuple(weight.shape) != size[-1:]:
        return None
    kind = "rms" if x is None else "layer"
    about = (captured.path(roots[0][0]), kind, size[-1], eps, weight, None, one_plus)
    return z if x is None else x, NormRead(*about)


def _is_rounded_early(node: fx.Node, root: fx.Node, z: fx.Node, vector: fx.Node) -> bool:
    """Whether half precision holds a product of the vector without the root, or of the root without the vector. These have any
    size, and may overflow or become subnormal; a normalised vector may be rounded."""
    near, product = _widened(node, wide=True), aten.origin(node, casts=True, half=True)
    if product in (root, z, vector) or aten.name(product) not in ("mul", "div"):
        return False
    held = {f for f, _ in _factors(product, z)} & {root, vector}
    if len(held) == 1 and (near is not product or aten.dtype(product) in HALF):
        return True
    sides = [aten.arguments(product).get(key) for key in ("self", "other")]
    return any(_is_rounded_early(side, root, z, vector) for side in sides if isinstance(side, fx.Node))


def _is_root(node: fx.Node, inverse: bool) -> bool:
    return (aten.name(node), inverse) in (("rsqrt", False), ("sqrt", True))


def _centred(node: fx.Node) -> fx.Node | None:
    """x of x - mean(x, -1, keepdim)."""
    if aten.name(node) != "sub" or aten.arguments(node).get("alpha", 1) != 1:
        return None
    x, mean = _operands(node)
    if x is None or mean is None or aten.name(mean) != "mean" or _operands(mean)[0] is not x:
        return None
    same = aten.dtype(mean) == aten.dtype(node) and aten.dtype(node) in DTYPES
    # a cast of float64 to float32 rounds x, and the difference x - mean(x) may be all rounding
    given = aten.dtype(aten.origin(x, casts=True, half=True))
    narrowed = given == torch.float64 and aten.dtype(node) != torch.float64
    return x if same and not narrowed and _over_last(mean) else None


def _operands(node: fx.Node) -> tuple[fx.Node | None, ...]:
    """What an operation is applied to, apart from casts that lose nothing."""
    given = (aten.arguments(node).get(name) for name in ("self", "other"))
    return tuple(_widened(x) if isinstance(x, fx.Node) else None for x in given)


def _widened(node: fx.Node, wide: bool = False) -> fx.Node:
    """The node with the same numbers, as far back as it goes. Casts that may lose digits are not passed; with `wide` those of
    float64 to float32 are."""
    source = aten.unchanged(node, casts=True, half=True)
    if source is None:
        return node
    before, after = aten.dtype(source), aten.dtype(node)
    lossless = before == after or (before in HALF and after in DTYPES) or after == torch.float64
    return _widened(source, wide) if lossless or (wide and after in DTYPES) else node


def _over_last(mean: fx.Node) -> bool:
    """An axis counted from the front is another one for inputs of another rank."""
    given = aten.arguments(mean)
    dims = given.get("dim")
    return isinstance(dims, (list, tuple)) and list(dims) == [-1] and bool(given["keepdim"])


def _factors(node: fx.Node, whole: fx.Node | None = None) -> Iterator[tuple[fx.Node, bool]]:
    """The factors of a product of products and of divisions by roots, casts apart, and whether each is divided by; `whole` is a
    factor even if it is a product."""
    node = _widened(node, wide=True)
    if node is not whole and aten.name(behind := aten.origin(node, casts=True, half=True)) in ("mul", "div"):
        node = behind if behind is not whole else node  # a normalised vector may be rounded to half precision
    known = aten.name(node) if node is not whole else ""
    sides = [aten.arguments(node).get(key) for key in ("self", "other")] if known in ("mul", "div") else []
    factors = [_widened(side, wide=True) for side in sides if isinstance(side, fx.Node)]
    divides = known == "div" and len(factors) == 2 and aten.name(factors[1]) == "sqrt"
    if len(factors) < 2 or (known == "div" and not divides):
        yield node, False
        return
    if known == "div" and aten.arguments(node).get("rounding_mode") is not None:
        yield node, False
        return
    yield from _factors(factors[0], whole)
    if divides:
        yield factors[1], True
    else:
        yield from _factors(factors[1], whole)


def _mean_square(root: fx.Node) -> tuple[fx.Node, float] | None:
    """z and eps of rsqrt(mean(z², -1, keepdim) + eps), no part of which is rounded to half precision: a square of float16 may be
    0 or infinite."""
    total = _wide_argument(root, "self")
    if total is None or aten.name(total) != "add" or aten.arguments(total).get("alpha", 1) != 1:
        return None
    sides = [aten.arguments(total)[key] for key in ("self", "other")]
    eps = next((float(s) for s in sides if isinstance(s, (int, float)) and not isinstance(s, bool)), None)
    mean = next((_widened(s, wide=True) for s in sides if isinstance(s, fx.Node)), None)
    if eps is None or mean is None or aten.name(mean) != "mean":
        return None
    square = _wide_argument(mean, "self")
    if square is None or not _over_last(mean):
        return None
    if any(aten.dtype(n) not in DTYPES for n in (root, total, mean, square)):
        return None  # in less it is not normalised to 2^-10
    given, op = aten.arguments(square), aten.name(square)
    z = _widened(given["self"], wide=True) if isinstance(given.get("self"), fx.Node) else None
    powers = op == "square" or (op == "pow" and given["exponent"] == 2)
    twice = op == "mul" and isinstance(given["other"], fx.Node) and _widened(given["other"], wide=True) is z
    return (z, eps) if z is not None and (powers or twice) else None


def _gain(node: fx.Node, captured: Captured) -> tuple[Tensor, torch.dtype | None] | None:
    """A tensor of the model, or 1 + one, and the dtype of that sum."""
    tensor = _tensor(node, captured)
    if tensor is not None:
        return tensor, None
    if aten.name(node) != "add":
        return None
    sides = [aten.arguments(node)[key] for key in ("self", "other")]
    one = any(isinstance(side, (int, float)) and side == 1 for side in sides)
    nodes = (_widened(side, wide=True) for side in sides if isinstance(side, fx.Node))
    weight = next((captured.tensors.get(side.name) for side in nodes), None)
    plain = aten.arguments(node).get("alpha", 1) == 1
    return (weight, aten.dtype(node)) if one and plain and weight is not None else None


def _argument(node: fx.Node, name: str) -> fx.Node | None:
    found = aten.arguments(node).get(name)
    return aten.origin(found, casts=True, half=True) if isinstance(found, fx.Node) else None


def _wide_argument(node: fx.Node, name: str) -> fx.Node | None:
    found = aten.arguments(node).get(name)
    return _widened(found, wide=True) if isinstance(found, fx.Node) else None


def _tensor(node: object, captured: Captured) -> Tensor | None:
    """The parameter or buffer that a node is, casts apart."""
    if not isinstance(node, fx.Node):
        return None
    return captured.tensors.get(aten.origin(node, casts=True, half=True).name)
