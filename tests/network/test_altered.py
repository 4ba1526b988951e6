"""why_not_certified sees whatever makes other code run, and verify never says proved of it."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import attnc
from attnc.errors import CertificateWarning
from attnc.incontext import Radius, ridge_regression
from tests.network.examples import activation, gate, head, learner, network


def solver() -> Any:
    return ridge_regression(0.5, features=2, iterations=4, radius=4.0, start=0.1, dtype=torch.float64)


MAKES = [head, network, activation, gate, learner, solver]
VERIFIED = (head, network)  # attnc.verify takes them as they are


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class OtherHead(attnc.Head):
    def forward(self, s: Tensor, strict: bool | None = None) -> Tensor:
        return 2 * super().forward(s, strict)


def a_head(module: Any) -> attnc.Head:
    return next(part for part in module.modules() if isinstance(part, attnc.Head))


def hook(module: Any) -> None:
    module.register_forward_hook(lambda m, given, out: out + 1)


def pre_hook(module: Any) -> None:
    module.register_forward_pre_hook(lambda m, given: None)


def hook_of_a_head(module: Any) -> None:
    a_head(module).register_forward_hook(lambda m, given, out: 2 * out)


def keyword_pre_hook_of_a_head(module: Any) -> None:
    a_head(module).register_forward_pre_hook(lambda m, given, named: None, with_kwargs=True)


def forward(module: Any) -> None:
    module.forward = lambda *given, **named: torch.zeros(1)


def call(module: Any) -> None:
    module._call_impl = lambda *given, **named: torch.zeros(1)


def inner_method(module: Any) -> None:
    a_head(module)._attend = lambda s: 2 * s


def numbers(module: Any) -> None:
    kept = a_head(module).numbers()
    a_head(module).value.data.add_(1)
    a_head(module).numbers = lambda: kept


def the_answer_itself(module: Any) -> None:
    a_head(module).value.data.add_(1)
    module.why_not_certified = lambda: None


def subclass(module: Any) -> None:
    a_head(module).__class__ = OtherHead


def parametrization(module: Any) -> None:
    made = a_head(module)
    name = "value"
    if name in made._buffers:
        tensor = made._buffers.pop(name)
        made.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
    parametrize.register_parametrization(made, name, Twice())


def tensor_subclass(module: Any) -> None:
    class Odd(torch.Tensor):
        pass

    made = a_head(module)
    for own in (made._parameters, made._buffers):
        if "value" in own:
            own["value"] = made.value.detach().as_subclass(Odd)


def another_part(module: Any) -> None:
    module.add_module("extra", nn.ReLU())


def hidden_part(module: Any) -> None:
    name = next(iter(a_head(module)._parameters or a_head(module)._buffers))
    vars(a_head(module))[name] = getattr(a_head(module), name).clone()


def compiled_in_place(module: Any) -> None:
    module.compile(backend="eager")


def a_number(module: Any) -> None:
    a_head(module).value.data.view(-1)[-1].add_(1e-3)


def a_nan(module: Any) -> None:
    a_head(module).value.data.fill_(float("nan"))


def device(module: Any) -> None:
    module.to("meta")


CHANGES = [
    hook, pre_hook, hook_of_a_head, keyword_pre_hook_of_a_head, forward, call, inner_method, numbers, subclass,
    parametrization, tensor_subclass, another_part, hidden_part, compiled_in_place, a_number, a_nan, device,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("make", MAKES, ids=lambda m: m.__name__)
def test_what_was_changed_is_not_certified(make: Callable[[], Any], change: Callable[[Any], None]) -> None:
    module = make()
    known = getattr(
        module, "certificate", None
    )  # a converted part has none of its own; a solver's may be unknown
    proved = known is not None and known.proved
    assert module.why_not_certified() is None and (not proved or says_proved(known))
    change(module)
    assert module.why_not_certified() and not (proved and says_proved(known))


def says_proved(certificate: attnc.Certificate) -> bool:
    """Whether the certificate as it is shown, in three ways, says that something is proved of its module as it is now."""
    shown = str(certificate), repr(certificate), certificate._repr_html_().partition("<details")[0]
    lapsed = certificate.why_lapsed()
    found = ["\nstatus:      proved\n" in shown[0], ", proved, " in shown[1], ">proved<" in shown[2]]
    assert found == [lapsed is None] * 3 and (lapsed is None or "\nreason:      " in shown[0])
    return lapsed is None


def test_a_certificate_knows_the_module_that_holds_it() -> None:
    """A copy of a module has a certificate of its own. One that was put elsewhere, or read from JSON, says nothing of the
    module that it was taken from."""
    module, kept = network(), network().certificate
    assert says_proved(kept), "its module is gone"
    twin, stored = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    a_number(module)
    assert (
        not says_proved(module.certificate)
        and says_proved(twin.certificate)
        and says_proved(stored.certificate)
    )
    a_number(twin)
    assert not says_proved(twin.certificate)
    stored.certificate = module.certificate
    assert says_proved(stored.certificate) and not says_proved(module.certificate)
    assert stored.certificate == module.certificate == twin.certificate
    for alone in (
        attnc.Certificate.from_json(module.certificate.to_json()),
        copy.deepcopy(module.certificate),
        replace(module.certificate, name="other"),
    ):
        assert says_proved(alone)


def test_a_measured_certificate_says_that_numbers_changed() -> None:
    def opaque(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    made = [
        attnc.head(lambda s: torch.lgamma(s + 4), domain=(-1, 1), eps=1e-2),
        attnc.compile(opaque, domain=attnc.Box(-1, 1, shape=(1, 1)), eps=1e-2, method="lattice"),
    ]
    for module in made:
        assert module.certificate.status == "measured" and module.certificate.why_lapsed() is None
        with torch.no_grad():
            next(p for p in module.parameters() if p.numel()).add_(1)
        assert module.certificate.why_lapsed() and ">measured<" not in module.certificate._repr_html_()


@pytest.mark.parametrize("change", [*CHANGES[:-1], the_answer_itself], ids=lambda c: c.__name__)
@pytest.mark.parametrize("make", VERIFIED, ids=lambda m: m.__name__)
def test_what_was_changed_is_not_proved(make: Callable[[], Any], change: Callable[[Any], None]) -> None:
    module = make()
    assert attnc.verify(module).status == "proved"
    change(module)
    assert attnc.verify(module).status in ("unknown", "refuted")


@pytest.mark.parametrize("make", MAKES, ids=lambda m: m.__name__)
def test_surroundings_are_seen(make: Callable[[], Any]) -> None:
    module = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in module.why_not_certified()
    handle = nn.modules.module.register_module_forward_hook(lambda m, given, out: None)
    assert "global" in module.why_not_certified()
    handle.remove()

    class Watching(TorchFunctionMode):
        def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return f(*args, **(kwargs or {}))

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return f(*args, **(kwargs or {}))

    with Watching():
        assert "mode" in module.why_not_certified()
    with Seeing():
        assert "mode" in module.why_not_certified()
    with torch.device("cpu"):
        assert module.why_not_certified() is None
    assert module.why_not_certified() is None


def test_a_method_of_a_class_that_was_replaced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [make() for make in MAKES]
    genuine = attnc.Head._attend
    monkeypatch.setattr(attnc.Head, "_attend", lambda self, s: 2 * genuine(self, s))
    for module in modules:
        assert "Head._attend was replaced" in module.why_not_certified()
    assert attnc.verify(modules[0]).status != "proved"
    monkeypatch.undo()
    assert [module.why_not_certified() for module in modules] == [None] * len(modules)


@pytest.mark.parametrize("kept", [False, True])
def test_names_and_structure_of_a_network(kept: bool) -> None:
    net = network()
    net.engine = "sdpa" if kept else "Dense"
    assert (net.why_not_certified() is None) is kept, "the certificate covers both engines"
    net = network()
    net.stages = nn.ModuleList(list(net.stages) if kept else list(net.stages)[:-1])
    assert (net.why_not_certified() is None) is kept
    net = network()
    net.stages[1] = net.stages[1] if kept else network().stages[0]
    assert (net.why_not_certified() is None) is kept


def test_stages_that_no_walk_over_modules_sees() -> None:
    net = network()
    stages = list(net.stages)
    stages[1][0].register_forward_hook(lambda m, given, out: 2 * out)
    del net.stages
    net.stages = stages
    assert "list" in net.why_not_certified()
    assert attnc.verify(net).status != "proved"


def test_a_head_in_the_place_of_another_is_seen_though_it_is_certified() -> None:
    """Each head is what its own certificate says, and none is what the certificate of the whole says."""
    net = network()
    net.stages[1][0] = head("gelu")
    assert "stages.1.0" in net.why_not_certified()
    made = learner()
    made.reading = learner("squared").reading
    assert made.why_not_certified() is None, "the same head"
    made.reading = head("gelu")
    assert "heads" in made.why_not_certified()
    made = learner()
    made.activation = None
    assert "heads" in made.why_not_certified()
    block = gate()
    block.product.square[0] = block.activation[0]
    assert "product: its head" in block.why_not_certified()
    layer = activation()
    layer.append(head("gelu"))
    assert "neurons" in layer.why_not_certified()


@pytest.mark.parametrize(
    "change", [{"step_size": 1.0}, {"intercept": True}, {"radius": Radius(8.0, 4.0, 4.0, 32.0)}], ids=str
)
def test_a_learner_with_other_settings_is_not_certified(change: dict[str, Any]) -> None:
    made = learner()
    made.settings = replace(made.settings, **change)
    assert next(iter(change)) in made.why_not_certified()
    assert attnc.verify(made).status != "proved"


def test_parts_of_others_may_be_of_any_class_and_have_no_hooks() -> None:
    block = gate()
    block.up_proj = nn.Sequential(block.up_proj, nn.Identity())
    assert block.why_not_certified() is None, "what the maps compute is in the report of the model"
    block.up_proj[0].register_forward_hook(lambda m, given, out: 2 * out)
    assert "up_proj.0" in block.why_not_certified()


def test_a_converted_model_under_autocast_is_not_proved() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    attnc.convert_(model, approximation=1e-3)
    assert attnc.verify(model).status == "proved"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attnc.verify(model).status == "unknown"
    model.layers[0].activation._windows = lambda engine=None: [None]
    assert attnc.verify(model).status == "unknown"


def quadratic() -> Any:
    return attnc.quadratic_head("rsqrt", features=4, domain=(1e-2, 10), eps=1e-2)


def tokens() -> Any:
    return attnc.zoo.load("sort", length=3)


@pytest.mark.parametrize("make", [head, network, learner, quadratic, tokens], ids=lambda m: m.__name__)
def test_saving_changed_numbers_warns(make: Callable[[], Any], tmp_path: Path) -> None:
    module, path = make(), tmp_path / "saved.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.save(path)
    with torch.no_grad():
        next(t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()).add_(1)
    with pytest.warns(CertificateWarning, match="does not apply"):
        module.save(path)
    assert not attnc.verify(path)
