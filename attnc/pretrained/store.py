"""What a converted model carries: its report, and in its config what is needed to read it back from its directory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnc import functions
from attnc.errors import CertificateError, FileError, InputError
from attnc.frontends.transformers import Call, Site
from attnc.network.gated_block import GatedBlock
from attnc.network.head import Head
from attnc.network.pointwise import Pointwise
from attnc.network.product import Product
from attnc.pretrained.blocks import PlannedBlock
from attnc.pretrained.config import VERSION, ConvertConfig
from attnc.pretrained.report import ConversionReport, joined_reports
from attnc.records.certificate import Certificate
from attnc.records.domains import domain_to_json
from attnc.records.fields import seal
from attnc.records.layers import Index
from attnc.records.numbers import TENSORS, HeadNumbers
from attnc.records.numbers import digest as tensor_digest

_REPORT, _CALL = "_attnc_report", "_attnc_call"


def report_of(model: nn.Module) -> ConversionReport:
    """The report of a model that was converted, or read back by `attnc.from_pretrained`, or of the part of it that was.

    >>> report_of(nn.Linear(1, 1))
    Traceback (most recent call last):
    attnc.errors.InputError: Linear was not converted: call attnc.convert_(model, approximation=…)
    """
    for part in model.modules():
        found = getattr(part, _REPORT, None)
        if isinstance(found, ConversionReport):
            return found
    raise InputError(f"{type(model).__name__} was not converted: call attnc.convert_(model, approximation=…)")


def call_of(model: nn.Module) -> Call | None:
    """The call by which a converted model was read, where it is known."""
    found = getattr(model, _CALL, None)
    return found if isinstance(found, Call) else None


def note_conversion(
    model: nn.Module,
    planned: Sequence[PlannedBlock],
    report: ConversionReport,
    config: ConvertConfig,
    call: Call,
) -> None:
    """Put the report on the model, and the record into the configs that its parts are saved with; what was converted before
    stays on record."""
    blocks = {plan.site.name: {**record_of(plan), **stated_tensors(model, plan)} for plan in planned}
    before = getattr(model, _REPORT, None)
    if isinstance(before, ConversionReport):
        report = joined_reports(before, report)
    note_parts(model, config.engine, report, blocks)
    setattr(model, _CALL, call)


def note_parts(
    model: nn.Module, engine: str, report: ConversionReport, blocks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Every config of a part that can save itself records the blocks inside the outermost part that has it."""
    noted: dict[int, tuple[Any, dict[str, Any]]] = {}
    for name, part in model.named_modules():
        config: Any = getattr(part, "config", None)
        if (
            not hasattr(part, "save_pretrained")
            or not hasattr(config, "to_json_string")
            or id(config) in noted
        ):
            continue
        inside = f"{name}." if name else ""
        own = [_inside(inside, n, e) for n, e in blocks.items() if n.startswith(inside)]
        if own:
            new = {entry["name"] for entry in own}
            kept = [e for e in _recorded(config, part) if e["name"] not in new]
            record = {
                "version": VERSION,
                "engine": engine,
                "report": report.to_json(),
                "blocks": [*kept, *own],
            }
            noted[id(config)] = (config, {**record, "seal": seal(record)})
    for config, record in noted.values():
        config.attnc = record
    setattr(model, _REPORT, report)


def _inside(part: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A block's record with the names that its part of the model uses."""
    tensors = {role: [n.removeprefix(part), d] for role, (n, d) in entry["tensors"].items()}
    return {**entry, "name": name.removeprefix(part), "tensors": tensors}


def _recorded(config: Any, part: nn.Module) -> list[dict[str, Any]]:
    """The blocks on record that stand converted in the part; a config may have been another model's."""
    places = [name for name, inner in part.named_modules() if isinstance(inner, (Pointwise, GatedBlock))]
    entries = getattr(config, "attnc", {}).get("blocks", ())
    return [e for e in entries if any(f".{place}".endswith(f".{e['name']}") for place in places)]


def record_of(plan: PlannedBlock) -> dict[str, Any]:
    """A block: the heads of its groups with their certificates, and digests of the numbers the bound is about: those of the
    original block, and which neurons use which head and which powers of two."""
    module = plan.module
    activation = module.activation if isinstance(module, GatedBlock) else module
    square = module.product.square if isinstance(module, GatedBlock) else None
    return {
        "name": plan.site.name,
        "activation": [_head(head) for _, head in activation.groups],
        "square": None if square is None else [_head(head) for _, head in square.groups],
        "digest": digest(plan.site, plan.site.activation),
        "wiring": wiring(module),
    }


def stated_tensors(model: nn.Module, plan: PlannedBlock) -> dict[str, Any]:
    """The tensors of a block by role, [name in the model, SHA-256], and how its maps and its norm use them: `attnc.check` reads
    a directory by these alone."""
    site, norm = plan.site, plan.site.norm
    maps = {"first": site.first, "second": site.second} | ({} if site.up is None else {"up": site.up})
    found = {f"{role}.{key}": getattr(m, key) for role, m in maps.items() for key in ("weight", "bias")}
    found |= {} if norm is None else {"norm.weight": norm.weight, "norm.bias": norm.bias}
    state = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    names = {id(tensor): name for name, tensor in reversed(state)}
    tensors = {role: (names.get(id(t), role), t) for role, t in found.items() if t is not None}
    for name, t in plan.module.state_dict().items():
        if not t.is_floating_point():
            tensors[name.rpartition(".")[2]] = f"{site.name}.{name}", t
    one_plus = None if norm is None or norm.one_plus is None else str(norm.one_plus).removeprefix("torch.")
    return {
        "tensors": {
            role: [name, tensor_digest(role, t.detach().cpu().numpy())] for role, (name, t) in tensors.items()
        },
        "transposed": [role for role, m in maps.items() if m.transposed],
        "norm": norm and {"kind": norm.kind, "features": norm.features, "one_plus": one_plus},
    }


def wiring(module: Pointwise | GatedBlock) -> str:
    """SHA-256 of what a converted block stores besides heads and maps: which neurons are whose, scales and radii."""
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not tensor.is_floating_point():
            found.update(f"{name} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().to(torch.int64).numpy().tobytes())
    return found.hexdigest()


def _head(head: Head) -> dict[str, Any]:
    assert head.certificate.proved
    return {"design": head.design, "certificate": head.certificate.to_json()}


def digest(site: Site, activation: str) -> str:
    """SHA-256 of the program of a block and of its domain behind a norm."""
    body = {
        "program": site.program(functions.get(activation)).digest(),
        "domain": domain_to_json(site.domain()),
    }
    return seal(body)


def rebuild(
    site: Site,
    entry: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    engine: str,
    strict: bool | None = None,
) -> nn.Module:
    """The module of a block from its record and the tensors of its name."""
    if digest(site, site.activation) != entry["digest"]:
        raise CertificateError(
            f"the weights of {site.name} are not those that were converted: convert the original model anew"
        )
    own = {name[len(site.name) + 1 :]: t for name, t in tensors.items() if name.startswith(f"{site.name}.")}
    made = (
        _gate(site, entry, own, engine)
        if site.gated
        else Pointwise(_groups(site.name, "", entry["activation"], own), engine)
    )
    if wiring(made) != entry["wiring"]:
        raise CertificateError(
            f"{site.name}: what says which neurons use which head was changed: convert the original model anew"
        )
    made.strict = strict
    return made


def _gate(site: Site, entry: Mapping[str, Any], own: Mapping[str, Tensor], engine: str) -> GatedBlock:
    ((_, square),) = _groups(site.name, "product.square.", entry["square"], own)
    scale, radius = (_tensor(site.name, own, f"product.{name}").numpy() for name in ("scale", "radius"))
    activation = Pointwise(_groups(site.name, "activation.", entry["activation"], own), engine)
    maps = {m.attribute: m.module for m in site.maps()}
    return GatedBlock(maps, activation, Product(square, scale, radius, engine))


def _groups(
    where: str, part: str, heads: Sequence[Mapping[str, Any]], own: Mapping[str, Tensor]
) -> list[tuple[Index | None, Head]]:
    """The heads of a part of a block, with their neurons."""
    groups: list[tuple[Index | None, Head]] = []
    for g, record in enumerate(heads):
        certificate = Certificate.from_json(record["certificate"])
        arrays = {name: _tensor(where, own, f"{part}{g}.{name}").double().numpy() for name in TENSORS}
        head = Head(HeadNumbers(**arrays, dtype=certificate.dtype), str(record["design"]), certificate)
        reason = head.why_not_certified()
        if reason is not None:
            raise CertificateError(f"{where}.{part}{g}: {reason}: convert the original model again")
        neurons = _tensor(where, own, f"{part}neurons_{g}").numpy() if len(heads) > 1 else None
        groups.append((neurons, head))
    return groups


def _tensor(where: str, own: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in own:
        raise FileError(
            f"the tensor {where}.{name} is missing: the directory is incomplete, convert the model anew"
        )
    return own[name]
