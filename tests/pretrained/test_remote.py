"""The modules of the modelling file against attnc's own: the same numbers, bit for bit, in every mode."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnc import functions
from attnc.domain import Interval
from attnc.heads.target import Plan
from attnc.lower.function_to_head import head_approximating
from attnc.lower.product import square_head
from attnc.lower.quadratic import proved_heads
from attnc.network import engines
from attnc.network import head as head_module
from attnc.network import norm as norm_module
from attnc.network import product as product_module
from attnc.network.head import Head
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock, Product
from attnc.pretrained.remote import modelling_text
from attnc.pretrained.runs import executed
from attnc.pretrained.shipped import CARD as CARD_FILE
from attnc.pretrained.shipped import MODEL_TYPE, MODELLING
from attnc.records.files import CONVERTED, CONVERTED_INDEX

pytest.importorskip("transformers")
from attnc.pretrained.remote import attention, config, saving
from attnc.pretrained.remote import model as remote

Make = Callable[[str], Any]
FUNCTIONS = [
    ("gelu", "float32", "tail"), ("gelu", "float64", "window"), ("gelu_tanh", "float32", "gate"), ("silu", "float64", "gate"),
    ("tanh", "float32", None),
]  # fmt: skip
MODES = [torch.no_grad, torch.inference_mode, torch.enable_grad]


def shipped(module: nn.Module, held: Any = None) -> Any:
    """The module of the modelling file, from what is recorded of attnc's."""
    runs = {"places": ["part"], **executed(module)}
    state = {f"part.{name}": tensor.clone() for name, tensor in module.state_dict().items()}
    return remote.built_module(runs, remote.taken_tensors(runs, state, ""), held).eval()


def check(one: nn.Module, other: nn.Module, x: Tensor) -> None:
    """Whole and strided inputs, without and with gradients, and after a cast of the input to half precision."""
    wide = torch.stack([x, x], -1)[..., 0]
    for given in (x, wide, x.bfloat16(), x[:0]):
        for mode in MODES:
            with mode():
                asked = given.detach().clone() if given.is_contiguous() else given
                if mode is torch.enable_grad:
                    asked = asked.detach().requires_grad_()
                a, b = one(asked), other(asked)
                assert a.dtype == b.dtype and torch.equal(a, b)
                if mode is torch.enable_grad and a.numel():
                    sums = (out.double().square().sum() for out in (a, b))
                    first, second = (torch.autograd.grad(s, asked)[0] for s in sums)
                    assert torch.equal(first, second)
    full = x.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16) if full else nullcontext(), torch.no_grad():
        assert torch.equal(one(x), other(x))


def head(function: str, dtype: str, reach: float = 6.0) -> Head:
    """A head as in a converted model."""
    return head_approximating(Plan(functions.get(function), Interval(-reach, reach), dtype, "auto"), 1e-2)


@pytest.mark.parametrize(("function", "dtype", "form"), FUNCTIONS)
@pytest.mark.parametrize("engine", ["closed-form", "softmax"])
def test_activations(function: str, dtype: str, form: str | None, engine: str) -> None:
    own = Pointwise([(None, head(function, dtype))], engine)
    other = shipped(own)
    expected = form if engine == "closed-form" else None
    assert (other.forms[0] and other.forms[0]["kind"]) == expected
    torch.manual_seed(0)
    check(own, other, 5 * torch.rand(3, 7, 11, dtype=getattr(torch, dtype)) - 2)
    large = torch.linspace(-5, 5, (1 << 18) + 5, dtype=getattr(torch, dtype))
    with torch.no_grad():
        assert torch.equal(own(large), other(large))


def test_groups_of_neurons() -> None:
    groups = [
        (np.array([4, 0, 2]), head("gelu", "float64", 3.0)),
        (np.array([1, 3]), head("tanh", "float64", 6.0)),
    ]
    for engine in ("closed-form", "softmax"):
        own = Pointwise(groups, engine)
        other = shipped(own)
        assert [form is None for form in other.forms] == [engine == "softmax", True]
        check(own, other, 2 * torch.rand(4, 9, 5, dtype=torch.float64) - 1)


@pytest.mark.parametrize("engine", ["closed-form", "softmax"])
@pytest.mark.parametrize("rows", [None, ((0, 6), (6, 12))])
def test_gated_blocks(engine: str, rows: Any) -> None:
    torch.manual_seed(1)
    square = square_head("float32")
    scale, radius = np.array([0, 1, -2, 0, 3, 1]), np.array([3, 4, 5, 3, 6, 4])
    both = {"up": nn.Linear(4, 12)} if rows else {"gate": nn.Linear(4, 6), "up": nn.Linear(4, 6)}
    held = nn.ModuleDict({**both, "down": nn.Linear(6, 4)})
    activation = Pointwise([(None, head("silu", "float32"))], engine)
    own = GatedBlock(dict(held), activation, Product(square, scale, radius, engine), rows).eval()
    other = shipped(own, held)
    x = torch.rand(3, 5, 4) - 0.5
    for mode in MODES:
        with mode():
            assert torch.equal(own(x), other(x))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(own(x), other(x)) and torch.equal(own(x.bfloat16()), other(x.bfloat16()))


@pytest.mark.parametrize("engine", ["closed-form", "softmax"])
@pytest.mark.parametrize(
    ("centred", "one_plus", "affine"),
    [(True, None, True), (False, None, True), (False, torch.float32, True), (True, None, False)],
)
def test_norms(engine: str, centred: bool, one_plus: Any, affine: bool) -> None:
    torch.manual_seed(2)
    held = nn.Module()
    held.weight = nn.Parameter(torch.randn(12)) if affine else None
    held.bias = nn.Parameter(torch.randn(12)) if affine and centred else None
    numbers = proved_heads(12, 1e-5, 2.0**64, 1e-3, "float32").numbers
    own = Norm(numbers, centred, held.weight, held.bias, one_plus=one_plus, engine=engine).eval()
    check(own, shipped(own, held), torch.randn(3, 7, 12))


def test_a_cast_keeps_the_numbers_of_attention() -> None:
    own = Pointwise([(None, head("tanh", "float32"))], "softmax")
    other = shipped(own)
    for cast in (torch.bfloat16, torch.float16):
        assert {t.dtype for t in other.to(cast).buffers()} == {torch.float32}
    assert {t.dtype for t in other.double().buffers()} == {torch.float64}
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.equal(own.double()(x), other(x))


def test_what_is_missing_is_named() -> None:
    own = Pointwise([(None, head("tanh", "float32"))], "softmax")
    runs = {"places": ["a.part"], **executed(own)}
    state = {f"a.part.{name}": tensor for name, tensor in own.state_dict().items()}
    del state["a.part.0.value"]
    with pytest.raises(ValueError, match=r"a\.part\.0\.value"):
        remote.taken_tensors(runs, state, "")
    with pytest.raises(ValueError, match=r"a\.part"):
        remote.replace_part(nn.Module(), runs, {}, "", False)


CARD, FRONT = "---\ntags:\n- attnc\n---\n\n# Own\n", "---\nlicense: mit\n---\n"
OWN, BELOW = f"{saving.OWN_CARD}\n# Own\n", f"\n{saving.ORIGINAL_CARD}\n\n"
TAGS = "---\ntags:\n- attnc\n---\n"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", TAGS + OWN),
        (f"{FRONT}# Mine\n", f"{FRONT}{OWN}{BELOW}# Mine\n"),
        ("# Mine\n\n---\n", f"{TAGS}{OWN}{BELOW}# Mine\n\n---\n"),
        ("---\nlicense: mit\n", f"{TAGS}{OWN}{BELOW}---\nlicense: mit\n"),
        (FRONT, f"{FRONT}{OWN}"),
    ],
)
def test_cards(before: str, expected: str) -> None:
    """The second time, and when the directory is opened and saved again, the card is the same."""
    merged = saving.merged_card(CARD, before)
    assert merged == expected
    assert saving.merged_card(CARD, merged) == merged
    assert saving.merged_card(merged, "") == merged


def test_the_files_are_one() -> None:
    """No name is defined twice in the modelling file, and its files have the names that attnc looks for."""
    defined = [
        name
        for node in ast.parse(modelling_text()).body
        for name in (
            [node.name]
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
            else [
                n.id
                for target in getattr(node, "targets", ())
                for n in ast.walk(target)
                if isinstance(n, ast.Name)
            ]
        )
    ]
    assert len(defined) > 50 and len(defined) == len(set(defined))
    chunks = (head_module._CHUNK, product_module._CHUNK, product_module._HELD, norm_module._CHUNK)
    assert chunks == (attention._WEIGHTS, attention._PRODUCTS, attention._BLOCK, attention._NUMBERS)
    assert attention._NUMBERS == engines.CHUNK
    assert (saving.WEIGHTS, saving.INDEX) == (CONVERTED, CONVERTED_INDEX)
    assert (config.FILE, saving.CARD, config.MODEL_TYPE) == (MODELLING, CARD_FILE, MODEL_TYPE)
