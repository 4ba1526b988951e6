"""trace: the torch operations of a function as a list of scalar operations, whose meaning is exact."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from flint import arb
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from attnc.domain import Array, Box
from attnc.errors import AttncError, InputError, Problem
from attnc.frontends import aten
from attnc.frontends.activations import RefusedError
from attnc.frontends.tape import Symbols, Tape, TooLongError
from attnc.frontends.tape_writer import Writer
from attnc.frontends.trace_dtypes import constants_as, converted, converted_one, values
from attnc.frontends.trace_operations import MOVES, OPERATIONS, SHAPED
from attnc.functions.balls import ball, lower, upper, working
from attnc.program.traced import BALLS, MOST_OPERATIONS, Traced

# operations that are traced whole: their decompositions have conditions, or are longer
_WHOLE = (
    "logsumexp", "softplus", "_safe_softmax", "elu", "leaky_relu", "gelu", "silu", "hardtanh", "native_layer_norm", "var", "std",
    "addmm", "linalg_vector_norm", "linalg_cross", "logaddexp", "log_sigmoid_forward", "rsub", "prod",
    "lerp", "_prelu_kernel", "logical_and", "logical_or", "logical_not",
)  # fmt: skip
# methods that take numbers out of a tensor, out of sight of the recording
_READS = frozenset({
    "numpy", "__array__", "__dlpack__", "tolist", "data_ptr", "__repr__", "__format__", "apply_", "map_", "map2_", "storage",
    "untyped_storage", "_typed_storage", "__deepcopy__", "__reduce_ex__",
})  # fmt: skip
_AGREE = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative to the largest value: what rounding may change


class TraceError(AttncError):
    """A function that is not traced, and why: `problems` has one entry for each operation that is not understood. `dependent` is
    True if what the function computes depends on more than its input: then it is no function of its input."""

    def __init__(self, problems: Sequence[Problem], dependent: bool = False) -> None:
        self.problems, self.dependent = list(problems), dependent
        super().__init__("; ".join(f"{p.where} {p.reason}" for p in self.problems))


def trace(
    f: Callable[[Tensor], Tensor], box: Box, dtype: torch.dtype = torch.float64, name: str = "f"
) -> Traced:
    """The scalar operations of a function of a batch (batch, *box.shape), for one input of the batch.

    The function runs on a batch of two inputs whose numbers are recorded (`make_fx`). What does not depend on them is a constant,
    as torch computes it. Raises `TraceError` if it has an operation that is not understood, rounds to another dtype, draws random
    numbers, branches on numbers, or mixes the inputs of a batch.

    >>> trace(lambda x: x.sum(1, keepdim=True).sin(), Box(-1, 1, shape=(2, 1))).operations
    (('add', 0, 1), ('sin', 2))
    """
    graph = _recorded(f, box, dtype)
    size = box.size
    tape = Tape(2 * size)
    try:
        result = _Reader(tape, Writer(tape, lambda at: _range(tape, box, at))).read(graph, (2, *box.shape))
    except TooLongError:
        raise TraceError([Problem("f", f"has more than {MOST_OPERATIONS} scalar operations")]) from None
    rows = result.at.reshape(2, -1).tolist()
    first, second = (tape.cut(i * size, size, row, name) for i, row in enumerate(rows))
    if first is None or second is None:
        raise TraceError([Problem("f", "mixes the inputs of a batch, which is axis 0")], dependent=True)
    if first.settings() != second.settings():
        reason = "does not treat the inputs of a batch alike, or computes with something else than torch"
        raise TraceError([Problem("f", reason)])
    return first


def disagreement(traced: Traced, x: Array, values: Array, dtype: torch.dtype = torch.float64) -> str | None:
    """None if the traced operations return the values of the function at inputs (N, width), up to rounding; else where not."""
    found = traced.approximate(torch.from_numpy(np.ascontiguousarray(x))).numpy()
    allowed = _AGREE[dtype] * float(np.abs(values).max()) + torch.finfo(dtype).tiny  # what is less may be 0
    with np.errstate(invalid="ignore"):
        off = np.nan_to_num(np.abs(found - values), nan=np.inf)
    row, column = np.unravel_index(int(off.argmax()), off.shape)
    if off[row, column] <= allowed:
        return None
    return (
        f"returns {values[row, column]:.9g} at x = {x[row].tolist()}, but the operations that it ran when it was "
        f"traced give {found[row, column]:.9g}: it depends on something else than its input, "
        "or computes with something else than torch (numpy, math)"
    )


@cache
def _table() -> dict[Any, Any]:
    """Decompositions into ATen's core operations, except of those that are traced whole."""
    from torch._decomp import core_aten_decompositions

    every: dict[Any, Any] = dict(core_aten_decompositions())
    return {op: rule for op, rule in every.items() if str(op).split(".")[1] not in _WHOLE}


def _recorded(f: Callable[[Tensor], Tensor], box: Box, dtype: torch.dtype) -> fx.GraphModule:
    """The operations that f runs on a batch of two inputs of the box."""
    from torch.fx.experimental.proxy_tensor import make_fx

    share = np.random.default_rng(5).random((2, *box.shape)) * 0.5 + 0.25
    x = torch.from_numpy(box.lo + share * (box.hi - box.lo)).to(dtype)
    guard = _Guard()

    def guarded(x: Tensor) -> Tensor:
        with guard, _no_subclasses(guard):
            return f(x)

    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            whole = torch.func.functionalize(guarded, remove="mutations")
            found: fx.GraphModule = make_fx(whole, decomposition_table=_table())(x)
            if guard.problem is not None:  # f caught it
                raise guard.problem
    except Exception as problem:
        problem = guard.problem or problem
        text = str(problem).strip().partition("\n")[0]
        if "_local_scalar_dense" in text:
            reason = "reads numbers of its input in Python (an if, a loop, float(x) or x.item()): use torch operations"
            raise TraceError([Problem("f", reason)], dependent=True) from problem
        kind = "" if isinstance(problem, RefusedError) else f"{type(problem).__name__}: "
        reason = f"cannot be recorded: {kind}{text:.200}"
        raise TraceError([Problem("f", reason)]) from problem
    return found


class _Guard(TorchFunctionMode):
    """While f is recorded: refuses methods that read numbers out of sight of the recording, which has none to show them (numpy,
    printing), and keeps the first failure, which f itself may catch."""

    def __init__(self) -> None:
        super().__init__()
        self.problem: Exception | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        try:
            if name in _READS and any(_recording(x) for x in args):
                raise RefusedError(
                    f"{name}() reads the numbers of a tensor outside torch: use torch operations"
                )
            return func(*args, **(kwargs or {}))
        except Exception as problem:
            self.problem = self.problem or problem
            raise


@contextmanager
def _no_subclasses(guard: _Guard) -> Iterator[None]:
    """Refuses to make another kind of tensor (nn.Parameter) from one that is recorded: its numbers would become constants."""

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if any(_recording(x) for x in (*args, *kwargs.values())):
                guard.problem = guard.problem or RefusedError("makes a Parameter, or another kind of tensor")
                raise guard.problem
            return original(*args, **kwargs)

        return run

    try:
        torch.Tensor.as_subclass = refusing(torch._C.TensorBase.as_subclass)  # type: ignore[method-assign]
        torch.Tensor._make_subclass = staticmethod(refusing(torch._C.TensorBase._make_subclass))  # type: ignore[method-assign]
        yield
    finally:
        del torch.Tensor.as_subclass, torch.Tensor._make_subclass  # what is inherited is visible again


def _recording(x: Any) -> bool:
    """Whether it is a tensor whose operations are recorded."""
    return isinstance(x, Tensor) and (
        torch._is_functional_tensor(x) or torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


class _Reader:
    """Runs a recorded graph: on numbers by torch, on values of the tape by the table of operations."""

    def __init__(self, tape: Tape, writer: Writer) -> None:
        self.tape, self.writer = tape, writer
        self.problems: dict[str, Problem] = {}
        self.own = torch.float64  # the dtype of f's input

    def read(self, graph: fx.GraphModule, shape: tuple[int, ...]) -> Symbols:
        known: dict[fx.Node, Any] = {}
        result: Any = None
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                known[node] = Symbols(torch.arange(math.prod(shape)).reshape(shape))
                self.own = values(node)[0].dtype
            elif node.op == "get_attr":
                known[node] = self._held(getattr(graph, str(node.target)))
            elif node.op == "output":
                result = fx.node.map_arg(node.args[0], lambda n: known[n])
            else:
                known[node] = self._run(node, known)
        if self.problems:
            raise TraceError(
                list(self.problems.values()),
                dependent=any("random" in p.reason for p in self.problems.values()),
            )
        if isinstance(result, (list, tuple)) and len(result) == 1:
            result = result[0]
        if not isinstance(result, (Symbols, Tensor)):
            raise TraceError([Problem("f", f"returns a {type(result).__name__}, not a tensor")])
        found = result if isinstance(result, Symbols) else Symbols(self.writer.symbols(result))
        self._check_inverses(found)
        return found

    def _check_inverses(self, found: Symbols) -> None:
        """Raise if f does not use an inverse: it may catch the error that torch raises where there is none."""
        reached = set(self.tape.reached(found.at.flatten().tolist()))
        if any(det not in reached and not self.tape.value_of(det) for det in self.writer.inverted):
            reason = "inverts a matrix, which may raise an error, and does not use the inverse"
            raise TraceError([Problem("f", reason)])

    def _held(self, value: Any) -> Any:
        """A tensor that existed before the call."""
        if isinstance(value, Tensor):
            return value.detach()
        self.problems.setdefault(
            "branch", Problem("f", "has branches or loops of torch, which are not traced")
        )
        return _Unknown

    def _run(self, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
        name = aten.name(node)
        given = [known[n] for n in node.all_input_nodes]
        if any(value is _Unknown for value in given):
            return _Unknown
        try:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                raise RefusedError("draws random numbers")
            if node.target is operator.getitem:
                whole, at = known[node.all_input_nodes[0]], int(str(node.args[1]))
                return _Missing if isinstance(whole, tuple) and whole[at] is None else whole[at]
            if name == "_linalg_check_errors":
                return None
            if any(value is _Missing for value in given):
                raise RefusedError("uses positions (of a sort or a maximum), which are not traced")
            if not any(_symbolic(value) for value in given):
                return node.target(
                    *fx.node.map_arg(node.args, known.get), **fx.node.map_arg(node.kwargs, known.get)
                )  # type: ignore[operator]
            return self._symbolic(node, name, known)
        except TooLongError:
            raise
        except Exception as problem:
            understood = isinstance(problem, (RefusedError, InputError))
            reason = (
                str(problem) if understood else f"is not traced: {type(problem).__name__}: {problem!s:.200}"
            )
            where = f"operation {name}"
            self.problems.setdefault(f"{where} {reason}", Problem(where, reason))
            return _Unknown

    def _symbolic(self, node: fx.Node, name: str, known: dict[fx.Node, Any]) -> Any:
        schema: Any = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise RefusedError("changes a tensor in place that existed before the call")
        if name in SHAPED:
            return self._shaped(node, known)
        depending = {n for n in node.all_input_nodes if _symbolic(known[n])}
        dtype = constants_as(node, depending, self.own)
        if name in MOVES:
            return self._moved(node, known, dtype)
        if name not in OPERATIONS:
            raise RefusedError("is not traced")
        given = {
            key: fx.node.map_arg(value, lambda n: known[n]) for key, value in aten.arguments(node).items()
        }
        return OPERATIONS[name](self.writer, **_known_words(name, converted(given, dtype)))

    def _moved(self, node: fx.Node, known: dict[fx.Node, Any], dtype: torch.dtype | None) -> Any:
        """torch applies the operation to the numbers of the values; constants are converted to a dtype first."""
        name = aten.name(node)
        _check_memory(node, known)
        kept: Any = (
            (node.args[1:], node.kwargs) if name in ("index", "index_select", "gather", "take") else ()
        )
        if name == "index_put":
            if aten.arguments(node)["accumulate"]:
                raise RefusedError("adds at positions (accumulate=True), which is not traced")
            kept = node.args[1]
        indices = _nodes(kept)
        if any(_symbolic(known[n]) for n in indices):
            raise RefusedError("has positions that depend on the input")

        def numbers(n: fx.Node) -> Any:
            value = known[n]
            if isinstance(value, tuple):
                return tuple(v.at for v in value)
            return value if n in indices else self.writer.symbols(converted_one(value, dtype))

        args, kwargs = fx.node.map_arg(node.args, numbers), fx.node.map_arg(node.kwargs, numbers)
        if name == "_to_copy":
            return Symbols(args[0])  # type: ignore[arg-type]
        found = node.target(*args, **kwargs)  # type: ignore[operator]
        return tuple(Symbols(part) for part in found) if isinstance(found, (list, tuple)) else Symbols(found)

    def _shaped(self, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
        """A new tensor of the shape of a value."""

        def zeros(n: fx.Node) -> Any:
            value = known[n]
            return torch.zeros(value.shape, dtype=values(n)[0].dtype) if isinstance(value, Symbols) else value

        return node.target(*fx.node.map_arg(node.args, zeros), **fx.node.map_arg(node.kwargs, zeros))  # type: ignore[operator]


class _Unknown:
    """The result of an operation that was refused."""


class _Missing:
    """An output of an operation that has no exact meaning here, such as the positions of sorted values."""


def _symbolic(value: Any) -> bool:
    return isinstance(value, Symbols) or (
        isinstance(value, tuple) and any(isinstance(v, Symbols) for v in value)
    )


def _check_memory(node: fx.Node, known: dict[fx.Node, Any]) -> None:
    """Raise if an operation reads memory, and not numbers at positions: that of a value is laid out differently from torch's."""
    name, given = aten.name(node), aten.arguments(node)
    if name == "view" and "dtype" in given:
        raise RefusedError("reads the bits of numbers as another dtype")
    if name not in ("as_strided", "_reshape_alias"):
        return
    before, at = values(node.all_input_nodes[0])[0], known[node.all_input_nodes[0]].at
    last = sum((n - 1) * step for n, step in zip(given["size"], given["stride"], strict=True))
    last += given.get("storage_offset") or 0
    plain = all(t.is_contiguous() and t.storage_offset() == 0 for t in (before, at))
    if not (plain and last < at.numel()):
        raise RefusedError("reads the memory of a tensor that is a view of another")


def _nodes(args: Any) -> set[fx.Node]:
    found: set[fx.Node] = set()
    fx.node.map_arg(args, lambda n: found.add(n))
    return found


_IGNORED = (
    "memory_format",
    "dtype",
    "half_to_float",
    "check_errors",
    "stable",
    "layout",
    "device",
    "out_dtype",
)


def _known_words(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments without those that change no number (`trace_dtypes` looks at dtypes)."""
    return {key: value for key, value in given.items() if key not in _IGNORED}


def _range(tape: Tape, box: Box, at: int) -> tuple[float, float]:
    """An interval of a value on the box, by ball arithmetic on the whole box."""
    traced = tape.cut(0, box.size, [at]) or tape.cut(box.size, box.size, [at])
    if traced is None:
        return -math.inf, math.inf
    with working(64):
        ends = zip(box.lo.ravel().tolist(), box.hi.ravel().tolist(), strict=True)
        (found,) = traced.interpret([ball(lo, hi) for lo, hi in ends], BALLS, arb)
        return lower(found), upper(found)
