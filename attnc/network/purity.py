"""The nonlinear operations of a module besides softmax, read from graphs of the operations that it executes.

Attention consists of affine maps, products of queries with keys, softmax, and products of weights with values."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from attnc.domain import Tokens
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.network.head import Head
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.pointwise import Pointwise
from attnc.network.recording import Operations, executed

if TYPE_CHECKING:
    from torch.export import ExportedProgram

SOFTMAX = frozenset({"_softmax", "softmax", "_safe_softmax"})
SDPA = "scaled_dot_product"  # the start of the names of torch's kernels, after an underscore
PRODUCTS = frozenset(
    {
        "mul",
        "mm",
        "mv",
        "dot",
        "bmm",
        "addmm",
        "matmul",
        "baddbmm",
        "div",
        "linear",
        "addcmul",
        "conv1d",
        "conv2d",
        "einsum",
    }
)
LINEAR = PRODUCTS | {"add", "sub", "rsub", "neg", "sum", "mean"}
CHOICES = frozenset({"where", "masked_fill"})  # linear if the condition does not depend on the data
MOVES = frozenset((
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "squeeze_",
    "select", "slice", "cat", "stack", "split", "split_with_sizes", "clone", "copy_", "detach", "alias",
    "lift_fresh_copy", "zeros", "ones", "eye", "fill", "fill_", "full", "_to_copy", "index", "index_select", "getitem",
    "ones_like", "zeros_like", "empty_like", "new_zeros", "new_ones", "new_empty", "full_like", "index_copy", "flip",
    "embedding", "dropout", "roll", "constant_pad_nd", "unbind", "copy",
    "repeat_interleave",
    "slice_scatter", "select_scatter",
    "attnc::mark",  # the identity
))  # fmt: skip
# tensors of the shape of the data, whatever its values
CONSTANTS = frozenset((
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like",
    "new_zeros", "new_ones", "new_empty", "new_full",
))  # fmt: skip
PLAIN = (type(None), bool, int, float, str)  # outputs that are no tensors and hide none
MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode)
CACHES = "transformers.cache_utils"  # the module of the objects that hold keys and values


def purity(module: nn.Module, *inputs: Any, **named: Any) -> tuple[str, ...]:
    """The nonlinear operations that a module executes besides softmax, by their ATen names; empty if attention is all there is.

    The inputs are those of a call. Heads, networks and their self-attention forms need none. Parameters count as constants, and
    torch's scaled_dot_product_attention as softmax. Products of two values of the data are listed, unless they are those of
    attention: queries with keys, and weights with values. Any product of softmax weights with a value of the data counts as the
    latter, also with other weights. Scores are products of at most two values of the data. Operations of libraries other than
    torch are listed by their full names, since their functions are unknown.

    torch.export traces the call. Then it runs three times: without gradients, with gradients, and in inference mode. What it
    executes there and not in the traced graph is listed too, as are functions that hand numbers to code outside torch, such as
    numpy. The inputs, the buffers and the state of torch's random numbers are not changed.

    Casts between floating-point types are not listed, though they round, nor are functions of integer inputs, such as token ids.
    The output may consist of tensors, plain numbers and strings, and caches of transformers: others raise UnsupportedError.

    >>> import attnc
    >>> head = attnc.head("gelu", domain=(-8, 8), eps=1e-4)
    >>> purity(head), purity(head.as_self_attention(3))
    ((), ())
    >>> purity(nn.Sequential(nn.Linear(2, 2), nn.GELU()), torch.zeros(1, 2))
    ('gelu',)
    >>> block = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4)).eval()
    >>> x = torch.zeros(1, 4)
    >>> purity(attnc.convert(block, approximation=1e-2), x)
    ('clamp', 'layer_norm', 'mul', 'sigmoid')
    >>> purity(attnc.convert(block, approximation=1e-2, config={"engine": "softmax"}), x)
    ('layer_norm',)
    >>> purity(attnc.convert(block, approximation=1e-2, config={"engine": "softmax"}, parts="all"), x)
    ()
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"purity takes a torch module: got {type(module).__name__}")
    if not inputs and not named:
        inputs = (_example(module),)
    watched = _Tensors(module)
    exported = _exported(watched, inputs, named)
    found = {*_nonlinear(*_graph(exported)), *_unrecorded(watched, exported, inputs, named)}
    return tuple(sorted(found))


class _Tensors(nn.Module):
    """A module that returns the tensors of another's output: torch.export refuses classes that it does not know."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> list[Tensor]:
        tensors = list(self._tensors(self.module(*inputs, **named)))
        if not tensors:
            raise self._refusal("the output has no tensors")
        return tensors

    def _tensors(self, value: Any, *, cached: bool = False) -> Iterator[Tensor]:
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                yield leaf
            elif type(leaf).__module__ == CACHES:
                yield from self._tensors(vars(leaf), cached=True)
            elif not (cached or isinstance(leaf, PLAIN)):
                raise self._refusal(f"the output has a {type(leaf).__name__}, which may hold other tensors")

    def _refusal(self, reason: str) -> UnsupportedError:
        problem = Problem(type(self.module).__name__, reason)
        return UnsupportedError("purity reads modules that return tensors", [problem])


def _exported(watched: _Tensors, inputs: tuple[Any, ...], named: dict[str, Any]) -> ExportedProgram:
    """A call in functional form: no operation writes into a value of another."""
    log = logging.getLogger("torch._subclasses.fake_tensor")  # of a call that fails: the error says why
    before, log.disabled = log.disabled, True
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(watched, inputs, named, strict=False)
            functional: ExportedProgram = exported.run_decompositions({})
            return functional
    except UnsupportedError:
        raise
    except Exception as problem:
        name, reason = type(watched.module).__name__, str(problem).partition("\n")[0]
        raise UnsupportedError("torch.export cannot trace this call", [Problem(name, reason)]) from problem
    finally:
        log.disabled = before


def _unrecorded(
    watched: _Tensors, exported: ExportedProgram, inputs: tuple[Any, ...], named: dict[str, Any]
) -> Iterator[str]:
    """The nonlinear operations that the call executes when it runs, with and without gradients, and that the exported one does
    not execute. A grad mode in which the call fails has none."""
    known, failures = set(_nonlinear(*_graph(exported))), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mode in MODES:
            try:
                others = set(_nonlinear(*executed(watched, inputs, named, mode))) - known
            except UnsupportedError:
                raise
            except Exception as problem:
                failures.append(problem)
                continue
            if others:  # exported operations may run others, as layer_norm runs native_layer_norm
                yield from others - set(_nonlinear(*executed(exported.module(), inputs, named, mode)))
    if len(failures) == len(MODES):
        reason = f"{type(failures[0]).__name__}: {failures[0]}".partition("\n")[0]
        failing = [Problem(type(watched.module).__name__, reason)]
        raise UnsupportedError("this call fails when it runs", failing) from failures[0]


def _graph(exported: ExportedProgram) -> Operations:
    """The inputs and the operations of an exported call."""
    names, nodes = set(exported.graph_signature.user_inputs), exported.graph.nodes
    given = {node for node in nodes if node.op == "placeholder" and node.name in names}
    called = [node for node in nodes if node.op == "call_function"]
    return given, [node for node in called if not _is_assertion(node)]


def _dependent(known: set[Node], operations: list[Node]) -> set[Node]:
    """The values that depend on real numbers of the inputs, or are real functions of their token ids and masks."""
    known, data = set(known), set(filter(_is_real, known))  # known: values that depend on the inputs
    for node in operations:
        given = node.all_input_nodes
        if _name(node) in CONSTANTS or known.isdisjoint(given):
            continue
        known.add(node)
        if _is_real(node) or not data.isdisjoint(given):
            data.add(node)
    return data


def _nonlinear(known: set[Node], operations: list[Node]) -> Iterator[str]:
    data = _dependent(known, operations)
    weights: set[Node] = set()  # softmax weights, or sums of them with constant coefficients
    for node in operations:
        name = _name(node)
        given = [arg for arg in node.all_input_nodes if arg in data]
        if node not in data or not given:
            continue
        fused = "::" not in name and name.lstrip("_").startswith(SDPA)
        mixes_constants = fused and node.args[2] not in given
        weighs = name in LINEAR | MOVES and weights.issuperset(given) and len(_factors(node, data)) < 2
        if name in SOFTMAX or mixes_constants or weighs:
            weights.add(node)
        if not (name in SOFTMAX or fused or _is_linear(node, data, weights)):
            yield name


def _dtypes(node: Node) -> set[torch.dtype]:
    return {value.dtype for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)}


def _is_real(node: Node) -> bool:
    return any(dtype.is_floating_point or dtype.is_complex for dtype in _dtypes(node))


def _is_linear(node: Node, data: set[Node], weights: set[Node]) -> bool:
    """Whether an operation is linear in the data, or one of the two products of attention."""
    name = _name(node)
    if name not in LINEAR | MOVES | CHOICES or _rounds(node, data):
        return False
    if name in CHOICES:
        return node.args[0 if name == "where" else 1] not in data
    if name == "div":
        return node.args[1] not in data and node.kwargs.get("rounding_mode") is None
    factors = _factors(node, data)
    if len(factors) < 2:
        return True
    return len(factors) == 2 and (any(factor in weights for factor in factors) or _are_scores(node, data))


def _factors(node: Node, data: set[Node]) -> list[Node]:
    """The factors of a product that depend on the data; x·x counts twice."""
    name = _name(node)
    if name not in PRODUCTS:
        return []
    arguments = node.args[1:] if name in ("addmm", "baddbmm", "addcmul", "einsum") else node.args[:2]
    return [arg for arg in tree_leaves(arguments) if isinstance(arg, Node) and arg in data]


def _are_scores(node: Node, data: set[Node]) -> bool:
    """Whether every use of a value ends in a softmax, through operations that are linear in the data alone."""

    def ends(user: Node) -> bool:
        if _name(user) in LINEAR | MOVES | CHOICES:
            return len(_factors(user, data)) < 2 and _are_scores(user, data)
        return _name(user) in SOFTMAX or _is_assertion(user)

    return bool(node.users) and all(user.op == "call_function" and ends(user) for user in node.users)


def _rounds(node: Node, data: set[Node]) -> bool:
    """Whether an operation maps real numbers of the data to integers, or reads their bits as another type."""
    given = [arg for arg in node.all_input_nodes if arg in data]
    made = _dtypes(node)
    if _name(node) == "view" and any(_dtypes(arg) != made for arg in given):
        return True
    whole = any(not (dtype.is_floating_point or dtype.is_complex) for dtype in made)
    return whole and any(map(_is_real, given))


def _example(module: nn.Module) -> Tensor:
    """Zeros of the shape that a module of attnc takes."""
    shape = getattr(getattr(module, "program", None), "shape", None)  # of a network
    if isinstance(module, Head):
        shape = (1,)
    elif isinstance(module, SelfAttentionNetwork) and len(module.inputs) == 1:
        shape = None if None in module.inputs[0].shape else module.inputs[0].shape
    elif isinstance(module, Pointwise):
        shape = (module.neurons or 1,)
    tensor = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), None)
    if not isinstance(shape, tuple) or tensor is None:
        raise InputError(f"{type(module).__name__}: give its inputs too, attnc.purity(model, x)")
    ids = isinstance(getattr(getattr(module, "certificate", None), "holds_for", None), Tokens)
    return torch.zeros(1, *shape, dtype=torch.int64 if ids else tensor.dtype)


def _is_assertion(node: Node) -> bool:
    name = _name(node)
    return name.startswith("_assert") and "::" not in name


def _name(node: Node) -> str:
    """The name of an operation: ATen's and Python's without a namespace, others with theirs."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        name = str(schema.name).removeprefix("aten::")
        return name.removesuffix("_") if schema.is_mutable else name
    space = getattr(node.target, "namespace", getattr(node.target, "__module__", ""))
    name = str(getattr(node.target, "__name__", node.target))
    return name if space in ("_operator", "") else f"{space}::{name}"
