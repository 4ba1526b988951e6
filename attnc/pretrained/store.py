"""What a converted model carries: its report, and in its config the record by which its directory is read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnc.check.model import VERSION
from attnc.errors import InputError
from attnc.frontends.transformers import Call, NormSite, PartSite, Site
from attnc.frontends.transformers.norms import NormRead
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.pretrained.blocks import PlannedPart
from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.report import ConversionReport, joined_reports
from attnc.pretrained.runs import executed, runs_of
from attnc.pretrained.runs import inside as runs_inside
from attnc.pretrained.shipped import attach_savers
from attnc.records.fields import seal
from attnc.records.numbers import QUADRATIC, digest
from attnc.records.numbers import listed as shown

_REPORT, _CALL, _BLOCKS = "_attnc_report", "_attnc_call", "_attnc_blocks"


def report_of(model: nn.Module) -> ConversionReport:
    """The report of a model that was converted, or read back by `attnc.from_pretrained`, or of the part of it that was.

    >>> report_of(nn.Linear(1, 1))
    Traceback (most recent call last):
    attnc.errors.InputError: Linear was not converted: call attnc.convert_(model, approximation=…)
    """
    for part in model.modules():
        found = getattr(part, _REPORT, None)
        if isinstance(found, ConversionReport):
            return found.attached(part)
    raise InputError(f"{type(model).__name__} was not converted: call attnc.convert_(model, approximation=…)")


def call_of(model: nn.Module) -> Call | None:
    """The call by which a converted model was read, where it is known."""
    found = getattr(model, _CALL, None)
    return found if isinstance(found, Call) else None


def blocks_of(model: nn.Module) -> dict[str, Mapping[str, Any]]:
    """The records of the parts that were converted in this process, by their names."""
    found = getattr(model, _BLOCKS, {})
    return dict(found) if isinstance(found, dict) else {}


def records_in(model: nn.Module) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of blocks in the configs of parts, by their names in the model. Parts share the config of the model that they
    belong to: a record is about the outermost."""
    seen: set[int] = set()
    for name, part in model.named_modules():
        record = getattr(getattr(part, "config", None), "attnc", None)
        if isinstance(record, Mapping) and id(record) not in seen:
            seen.add(id(record))
            inside = f"{name}." if name else ""
            yield from ((f"{inside}{entry['name']}", entry) for entry in record["blocks"])


def note_conversion(
    model: nn.Module,
    planned: Sequence[PlannedPart],
    report: ConversionReport,
    config: ConvertConfig,
    call: Call,
) -> None:
    """Put the report on the model, and the record into the configs that its parts are saved with; earlier conversions of the
    model stay on record."""
    entries = [part_record(model, plan.site, plan.module) for plan in planned]
    before = getattr(model, _REPORT, None)
    if isinstance(before, ConversionReport):
        report = joined_reports(before, report)
    note_parts(model, config.engine, report, entries)
    setattr(model, _CALL, call)
    setattr(model, _BLOCKS, blocks_of(model) | {entry["name"]: entry for entry in entries})


def note_parts(
    model: nn.Module, engine: str, report: ConversionReport, entries: Sequence[Mapping[str, Any]]
) -> None:
    """Every config of a part that can save itself records the blocks inside the outermost part that has it; its method
    `save_pretrained` writes a directory that opens as the converted model alone."""
    noted: dict[int, tuple[Any, dict[str, Any]]] = {}
    for name, part in model.named_modules():
        config: Any = getattr(part, "config", None)
        saves = hasattr(part, "save_pretrained") and hasattr(config, "to_json_string")
        inside = f"{name}." if name else ""
        own = [_inside(inside, entry) for entry in entries if entry["name"].startswith(inside)]
        if not saves or not own or id(config) in noted:
            continue
        new = {entry["name"] for entry in own}
        kept = [entry for entry in _recorded(config, part) if entry["name"] not in new]
        noted[id(config)] = (config, conversion_record(engine, report, [*kept, *own]))
    for config, record in noted.values():
        config.attnc = record
    if noted:
        attach_savers(model, report, engine)
    setattr(model, _REPORT, report)


def conversion_record(
    engine: str, report: ConversionReport, entries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The record of a converted model in its config."""
    record = {"version": VERSION, "engine": engine, "report": report.to_json(), "blocks": list(entries)}
    return {**record, "seal": seal(record)}


def _inside(part: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A block's record with the names that its part of the model uses."""
    tensors = {role: [name.removeprefix(part), found] for role, (name, found) in entry["tensors"].items()}
    runs = {"runs": runs_inside(part, entry["runs"])} if "runs" in entry else {}
    return {**entry, "name": entry["name"].removeprefix(part), "tensors": tensors, **runs}


def _recorded(config: Any, part: nn.Module) -> list[dict[str, Any]]:
    """The blocks on record that are converted in the part; the config may have been another model's."""
    places = [
        name for name, inner in part.named_modules() if isinstance(inner, (Pointwise, GatedBlock, Norm))
    ]
    entries = getattr(config, "attnc", {}).get("blocks", ())
    return [e for e in entries if any(f".{place}".endswith(f".{e['name']}") for place in places)]


def part_record(model: nn.Module, site: Site | PartSite, module: nn.Module) -> dict[str, Any]:
    """The tensors of a converted part by role, [name in the model, SHA-256], how they are used, and what runs. `attnc.check`
    reads a directory by these alone, and the modelling file by what runs. Of a block, the tensors are those of its maps and its
    norm, which neurons use which head, and powers of two."""
    if isinstance(site, NormSite) and isinstance(module, Norm):
        own = {"weight": module.weight, "bias": module.bias, **dict(module.heads.named_buffers())}
        names = {role: f"{site.name}.{'heads.' * (role in QUADRATIC)}{role}" for role in own}
        tensors = {role: (names[role], t) for role, t in own.items() if t is not None}
        about = {**_norm_record(site.norm), "epsilon": module.heads.offset, "most": module.most}
    elif isinstance(site, Site):
        maps = {"first": site.first, "second": site.second} | ({} if site.up is None else {"up": site.up})
        found = {f"{role}.{key}": getattr(m, key) for role, m in maps.items() for key in ("weight", "bias")}
        if site.norm is not None:
            found |= {"norm.weight": site.norm.weight, "norm.bias": site.norm.bias}
        listed = (model.named_parameters, model.named_buffers)
        state = [named for every in listed for named in every(remove_duplicate=False)]
        by_id = {id(tensor): name for name, tensor in reversed(state)}
        tensors = {role: (by_id.get(id(t), role), t) for role, t in found.items() if t is not None}
        for name, t in module.state_dict().items():
            if not t.is_floating_point():
                tensors[name.rpartition(".")[2]] = f"{site.name}.{name}", t
        transposed = [role for role, m in maps.items() if m.transposed]
        about = {"transposed": transposed, "norm": site.norm and _norm_record(site.norm)}
        rows = {role: list(m.rows) for role, m in maps.items() if m.rows is not None}
        about |= ({"rows": rows} if rows else {}) | ({"experts": site.experts} if site.experts else {})
    else:
        tensors, about = {}, {"kind": "activation"}
    digests = {role: [name, _digest(role, tensor)] for role, (name, tensor) in tensors.items()}
    return {"name": site.name, "tensors": digests, **about, "runs": runs_of(model, site, module)}


def _norm_record(norm: NormRead) -> dict[str, Any]:
    one_plus = None if norm.one_plus is None else str(norm.one_plus).removeprefix("torch.")
    about = {"kind": norm.kind, "features": norm.features, "one_plus": one_plus}
    return {**about, "half": True} if norm.half else about


def _digest(role: str, tensor: Tensor) -> str:
    stored = tensor.detach().cpu().resolve_neg()
    return digest(role, (stored.float() if stored.dtype == torch.bfloat16 else stored).numpy())


def why_not_recorded(
    model: nn.Module, site: Site | PartSite, module: nn.Module, entry: Mapping[str, Any]
) -> str | None:
    """Why the numbers of a block in the model are not those of its record, or None. Its engine may be another."""
    now = part_record(model, site, module)
    recorded, present = ({role: found for role, (_, found) in one["tensors"].items()} for one in (entry, now))
    roles = sorted({*recorded, *present})
    changed = [role for role in roles if recorded.get(role) != present.get(role)]
    changed += [key for key in now.keys() - {"name", "runs", "tensors"} if entry.get(key) != now[key]]
    if changed:
        return f"the weights of {site.name} are not those that were converted: {', '.join(changed)} changed"
    return None


def why_changed(model: nn.Module) -> str | None:
    """Why the converted parts of a model do not have the numbers and the code of its report; None if they do. The model is not
    run, and what is no converted part is not looked at: `attnc.verify` reads its operations again."""
    listed = (model.named_parameters, model.named_buffers)
    state = dict(named for every in listed for named in every(remove_duplicate=False))
    for name, entry in (blocks_of(model) or dict(records_in(model))).items():
        try:
            part = model.get_submodule(name)
        except AttributeError:
            return f"it has no part {name}"
        if not isinstance(part, (Pointwise, GatedBlock, Norm)):
            return f"{name} is a {type(part).__name__} now"
        if (reason := part.why_not_certified()) is not None:
            return f"{name}: {reason}"
        known = {place: (role, found) for role, (place, found) in entry["tensors"].items() if place in state}
        changed = [place for place, (role, found) in known.items() if _digest(role, state[place]) != found]
        if changed:
            return f"changed since it was converted: {shown(changed, len(known))}"
        if other := _other_settings(part, entry):
            return f"{name} has other settings, or another engine, than were certified: {', '.join(other)}"
    return None


def _other_settings(part: Pointwise | GatedBlock | Norm, entry: Mapping[str, Any]) -> list[str]:
    """What a converted part runs besides its tensors, where that is not what its record says: bounds are for one engine."""
    pairs = [(key, value, entry["runs"].get(key)) for key, value in executed(part).items()]
    if isinstance(part, Norm):
        pairs += [("epsilon", part.heads.offset, entry["epsilon"]), ("most", part.most, entry["most"])]
    return sorted({key for key, now, known in pairs if now != known})
