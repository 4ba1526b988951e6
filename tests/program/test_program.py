"""Programs: what is well-formed, what a digest covers, what cannot be changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from attnc import functions
from attnc.errors import InputError
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Program, Reshape, Step

EYE, ZERO, ONE = np.eye(2), np.zeros(2), np.ones(2)


def norm(**changed: Any) -> BatchNorm:
    return BatchNorm(
        **({"input": 0, "mean": ZERO, "variance": ONE, "gain": ONE, "shift": ZERO, "epsilon": 1e-5} | changed)
    )


def example() -> Program:
    return Program(
        (2,),
        (
            Affine(0, EYE, ONE, name="first"),
            norm(input=1),
            Pointwise(2, functions.leaky_relu(0.1)),
            Combine((3, 1), (1.0, -0.5)),
            Reshape(4, (2, 1)),
        ),
    )


def test_shapes_and_counts() -> None:
    program = example()
    assert program.shapes == ((2,), (2,), (2,), (2,), (2,), (2, 1))
    assert program.layers == (2,) and program.parameters == 4 + 2 + 8
    assert program.readers(1) == [1, 3] and program.readers(5) == []


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Affine(0, np.ones(2)), r"\(2,\)"),
        (lambda: Affine(0, np.ones((0, 2))), r"\(0, 2\)"),
        (
            lambda: Affine(0, EYE, np.ones(3), name="fc"),
            r"fc: .*\(2, 2\).*\(3,\)",
        ),
        (lambda: Affine(0, np.eye(2, dtype=np.int64)), "int64"),
        (lambda: Affine(0, np.eye(2, dtype=np.float16)), "float16"),
        (lambda: norm(mean=np.zeros(3)), r"\(3,\)"),
        (lambda: norm(variance=np.array([1.0, -1.0])), "epsilon"),
        (lambda: norm(epsilon=float("nan")), "epsilon"),
        (lambda: Combine((), ()), "0 "),
        (lambda: Combine((0, 1), (1.0,)), "2 .* 1 "),
        (lambda: Combine((0,), (float("inf"),)), "inf"),
    ],
)
def test_steps_that_make_no_sense(make: Callable[[], Step], told: str) -> None:
    with pytest.raises(InputError, match=told):
        make()


@pytest.mark.parametrize(
    ("shape", "steps", "told"),
    [
        ((), (), "shape="),
        ((0,), (), "shape="),
        ((2.0,), (), "shape="),
        (
            (3,),
            (Affine(0, EYE, name="fc"),),
            r"step 0 \(fc\).* 2 .*\(3,\)",
        ),
        ((2, 3), (norm(),), r"step 0 \(batch_norm\).* 2 "),
        (
            (3,),
            (Reshape(0, (2, 2)),),
            r"\(2, 2\).*\(3,\)",
        ),
        (
            (4,),
            (Reshape(0, (2, 2)), Combine((0, 1), (1.0, 1.0))),
            r"\(4,\), \(2, 2\)",
        ),
        ((2,), (Affine(1, EYE),), r"step 0 \(affine\).*\(1,\)"),
        (
            (2,),
            (Affine(0, EYE), Combine((-1, 0), (1.0, 1.0))),
            r"step 1 \(combine\).*\(-1, 0\)",
        ),
    ],
)
def test_programs_that_do_not_fit(shape: Any, steps: tuple[Step, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Program(shape, steps)


def changed(i: int, **fields: Any) -> Callable[[], Program]:
    def make() -> Program:
        program = example()
        steps = list(program.steps)
        steps[i] = replace(steps[i], **fields)
        return Program(program.shape, tuple(steps))

    return make


NEARLY = np.array([[1.0, 0.0], [0.0, np.nextafter(1.0, 2.0)]])
CHANGES: dict[str, Callable[[], Program]] = {
    "the last bit of a weight": changed(0, weight=NEARLY),
    "a sign of zero": changed(0, weight=np.array([[1.0, -0.0], [0.0, 1.0]])),
    "the dtype": changed(0, weight=EYE.astype(np.float32)),
    "the bias": changed(0, bias=ONE * 2),
    "no bias": changed(0, bias=None),
    "mean": changed(1, mean=ONE),
    "variance": changed(1, variance=ONE * 2),
    "gain": changed(1, gain=ONE * 2),
    "shift": changed(1, shift=ONE),
    "epsilon": changed(1, epsilon=2e-5),
    "the function": changed(2, function=functions.relu()),
    "the function's parameter": changed(2, function=functions.leaky_relu(np.nextafter(0.1, 1))),
    "a deviation": changed(2, deviation=1e-9),
    "where it deviates": changed(2, beyond=20.0),
    "a coefficient": changed(3, coefficients=(1.0, -0.25)),
    "what is read": changed(3, inputs=(3, 2)),
    "the order": changed(3, inputs=(1, 3)),
    "a shape": changed(4, to=(1, 2)),
    "one step less": lambda: Program((2,), example().steps[:-1]),
    "no step": lambda: Program((2,), ()),
    "another input": lambda: Program((2, 1), ()),
}


def test_a_digest_covers_everything() -> None:
    digests = {"as it was": example().digest()} | {name: make().digest() for name, make in CHANGES.items()}
    same = [(a, b) for a in digests for b in digests if a < b and digests[a] == digests[b]]
    assert not same


def test_a_digest_is_reproducible_and_blind_to_names_and_layout() -> None:
    assert example().digest() == example().digest()
    assert changed(0, name="renamed")().digest() == example().digest()
    assert changed(0, weight=np.asfortranarray(EYE))().digest() == example().digest()


def test_nothing_can_be_changed() -> None:
    given = EYE.copy()
    step = Affine(0, given, ONE)
    given[0, 0] = 7.0
    assert step.weight[0, 0] == 1.0
    for step_ in example().steps:
        for array in step_.tensors().values():
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0.0
    with pytest.raises(FrozenInstanceError):
        step.input = 1  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        example().shape = (3,)  # type: ignore[misc]
    assert isinstance(Program((2,), [step]).steps, tuple)  # type: ignore[arg-type]
