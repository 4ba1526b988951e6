"""A certificate for a given input: how far a converted model, as executed, is from the original model in exact arithmetic."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from attnc import functions
from attnc.errors import InputError, PrecisionError, Problem, UnsupportedError
from attnc.frontends.capture import Captured
from attnc.frontends.exact import Meaning, exact_outputs
from attnc.frontends.exact_operations import apply, norm, to_balls
from attnc.frontends.transformers import Call
from attnc.frontends.transformers.find import record
from attnc.frontends.transformers.places import sites_in
from attnc.functions.balls import upper, working
from attnc.network.certified import Certified, check_subnormals, distance
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.pretrained.inputs import calls, outputs
from attnc.pretrained.store import blocks_of, records_in, report_of, why_not_recorded
from attnc.program.step import Balls
from attnc.progress import watched
from attnc.records.fields import at_most

_FIRST, _LAST = 192, 1536  # bits
_NEGLIGIBLE, _EXACT = 2.0**-10, 2.0**-64  # a radius, of the bound or of the output


@dataclass(frozen=True, eq=False)
class InputCertificate:
    """For every float output of a converted model, the executed numbers and a proved bound for each:

        |executed - original| <= bound      the original model in exact arithmetic, on the same inputs

    The original is the model as it runs now, with its present weights, and with what each converted part stands for in its place.
    Every part of the report must be there, unchanged, and run. Nothing is assumed about the machine. This is no `Certificate`: it
    is about the numbers of one execution, which it holds, and not about a domain; `precision` and `radius` describe the balls of
    the original's outputs. The model runs as the caller would run it: torch has other kernels, which round otherwise, with
    gradients (`grad`) than under `torch.no_grad()`. In inference mode the original is the model under `torch.no_grad()`, which
    must run the same functions and return the same numbers."""

    model: str
    outputs: Mapping[str, Certified]
    precision: int
    radius: float
    seconds: float
    grad: bool = True

    def __getitem__(self, output: str) -> Certified:
        if output not in self.outputs:
            raise InputError(f"there is no output {output!r}: the outputs are {', '.join(self.outputs)}")
        return self.outputs[output]

    def argmax_same(self, output: str = "logits") -> Tensor:
        """Where the largest number along the last axis is proved to be at the same place in the original: for logits, where the
        predicted token, or class, cannot change."""
        value, bound = self[output]
        y, up = value.detach().double(), torch.tensor(torch.inf, dtype=torch.float64)
        top = y.argmax(-1, keepdim=True)
        low = torch.nextafter((y - bound).gather(-1, top), -up).squeeze(-1)
        others = torch.nextafter(y + bound, up).scatter(-1, top, -torch.inf)
        return low > others.amax(-1)

    def __repr__(self) -> str:
        bounds = ", ".join(f"{name} within {at_most(found.largest)}" for name, found in self.outputs.items())
        return f"InputCertificate({self.model}: {bounds}; print it for more)"

    def __str__(self) -> str:
        lines = [
            f"{self.model}, as executed on these inputs with gradients {'on' if self.grad else 'off'}, against the original "
            "operations with the weights that it holds now, in exact arithmetic:"
        ]
        for name, found in self.outputs.items():
            shape = " x ".join(map(str, found.value.shape))
            lines.append(f"{name} ({shape}): each number is within {at_most(found.largest)}")
        if "logits" in self.outputs and self["logits"].value.shape[-1] > 1:
            same, text = self.argmax_same(), "LM" in self.model or "Generation" in self.model
            what, places = ("token", "positions") if text else ("class", "predictions")
            lines.append(
                f"the predicted {what} cannot change: proved for {int(same.sum())} of {same.numel()} {places}"
            )
        lines.append(
            f"proved in ball arithmetic of {self.precision} bits; radius at most {at_most(self.radius)}; {self.seconds:.1f} s"
        )
        return "\n".join(lines)


@watched("evaluating the original in ball arithmetic")
def input_certificate(model: nn.Module, inputs: object) -> InputCertificate:
    """See `ConversionReport.for_input`."""
    began = time.perf_counter()
    check_subnormals()
    call, *others = calls(inputs)
    given = _leaves(call)
    floats = [x for x in given if isinstance(x, Tensor) and x.is_floating_point()]
    if others or not all(bool(x.isfinite().all()) for x in floats):
        raise InputError("inputs are the arguments of one call, and finite")
    executed, captured = _run_and_record(model, call)
    marks = _meanings(model, captured)
    precision = _FIRST
    while True:
        original = [out for out in exact_outputs(captured, given, precision, marks) if out is not None]
        shapes = [tuple(value.shape) for value in executed.values()]
        if shapes != [out.shape for out in original]:
            raise _refused(model, "the model", "returns other outputs when it is recorded than when it runs")
        with working(precision):
            bounds = [distance(value, out) for value, out in zip(executed.values(), original, strict=True)]
            radii = [max((upper(b.rad()) for b in out.flat), default=0.0) for out in original]
        sizes = [float(value.abs().max()) if value.numel() else 0.0 for value in executed.values()]
        found = {name: Certified(y, b) for (name, y), b in zip(executed.items(), bounds, strict=True)}
        needed = [
            max(_NEGLIGIBLE * one.largest, _EXACT * size)
            for one, size in zip(found.values(), sizes, strict=True)
        ]
        if all(one.largest < torch.inf for one in found.values()) and all(map(float.__le__, radii, needed)):
            seconds = round(time.perf_counter() - began, 3)
            return InputCertificate(
                type(model).__name__, found, precision, max(radii), seconds, torch.is_grad_enabled()
            )
        if precision >= _LAST:
            raise PrecisionError(
                f"the original model cannot be evaluated with {precision} bits: the radius of an output is {max(radii):g}",
                None,
            )
        precision *= 2


def _leaves(call: Call) -> list[object]:
    """The arguments of a call, flattened; tensors are copied."""
    leaves = tree_leaves((call.args, call.kwargs or {}))
    return [x.detach().clone() if isinstance(x, Tensor) else x for x in leaves]


def _run_and_record(model: nn.Module, call: Call) -> tuple[dict[str, Tensor], Captured]:
    """The outputs of a call, and its recording. The recording is of what ran only if the model changes neither its inputs nor its
    own state: it runs before and after, which must return the same numbers."""
    given = _leaves(call)

    def run() -> dict[str, Tensor]:
        (found,) = outputs(model, [call], grad=torch.is_grad_enabled())
        kept = {name: value.detach().clone() for name, value in found.items()}
        if not _same(_leaves(call), given):
            raise _refused(model, "the model", "changes its inputs when it runs")
        return kept

    first, state = run(), _state(model)
    wrong = [name for name, value in first.items() if not bool(value.isfinite().all())]
    if wrong or not first:
        raise InputError(
            f"the converted model returns no finite numbers in {wrong[0] if wrong else 'any output'}"
        )
    captured = record(model, call, grad=torch.is_grad_enabled())
    for _ in range(2):  # also a state that alternates
        again = run()
        if [*again] != [*first] or not _same([*again.values()], [*first.values()]):
            raise _refused(model, "the model", "returns other numbers when it runs again: call model.eval()")
    if torch.is_inference_mode_enabled():
        _check_without_inference_mode(model, call, first)
    if _state(model) != state:
        raise _refused(model, "the model", "changes an attribute of its own when it runs")
    return first, captured


class _Calls(TorchFunctionMode):
    """Notes every function of torch that runs, with the numbers, parameters, shapes and dtypes that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[object, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_leaves((args, kwargs or {}))
        self.seen.append((getattr(func, "__qualname__", repr(func)), *map(_shown, given)))
        return func(*args, **(kwargs or {}))


def _shown(x: object) -> object:
    if isinstance(x, Tensor):
        return (id(x) if isinstance(x, nn.Parameter) else 0, x.shape, x.dtype)
    return repr(x) if isinstance(x, (int, float, str)) else type(x).__name__


def _check_without_inference_mode(model: nn.Module, call: Call, known: Mapping[str, Tensor]) -> None:
    """The recording is of a run outside of inference mode, which a forward may notice: the same functions must run in it, and
    return the same numbers."""
    grad, runs = torch.is_grad_enabled(), []
    own = any(
        t.is_inference() for t in (*model.parameters(), *model.buffers())
    )  # and is recorded in this mode
    for inference in (True, own):
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), _Calls() as made:
            (found,) = outputs(model, [call], grad=grad)
        runs.append(made.seen)
        if [*found] != [*known] or not _same([*found.values()], [*known.values()]):
            raise _refused(model, "the model", "returns other numbers in inference mode than without it")
    if runs[0] != runs[1]:
        raise _refused(model, "the model", "runs other functions in inference mode than without it")


def _same(these: Sequence[object], those: Sequence[object]) -> bool:
    """Whether flattened values are the same; NaN is the same as nothing."""
    return len(these) == len(those) and all(
        x.dtype == y.dtype and torch.equal(x, y)
        if isinstance(x, Tensor) and isinstance(y, Tensor)
        else x is y
        for x, y in zip(these, those, strict=True)
    )


def _state(model: nn.Module) -> dict[tuple[str, str], object]:
    """The numbers and names that the parts of a model hold."""
    return {
        (name, key): value
        for name, part in model.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, (int, float, str))
    }


def _meanings(model: nn.Module, captured: Captured) -> dict[str, Meaning]:
    """What each converted part that runs stands for, by the names of its marks. Its weights must be those that were converted."""
    report, records = report_of(model), {**dict(records_in(model)), **blocks_of(model)}
    names = {id(part): name for name, part in model.named_modules()}
    sites = {site.name: site for site in sites_in(model, captured)[0]}
    found: dict[str, Meaning] = {}
    for claim in report.certificate.children:
        site = sites.get(claim.name)
        if site is None:
            raise _refused(
                model,
                claim.name,
                "was converted, and does not run when the model is called with these inputs",
            )
        module = site.replaced
        if type(module) not in (Pointwise, GatedBlock, Norm):
            raise _refused(model, claim.name, "is not the part that was converted")
        assert isinstance(module, (Pointwise, GatedBlock, Norm))
        ask: Any = type(
            module
        ).why_not_certified  # of the class: an attribute of the instance does not hide it
        if (reason := ask(module)) is not None:
            raise _refused(model, claim.name, reason)
        if claim.name not in records:
            raise _refused(model, claim.name, "has no record of its weights: convert the model anew")
        if (reason := why_not_recorded(model, site, module, records[claim.name])) is not None:
            raise _refused(model, claim.name, reason)
        if isinstance(module, Norm):
            found[names[id(module)]] = _norm_meaning(module)
            continue
        if isinstance(module, GatedBlock):
            found[names[id(module)]] = _multiply
        activation = module.activation if isinstance(module, GatedBlock) else module
        label = claim.facts["activation"]
        if {head.certificate.facts.get("function") for _, head in activation.groups} != {label}:
            raise _refused(model, claim.name, f"has heads for another function than {label}")
        found[names[id(activation)]] = _activation_meaning(label)
    return found


def _activation_meaning(label: str) -> Meaning:
    f = functions.get(label)
    return lambda x: apply(f, x)


def _multiply(x: Balls | Tensor, y: Balls | Tensor) -> Balls:
    product: Balls = to_balls(x) * to_balls(y)
    return product


def _norm_meaning(module: Norm) -> Meaning:
    """With its own gain, shift and ε; a gain 1 + weight is taken in exact arithmetic."""

    def meaning(x: Balls | Tensor) -> Balls:
        gain = (
            module.weight if module.weight is None or module.one_plus is None else to_balls(module.weight) + 1
        )
        return norm(x, gain, module.bias, module.heads.offset, module.centred)

    return meaning


def _refused(model: nn.Module, where: str, reason: str) -> UnsupportedError:
    what = f"{type(model).__name__} has no certificate for this input"
    return UnsupportedError(what, [Problem(where, reason)])
