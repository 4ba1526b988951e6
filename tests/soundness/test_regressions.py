"""Ways in which a promise was once broken, each with what must happen instead."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc import functions
from attnc.errors import CertificateError, FileError, InputError, PrecisionError, UnsupportedError
from attnc.frontends import mlp
from attnc.functions.function import is_builtin
from attnc.lower.layers import lower_steps
from attnc.program import Affine, Pointwise, Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import compose
from attnc.records.certificate import Witness
from tests.sampled import every

WIDE = torch.float64


def residual() -> attnc.Network:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.5 * torch.tanh(self.inner(x))

    torch.manual_seed(0)
    return attnc.compile(Block().eval(), domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-3)


@pytest.mark.parametrize(("thresholds", "eps"), every(2, [((0.0, -5.0), 20.0), ((20.0, 20.0), 1e-7)]))
def test_deviations_of_one_softplus_reach_the_threshold_of_the_next(
    thresholds: tuple[float, float], eps: float
) -> None:
    """The source's own value crosses the second threshold where the smooth function's does not."""
    first, second = thresholds
    m = (
        nn.Sequential(nn.Linear(1, 1), nn.Softplus(1.0, first), nn.Linear(1, 1), nn.Softplus(1.0, second))
        .double()
        .eval()
    )
    with torch.no_grad():
        m[0].weight[:], m[0].bias[:] = 1, 0
        smooth = float(np.logaddexp(0, first + 0.1))
        m[2].weight[:], m[2].bias[:] = -1, second + (first + 0.1 + smooth) / 2
    box = attnc.Box(first + 0.1, first + 0.2, shape=(1,))
    with pytest.raises(PrecisionError):
        attnc.compile(m, domain=box, eps=eps / 200, dtype=WIDE)
    net = attnc.compile(m, domain=box, eps=eps, dtype=WIDE)
    x = torch.linspace(first + 0.1, first + 0.2, 201, dtype=WIDE)[:, None]
    assert float((net(x) - m(x)).detach().abs().max()) <= net.certificate.bound
    assert attnc.verify(net).status == "proved"


def test_reach_holds_the_error_and_slopes_are_taken_on_it() -> None:
    """Exactly, -1 enters the second layer; executed, up to 1 may: ReLU is not flat there."""
    steps = (
        Affine(0, np.array([[0.0]])),
        Pointwise(1, functions.relu()),
        Affine(2, np.array([[1.0]]), np.array([-1.0])),
        Pointwise(3, functions.relu()),
    )
    program = Program((1,), steps)
    known = compose(
        program,
        lower_steps(program, "float64"),
        attnc.Box(0, 1, shape=(1,)),
        {2: HeadErrors(2.0, 2.0)},
        "float64",
    )
    assert known[3].reach[0][0] <= -3 and known[3].reach[1][0] >= 1
    assert known[4].error[0] >= 1
    low, high = ValueBounds(np.array([1.0]), np.array([2.0]), np.zeros(1), np.array([0.5])).reach
    assert low[0] <= 0.5 and high[0] >= 2.5


def edited(path: Path, change: object) -> None:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header["__metadata__"]["attnc"])
    change(about)  # type: ignore[operator]
    header["__metadata__"]["attnc"] = json.dumps(about)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


@pytest.mark.parametrize(
    "coefficients", [[1.0, 25.0], ["1", "0.5"], [None, 1.0], [10**400, 1], [1.0, float("nan")]], ids=str
)
def test_coefficients_are_part_of_what_is_certified(tmp_path: Path, coefficients: list[object]) -> None:
    path = tmp_path / "net.safetensors"
    residual().save(path)
    edited(path, lambda about: about["layers"][-1]["settings"].update(coefficients=coefficients))
    for read in (attnc.load, attnc.verify):
        with pytest.raises((FileError, CertificateError)):
            read(path)


def test_a_changed_stage_or_program_is_noticed() -> None:
    net = residual()
    assert net.why_not_certified() is None
    net.stages[-1].settings["coefficients"] = (1.0, 25.0)
    assert "structure" in str(net.why_not_certified())
    other = residual()
    other.program = Program((3,), (Affine(0, np.eye(3)),))
    assert "steps" in str(other.why_not_certified())


def test_a_module_that_runs_other_code_is_not_proved() -> None:
    net = residual()
    net.register_forward_hook(lambda m, i, y: torch.where(i[0][..., :1].abs() < 1e-6, y + 100, y))
    assert attnc.verify(net).status == "unknown"

    class Other(attnc.Network):
        def forward(self, x: Tensor, strict: bool | None = None) -> Tensor:
            return super().forward(x, strict)

    plain = residual()
    assert attnc.verify(plain).status == "proved"
    assert attnc.verify(Other(list(plain.stages), plain.program, plain.certificate)).status == "unknown"


class Clamped(nn.Module):
    """A linear layer, and a clamp that only real tensors meet, or only calls that are not recorded."""

    def __init__(self, meets: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.inner, self.meets = nn.Linear(2, 2), meets

    def forward(self, x: Tensor) -> Any:
        return self.inner(x.clamp(-10, 10) if self.meets(x) else x)


def test_a_branch_on_the_type_of_the_input_is_read() -> None:
    model = Clamped(lambda x: isinstance(x, Tensor)).eval()
    net = attnc.compile(model, domain=attnc.Box(-100, 100, shape=(2,)), eps=1e-2)
    x = torch.rand(4096, 2) * 200 - 100
    with torch.no_grad():
        assert float((net(x) - model(x)).abs().max()) <= net.certificate.bound


def test_a_branch_that_the_recording_does_not_see_is_seen_in_the_box() -> None:
    model = Clamped(lambda x: not torch.compiler.is_exporting()).eval()
    with pytest.raises(UnsupportedError):
        attnc.compile(model, domain=attnc.Box(-100, 100, shape=(2,)), eps=1e-2)


@pytest.mark.parametrize(
    "names",
    [("layers.0", "layers.1", "head"), ("input", "hidden", "output"), ("a.0.b.0", "a.0.b.1", "a.1.b.0")],
)
def test_names_that_do_not_say_the_order(names: tuple[str, ...]) -> None:
    tensors = {f"{name}.weight": torch.eye(2) for name in names}
    with pytest.raises(InputError, match="order"):
        mlp(tensors, "relu")
    assert [s.name for s in mlp(tensors, "relu", order=names).steps if isinstance(s, Affine)] == list(names)


@pytest.mark.parametrize("change", ["witness above the bound", "rounding above the bound", "neurons"])
def test_a_certificate_that_boasts_is_not_proved(change: str) -> None:
    net = residual()
    c = net.certificate
    (layer,) = c.parts("layer")
    layer = replace(layer, facts={**layer.facts, "neurons": [999]})
    net.certificate = {
        "witness above the bound": replace(c, witness=Witness(c.witness.input, 0, 5.0)),
        "rounding above the bound": replace(c, rounding=1e3),
        "neurons": replace(c, children=(layer,)),
    }[change]
    assert attnc.verify(net).status == "unknown"


def test_a_borrowed_name_is_not_taken_for_the_function() -> None:
    fake = attnc.Function("fake", torch.abs, (lambda x: -x, lambda x: x), (0.0,))
    object.__setattr__(fake, "name", "relu")
    assert not is_builtin(fake) and all(
        is_builtin(functions.get(n)) for n in ("relu", "gelu", "clip(-1,1)", "tanh", "softplus(2)")
    )
    for f in (fake, functions.relu()):
        steps = (Affine(0, np.array([[1.0]])), Pointwise(1, f), Affine(2, np.array([[1.0]])))
        asked = {"domain": attnc.Box(-1, 1, shape=(1,)), "eps": 1e-2, "dtype": WIDE}
        if f is fake:
            with pytest.raises(InputError, match="relu"):
                attnc.compile(Program((1,), steps), **asked)
        else:
            net = attnc.compile(Program((1,), steps), **asked)
            assert abs(float(net(torch.tensor([-1.0], dtype=WIDE)))) <= 1e-2


def test_ends_of_different_shapes_are_refused() -> None:
    with pytest.raises(InputError):
        attnc.Box(np.zeros(3), np.ones(2))
