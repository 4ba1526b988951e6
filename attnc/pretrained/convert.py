"""attnc.convert_: the feed-forward blocks of a transformer become attention over anchors, with a proof for each."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnc.arguments import check_arithmetic, checked_eps
from attnc.arithmetic import probe_window
from attnc.errors import InputError, PrecisionError, UnsupportedError, page
from attnc.frontends.advice import advising_convert
from attnc.frontends.problems import quantised_parts
from attnc.frontends.sklearn import is_estimator
from attnc.frontends.transformers import ActivationSite, BlockList, NormSite, find_blocks
from attnc.pretrained.blocks import PlannedPart, check_norms, plan_activation, plan_block, plan_norm
from attnc.pretrained.config import ConvertConfig, checked_config, checked_parts
from attnc.pretrained.guard import check_reached, check_runs
from attnc.pretrained.inputs import calls, entering, outputs
from attnc.pretrained.report import ConversionReport, Difference, model_certificate
from attnc.pretrained.store import note_conversion
from attnc.progress import Progress, resolve_progress, watched

Model = TypeVar("Model", bound=nn.Module)


@watched("converting")
def convert_(
    model: nn.Module,
    approximation: float,
    config: ConvertConfig | Mapping[str, Any] | None = None,
    filter_fn: Callable[[Any], bool] | None = None,
    *,
    parts: str | Collection[str] = "feed-forward",
    samples: object = None,
    progress: Progress | bool | None = None,
) -> ConversionReport:
    """Replace, in place, the nonlinearities of a model by attention: those of feed-forward blocks by attention over anchors,
    norms by attention of each token to itself (`parts="norm"`), tanh and sigmoid elsewhere, as in a pooler, by a head of two keys
    (`parts="activation"`). `parts="all"` replaces all of them; a tuple of names replaces these.

    `approximation` bounds how far each output of a block moves in exact arithmetic, for every input of the norm in front of
    it. The rounding that execution adds is proved and reported beside it, if the executed norm returns a normalised vector
    (docs/pretrained.md). Blocks without a norm need `config.inputs` or `config.calibration`. `filter_fn` selects blocks by
    their `name`, `family`, `activation` and other attributes. With `samples` (a mapping of arguments, a tensor, or a list of
    those) the model runs before and after the conversion, and the report compares the outputs. If a block cannot be
    converted, an error lists every reason and the model is not changed.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> report = convert_(model, approximation=1e-4, samples=torch.randn(3, 5, 8))
    >>> report.converted, report.proved, report.certificate.approximation <= 1e-4
    (2, True, True)
    >>> report.blocks[0].holds_for, report.measured[0].largest < 1e-4
    (Normed(LayerNorm, d=8), True)
    """
    began = time.perf_counter()
    approximation, config = checked_eps(approximation, "approximation"), checked_config(config)
    _check_module(model)
    with advising_convert(model):
        given = [] if samples is None else calls(samples)
        read_by = given or ([] if config.calibration is None else calls(config.calibration))
        before = outputs(model, given)
        outputs(model, [] if given else read_by[:1])  # the model must run on the call that it is read by
        call = read_by[0] if read_by else None
        found = find_blocks(model, filter_fn, call=call, parts=checked_parts(parts))
        check_dtypes(found)
        parameters = sum(p.numel() for p in model.parameters())
        planned = _plan(model, found, approximation, config, resolve_progress(progress))
    undo: list[Callable[[], None]] = []
    try:
        for plan in planned:
            undo.append(plan.site.replace(plan.module))
        check_reached(model, found.call, planned)
        report = ConversionReport(
            certificate=model_certificate(type(model).__name__, approximation, [plan.certificate for plan in planned]),
            skipped=found.skipped,
            parameters=parameters, parameters_added=sum(plan.module.parameters_added for plan in planned), seconds=0.0,
            measured=differences(before, outputs(model, given)), samples=len(given),
            read=str(found.call),
        )  # fmt: skip
        report = replace(report, seconds=round(time.perf_counter() - began, 3))
        note_conversion(model, planned, report, config, found.call)
    except BaseException:
        for put_back in reversed(undo):
            put_back()
        raise
    return report.attached(model)


def _check_module(model: object) -> None:
    """Raise for something that is no module, and say what to call instead; and for a quantised one."""
    if isinstance(model, nn.Module):
        if quantised := quantised_parts(model):
            raise UnsupportedError(f"{type(model).__name__} cannot be converted", quantised)
        return
    instead = ". Call attnc.compile" if is_estimator(model) or callable(model) else ""
    if isinstance(model, type):
        raise InputError(
            f"model must be a torch.nn.Module: got the class {model.__name__}; give a trained instance of it"
        )
    if isinstance(model, Mapping):
        instead = (
            ", a state dict perhaps. Load it into its model, model.load_state_dict(tensors), and convert that. For tensors of "
            'a plain MLP call attnc.compile(attnc.frontends.mlp(tensors, "relu"), domain=…, eps=…)'
        )
    if isinstance(model, (str, os.PathLike)):
        instead = ". Load it first, transformers.AutoModel.from_pretrained(path).eval(), or run `attnc convert DIR -o OUT`"
    raise InputError(f"model must be a torch.nn.Module: got {type(model).__name__}{instead}")


@watched("converting")
def convert(
    model: Model,
    approximation: float,
    config: ConvertConfig | Mapping[str, Any] | None = None,
    filter_fn: Callable[[Any], bool] | None = None,
    **options: Any,
) -> Model:
    """A converted copy of a model; `attnc.pretrained.report_of(copy)` returns its report. The `options` are those of `convert_`.

    >>> model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    >>> converted = convert(model, approximation=1e-4)
    >>> type(model[2]).__name__, type(converted[2]).__name__
    ('GELU', 'Pointwise')
    """
    copied = copy.deepcopy(model)
    convert_(copied, approximation, config, filter_fn, **options)
    return copied


def _plan(
    model: nn.Module, found: BlockList, approximation: float, config: ConvertConfig, progress: Progress
) -> list[PlannedPart]:
    """The module and the certificate of every part; the parts as they run are compared with what was read."""
    blocks, total = [], len(found.blocks)
    for i, (site, domain) in enumerate(zip(found.blocks, entering(model, found.blocks, config), strict=True)):
        progress(site.name, i, total)

        def tell(text: str, done: int = i, name: str = site.name) -> None:
            progress(f"{name}: {text}", done, total)

        blocks.append(plan_block(site, domain, approximation, config, tell))
    progress("done", total, total)
    norms = [plan_norm(site, approximation, config) for site in found.sites if isinstance(site, NormSite)]
    activations = [site for site in found.sites if isinstance(site, ActivationSite)]
    check_runs(model, found.call, blocks)
    check_norms(model, [site for site in found.sites if isinstance(site, NormSite)])
    return [*blocks, *norms, *(plan_activation(site, approximation, config) for site in activations)]


def check_dtypes(found: BlockList) -> None:
    """Raise PrecisionError if the arithmetic of this machine is not as assumed, in a dtype of the model."""
    for name in {"float64" if site.dtype == torch.float64 else "float32" for site in found.sites}:
        check_arithmetic(name, network=True)
        broken = probe_window(name)
        if broken is not None:
            what = f"the {name} arithmetic of this machine violates an assumption of the proofs ({broken})"
            raise PrecisionError(f"{what}: see {page('arithmetic')}")


def differences(before: list[dict[str, Tensor]], after: list[dict[str, Tensor]]) -> tuple[Difference, ...]:
    """How far the outputs of samples are apart, by their names."""
    found: dict[str, list[Tensor]] = {}
    for old, new in zip(before, after, strict=True):
        for name, tensor in old.items():
            found.setdefault(name, []).append(_apart(new[name], tensor).flatten())
    gaps = [(name, torch.cat(parts)) for name, parts in found.items()]
    return tuple(Difference(n, d.numel(), float(d.max()), float(d.median())) for n, d in gaps if d.numel())


def _apart(new: Tensor, old: Tensor) -> Tensor:
    """|new - old|; 0 where both are equal (or both NaN), infinity where only one is NaN."""
    new, old = new.double(), old.double()
    same = (new == old) | (new.isnan() & old.isnan())
    return (new - old).abs().nan_to_num(torch.inf).masked_fill(same, 0.0)
