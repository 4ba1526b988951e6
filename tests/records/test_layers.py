"""Layers of numbers: kinds, heads, digests."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attnc.errors import AttncError, InputError
from attnc.records.layers import Layer, NetworkNumbers, heads_of, pointwise_layer
from attnc.records.numbers import HeadNumbers, digest


def head(anchors: int = 3, dtype: str = "float32") -> HeadNumbers:
    rows = np.arange(2.0 * anchors).reshape(1, anchors, 2)
    return HeadNumbers(np.ones((1, 2)), rows, rows / 2, np.ones(1), dtype)


@pytest.fixture
def numbers() -> NetworkNumbers:
    weight, one = np.ones((2, 3), np.float32), np.ones(2, np.float32)
    return NetworkNumbers(
        (
            Layer("affine", (0,), 1, {"weight": weight, "bias": one}),
            pointwise_layer(1, 2, [(np.array([1]), head()), (np.array([0]), head(4))]),
            Layer("batch_norm", (2,), 3, {"scale": one, "shift": one}),
            Layer("combine", (1, 3), 4, {}, {"coefficients": (1.0, 0.5)}),
            Layer("reshape", (4,), 5, {}, {"to": (2, 1)}),
            Layer(
                "lookup", (5,), 6, {"centre": one, "key": weight.T, "offset": weight[0], "values": weight.T}
            ),
        ),
        "float32",
    )


def test_structure_round_trips(numbers: NetworkNumbers) -> None:
    read = [
        Layer.from_structure(json.loads(json.dumps(layer.structure())), layer.tensors)
        for layer in numbers.layers
    ]
    again = NetworkNumbers(tuple(read), "float32")
    assert again.digests() == numbers.digests()
    assert again.layers[3].settings == {"coefficients": (1.0, 0.5)}
    assert again.layers[3].inputs == (1, 3)


def test_heads_of_a_pointwise_layer(numbers: NetworkNumbers) -> None:
    (first, three), (second, four) = heads_of(numbers.layers[1])
    assert (first.tolist(), second.tolist()) == ([1], [0])
    assert three.digests() == head().digests()
    assert four.digests() == head(4).digests()
    assert heads_of(pointwise_layer(0, 1, [(None, head())]))[0][0] is None


def test_digests_see_numbers_names_and_structure(numbers: NetworkNumbers) -> None:
    known = numbers.digests()
    assert set(known) == {*numbers.tensors(), "structure"}
    layers = list(numbers.layers)
    layers[3] = Layer("combine", (1, 3), 4, {}, {"coefficients": (1.0, 0.25)})
    changed = NetworkNumbers(tuple(layers), "float32").digests()
    assert {name for name in known if known[name] != changed[name]} == {"structure"}
    a = np.ones(2, np.float32)
    assert (
        len({digest("a", a), digest("b", a), digest("a", a.astype(np.float64)), digest("a", a[:, None])}) == 4
    )


ONE = np.ones(2, np.float32)
BAD = {
    "kind": lambda: Layer("linear", (0,), 1),
    "inputs": lambda: Layer("affine", (0, 1), 2, {"weight": ONE}),
    "float input": lambda: Layer("reshape", (0.0,), 1, {}, {"to": (1,)}),
    "bool value": lambda: Layer("reshape", (0,), True, {}, {"to": (1,)}),
    "missing tensor": lambda: Layer("batch_norm", (0,), 1, {"scale": ONE}),
    "unknown tensor": lambda: Layer("affine", (0,), 1, {"weight": ONE, "scale": ONE}),
    "missing setting": lambda: Layer("combine", (0,), 1),
    "unknown setting": lambda: Layer("affine", (0,), 1, {"weight": ONE}, {"to": (1,)}),
    "coefficients": lambda: Layer("combine", (0,), 1, {}, {"coefficients": (float("nan"),)}),
    "shape": lambda: Layer("reshape", (0,), 1, {}, {"to": (0,)}),
    "heads": lambda: Layer("pointwise", (0,), 1, {}, {"heads": -1}),
    "lost head": lambda: heads_of(Layer("pointwise", (0,), 1, {}, {"heads": 1})),
    "field": lambda: Layer.from_structure({"kind": "reshape"}, {}),
    "dtype": lambda: NetworkNumbers((), "float16"),
    "mixed": lambda: NetworkNumbers((Layer("affine", (0,), 1, {"weight": ONE}),), "float64"),
    "infinity": lambda: NetworkNumbers((Layer("affine", (0,), 1, {"weight": ONE / 0}),), "float32"),
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_layers_are_refused(make) -> None:
    with pytest.raises(AttncError):
        make()


def test_no_such_tensor(numbers: NetworkNumbers) -> None:
    with pytest.raises(InputError, match="missing"):
        numbers.layers[0].tensor("missing")
