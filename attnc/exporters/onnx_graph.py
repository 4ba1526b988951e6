"""The nonlinear operations of an ONNX graph besides softmax, by the definition of `attnc.purity`.

Attention consists of affine maps, products of queries with keys, softmax, and products of weights with values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

FUSED = "Attention"  # since operator set 23
PRODUCTS = frozenset(("Mul", "MatMul", "Gemm", "Einsum", "Conv"))
LINEAR = PRODUCTS | {"Add", "Sub", "Neg", "Sum", "Mean", "Div", "ReduceSum", "ReduceMean", "CumSum", "Where"}
MOVES = frozenset((
    "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Cast", "CastLike", "Concat", "Split", "Slice",
    "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Expand", "Tile", "Pad", "Trilu", "Dropout",
    "ReverseSequence",
))  # fmt: skip
SHAPES = frozenset(("Shape", "Size"))  # of the data, whatever its values
_FACTORS = {"Gemm": 2}  # inputs that are multiplied; of the others all
_KEEP_ZERO = frozenset(
    ("ReduceSum", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Identity")
)  # of their first input
_INDICES = frozenset(("Gather", "GatherElements", "GatherND"))


class Graph:
    """The operations of a model's graph in order, and which values depend on real numbers of the inputs."""

    def __init__(self, model: Any) -> None:
        import onnx

        self.real = {
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.DOUBLE,
            onnx.TensorProto.FLOAT16,
            onnx.TensorProto.BFLOAT16,
        }
        known = onnx.shape_inference.infer_shapes(model).graph
        values = (*known.input, *known.output, *known.value_info)
        self.types = {value.name: value.type.tensor_type.elem_type for value in values}
        self.nodes = list(known.node)
        self.zeros = set(_zeros(known))
        for node in self.nodes:  # 0·x is 0, and so are its sums and parts
            if self._is_zero(node) or (node.op_type in _KEEP_ZERO and self.zeros.issuperset(node.input[:1])):
                self.zeros |= set(node.output)
        self.outputs = {value.name for value in known.output}
        self.users: dict[str, list[Any]] = defaultdict(list)
        for node in self.nodes:
            for name in node.input:
                self.users[name].append(node)
        self.data = self._dependent({value.name for value in known.input})
        self.guards = set(self._guards())

    def nonlinear(self) -> tuple[str, ...]:
        """The names of the operations, in alphabetical order, each once."""
        return tuple(sorted(set(self._nonlinear())))

    def _is_real(self, name: str) -> bool:
        """Whether a value holds real numbers; one of unknown type may."""
        return self.types.get(name, 0) in {0, *self.real}

    def _is_zero(self, node: Any) -> bool:
        """Whether a product has the factor 0: a head that is not gated has values v + 0·s."""
        return node.op_type in PRODUCTS - {"Gemm"} and not self.zeros.isdisjoint(node.input)

    def _dependent(self, inputs: set[str]) -> set[str]:
        """The values that depend on real numbers of the inputs, or are real functions of their token ids and masks."""
        known, data = set(inputs), {name for name in inputs if self._is_real(name)}
        for node in self.nodes:
            given = known.intersection(_values(node))
            if node.op_type in SHAPES or not given or self._is_zero(node):
                continue
            known |= set(node.output)
            data |= {out for out in node.output if self._is_real(out) or not data.isdisjoint(_values(node))}
        return data

    def _nonlinear(self) -> Iterator[str]:
        weights: set[str] = set()  # softmax weights, or sums of them with constant coefficients
        for node in self.nodes:
            given = [name for name in _values(node) if name in self.data]
            if not given or node.op_type in SHAPES or self._is_zero(node):
                continue
            if node.output[0] in self.guards:  # of a softmax
                weights |= set(node.output)
                continue
            name = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
            simple = name in LINEAR | MOVES and weights.issuperset(given) and len(self._factors(node)) < 2
            mixes_constants = name == FUSED and node.input[2] not in given
            if name == "Softmax" or mixes_constants or simple:
                weights |= set(node.output)
            if name not in ("Softmax", FUSED) and not self._is_linear(node, name, weights):
                yield name

    def _guards(self) -> Iterator[str]:
        """torch's softmax of masked scores is 0 where every score is -∞: the values IsNaN(w) and Where(IsNaN(w), 0, w) for
        softmax weights w. `attnc.purity` has them as the one operation _safe_softmax."""
        softmax = {out for node in self.nodes if node.op_type == "Softmax" for out in node.output}
        for node in self.nodes:
            if node.op_type != "IsNaN" or node.input[0] not in softmax or node.output[0] in self.outputs:
                continue
            chosen = [list(user.input[:1]) + list(user.input[2:]) for user in self.users[node.output[0]]]
            zero = all(user.input[1] in self.zeros for user in self.users[node.output[0]])
            if zero and all(inputs == [node.output[0], node.input[0]] for inputs in chosen):
                yield node.output[0]
                yield from (user.output[0] for user in self.users[node.output[0]])

    def _is_linear(self, node: Any, name: str, weights: set[str]) -> bool:
        """Whether an operation is linear in the data, or one of the two products of attention."""
        if name not in LINEAR | MOVES or any(not self._is_real(out) for out in node.output):
            return False
        if name == "Where":
            return node.input[0] not in self.data
        if name == "Div":
            return node.input[1] not in self.data
        if name in _INDICES and node.input[1] in self.data:
            return False
        factors = self._factors(node)
        if len(factors) < 2:
            return True
        return len(factors) == 2 and (not weights.isdisjoint(factors) or self._are_scores(node))

    def _factors(self, node: Any) -> list[str]:
        """The factors of a product that depend on the data; x·x counts twice."""
        if node.op_type not in PRODUCTS:
            return []
        count = _FACTORS.get(node.op_type, len(node.input))
        return [name for name in list(node.input)[:count] if name in self.data]

    def _are_scores(self, node: Any) -> bool:
        """Whether every use of a value ends in a softmax, through operations that are linear in the data alone."""
        users = [user for out in node.output for user in self.users[out]]
        if not users or not self.outputs.isdisjoint(node.output):
            return False
        others = (user for user in users if user.op_type not in SHAPES and not self._is_zero(user))
        return all(self._ends(user) for user in others)

    def _ends(self, user: Any) -> bool:
        if user.op_type == "Softmax":
            return True
        if user.op_type not in LINEAR | MOVES or (user.op_type == "Where" and user.input[0] in self.data):
            return False
        divides = user.op_type == "Div" and user.input[1] in self.data
        return not divides and len(self._factors(user)) < 2 and self._are_scores(user)


def _values(node: Any) -> list[str]:
    """The inputs whose values matter: CastLike takes only the type of its second one."""
    return list(node.input)[: 1 if node.op_type == "CastLike" else None]


def _zeros(graph: Any) -> Iterator[str]:
    """The constants that are zero."""
    import onnx

    held = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            held.append((node.output[0], node.attribute[0].t))
    for name, tensor in held:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype.kind == "f" and not array.any():
            yield name


def operations_in(model: Any) -> tuple[str, ...]:
    """The operations of a graph, each once."""
    return tuple(sorted({node.op_type for node in model.graph.node} - {"Constant"}))
