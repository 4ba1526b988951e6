"""attnc.convert_: every feed-forward block of a transformer becomes attention over anchors, with a proof for each."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnc.arithmetic import probe_window
from attnc.errors import InputError, PrecisionError
from attnc.frontends.transformers import Call, Found, Site, find_blocks
from attnc.lower.function_to_head import check_arithmetic, checked_eps
from attnc.pretrained.blocks import Planned, plan_block
from attnc.pretrained.config import ConvertConfig, checked_config
from attnc.pretrained.entering import entering
from attnc.pretrained.guard import check_reached, check_runs
from attnc.pretrained.report import ConversionReport, Difference
from attnc.pretrained.samples import calls, outputs
from attnc.pretrained.store import note_conversion
from attnc.records.fields import versions

Model = TypeVar("Model", bound=nn.Module)
Progress = Callable[[int, int, str], None]


def convert_(
    model: nn.Module,
    eps: float,
    config: ConvertConfig | Mapping[str, Any] | None = None,
    filter_fn: Callable[[Site], bool] | None = None,
    *,
    samples: object = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Replace, in place, every feed-forward block of a model by attention over anchors; all else stays as it is.

    Each block's output moves by at most `eps` in exact arithmetic, whatever enters the norm in front of it; what rounding adds is
    proved and reported beside it, for norms that return a normalised vector when they are executed (docs/pretrained.md). Blocks
    without a norm need `config.inputs` or `config.calibration`. `filter_fn` says of a block (its `name`, `family`,
    `activation` …) whether to convert it. On `samples`
    (a mapping of arguments, a tensor, or a list of those) the model is run before and after, and the outputs are compared.
    Where a block cannot be converted, an error lists every reason, and nothing is changed.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> report = convert_(model, eps=1e-4, samples=torch.randn(3, 5, 8))
    >>> report.converted, all(block.exact <= 1e-4 for block in report.blocks)
    (2, True)
    >>> report.blocks[0].holds_for, report.measured[0].largest < 1e-4
    ('every input', True)
    """
    began = time.perf_counter()
    eps, config, say = checked_eps(eps), checked_config(config), progress or _silent
    given = calls(samples) if samples is not None else []
    before = outputs(model, samples) if given and isinstance(model, nn.Module) else []
    found = find_blocks(model, filter_fn, call=_call(model, samples, config))
    _check_arithmetic(found)
    known = entering(model, found.blocks, config)
    parameters = sum(p.numel() for p in model.parameters())
    planned = _planned(found, known, eps, config, say)
    check_runs(model, found.call, planned)
    undo: list[Callable[[], None]] = []
    try:
        for plan in planned:
            undo.append(plan.site.replace(plan.module))
        check_reached(model, found.call, planned)
        report = ConversionReport(
            model=type(model).__name__, eps=eps, blocks=tuple(plan.report for plan in planned), skipped=found.skipped,
            parameters=parameters, parameters_added=sum(plan.module.parameters_added for plan in planned), seconds=0.0,
            measured=_differences(before, outputs(model, samples)) if given else (), samples=len(given), versions=versions(),
            read=str(found.call),
        )  # fmt: skip
        report = _timed(report, time.perf_counter() - began)
        note_conversion(model, planned, report, config, found.call)
    except BaseException:
        for put_back in reversed(undo):
            put_back()
        raise
    return report


def convert(
    model: Model,
    eps: float,
    config: ConvertConfig | Mapping[str, Any] | None = None,
    filter_fn: Callable[[Site], bool] | None = None,
    *,
    samples: object = None,
    progress: Progress | None = None,
) -> Model:
    """A converted copy of a model; its report is `attnc.report_of(copy)`.

    >>> model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    >>> made = convert(model, eps=1e-4)
    >>> type(model[2]).__name__, type(made[2]).__name__
    ('GELU', 'AnchorActivation')
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"what is converted is a torch.nn.Module: got {type(model).__name__}")
    made = copy.deepcopy(model)
    convert_(made, eps=eps, config=config, filter_fn=filter_fn, samples=samples, progress=progress)
    return made


def _planned(
    found: Found, known: list[Any], eps: float, config: ConvertConfig, say: Progress
) -> list[Planned]:
    plans, total = [], len(found.blocks)
    for i, (site, what) in enumerate(zip(found.blocks, known, strict=True)):
        say(i, total, site.name)

        def tell(text: str, done: int = i, name: str = site.name) -> None:
            say(done, total, f"{name}: {text}")

        plans.append(plan_block(site, what, eps, config, tell))
    say(total, total, "done")
    return plans


def _call(model: nn.Module, samples: object, config: ConvertConfig) -> Call | None:
    """What to read the model by: the first of the samples, or of those for calibration, with which it must run."""
    given = samples if samples is not None else config.calibration
    if given is None or not isinstance(model, nn.Module):
        return None
    first = calls(given)[0]
    if samples is None:
        outputs(model, [(*first[0],) if not first[1] else first[1]])
    return Call(*first)


def _check_arithmetic(found: Found) -> None:
    for dtype in {str(site.dtype).removeprefix("torch.") for site in found.blocks}:
        check_arithmetic(dtype, network=True)
        broken = probe_window(dtype)
        if broken is not None:
            raise PrecisionError(
                f"this machine's {dtype} arithmetic is not what certificates assume ({broken}): see docs/arithmetic.md"
            )


def _differences(before: list[dict[str, Tensor]], after: list[dict[str, Tensor]]) -> tuple[Difference, ...]:
    found: dict[str, list[Tensor]] = {}
    for old, new in zip(before, after, strict=True):
        for name, tensor in old.items():
            found.setdefault(name, []).append(_apart(new[name], tensor).flatten())
    made = {name: torch.cat(parts) for name, parts in found.items()}
    return tuple(
        Difference(name, d.numel(), float(d.max()), float(d.median()))
        for name, d in made.items()
        if d.numel()
    )


def _apart(new: Tensor, old: Tensor) -> Tensor:
    """|new - old|; 0 where they are the same, infinities and NaN included, and inf where only one of them is a NaN."""
    new, old = new.double(), old.double()
    same = (new == old) | (new.isnan() & old.isnan())
    return (new - old).abs().nan_to_num(torch.inf).masked_fill(same, 0.0)


def _timed(report: ConversionReport, seconds: float) -> ConversionReport:
    return ConversionReport(**{**vars(report), "seconds": round(seconds, 3)})


def _silent(done: int, total: int, text: str) -> None:
    return None
