"""The walk over ONNX graphs: which operations count as nonlinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from attnc.exporters.onnx_graph import Graph, operations_in  # noqa: E402


def graph(*lines: str, shape: str = "[n, 4, 4]", extra: tuple[tuple[str, Any], ...] = ()) -> Any:
    """A model from x to y of these lines; W is a constant matrix, zero a matrix of zeros."""
    text = f'<ir_version: 9, opset_import: ["" : 20]> g (float{shape} x, int64[n, 4] ids) => (float{shape} y) {{ '
    model = onnx.parser.parse_model(text + " ".join(lines) + " }")
    for name, array in (("W", np.ones((4, 4), np.float32)), ("zero", np.zeros((4, 4), np.float32)), *extra):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


PURE = {
    "affine": ("a = MatMul(x, W)", "y = Add(a, W)"),
    "attention": (
        "t = Transpose <perm = [0, 2, 1]> (x)", "s = MatMul(x, t)", "q = Mul(s, W)", "w = Softmax <axis = -1> (q)",
        "y = MatMul(w, x)",
    ),
    "masked softmax": (
        "w = Softmax <axis = -1> (x)", "bad = IsNaN(w)", "safe = Where(bad, zero, w)", "y = MatMul(safe, x)",
    ),
    "differences of weights": (
        "w = Softmax <axis = -1> (x)", "v = Softmax <axis = -2> (x)", "d = Sub(w, v)", "y = MatMul(d, x)",
    ),
    "a factor of zero": ("z = Mul(zero, x)", "v = Add(z, W)", "y = Mul(v, x)"),
    "sums of zeros": (
        "w = Softmax <axis = -1> (x)", "z = MatMul(w, zero)", "t = Transpose <perm = [0, 2, 1]> (z)", "s = Mul(t, x)",
        "v = Add(s, w)", "y = MatMul(v, x)",
    ),
    "shapes": ("s = Shape(x)", "r = Reshape(x, s)", "y = Expand(r, s)"),
    "embedding": ("e = Gather(W, ids)", "y = Add(e, x)"),
}  # fmt: skip
IMPURE = {
    "a product of values": (("y = Mul(x, x)",), ("Mul",)),
    "scores that are returned": (("y = MatMul(x, x)",), ("MatMul",)),
    "tanh": (("a = Tanh(x)", "y = Add(a, x)"), ("Tanh",)),
    "a reciprocal": (("y = Div(W, x)",), ("Div",)),
    "a comparison": (("c = Less(x, W)", "y = Where(c, x, W)"), ("Less", "Where")),
    "rounding": (("i = Cast <to = 7> (x)", "y = Cast <to = 1> (i)"), ("Cast",)),
    "NaN of other values": (("bad = IsNaN(x)", "y = Where(bad, zero, x)"), ("IsNaN", "Where")),
    "a nonzero guard": (
        ("w = Softmax <axis = -1> (x)", "bad = IsNaN(w)", "y = Where(bad, W, w)"), ("IsNaN", "Where"),
    ),
    "three factors in a score": (
        ("a = MatMul(x, x)", "b = Mul(a, x)", "y = Softmax <axis = -1> (b)"), ("MatMul",),
    ),
    "a sum with zeros": (
        ("z = MatMul(x, zero)", "a = Add(z, x)", "y = Mul(a, x)"), ("Mul",),
    ),
    "zero behind a function": (("a = Tanh(x)", "y = Mul(a, zero)"), ("Tanh",)),
    "a function of token ids": (("e = Gather(W, ids)", "f = Exp(e)", "y = Add(f, x)"), ("Exp",)),
    "a max": (("y = Max(x, W)",), ("Max",)),
}  # fmt: skip


@pytest.mark.parametrize("name", PURE)
def test_attention_is_pure(name: str) -> None:
    assert Graph(graph(*PURE[name])).nonlinear() == ()


@pytest.mark.parametrize("name", IMPURE)
def test_others_are_named(name: str) -> None:
    lines, others = IMPURE[name]
    assert Graph(graph(*lines)).nonlinear() == others


def test_operations() -> None:
    assert operations_in(graph("a = MatMul(x, W)", "b = MatMul(a, W)", "y = Add(b, W)")) == ("Add", "MatMul")
