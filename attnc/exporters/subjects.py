"""What is exported: a module that takes and returns plain tensors, its certificate, and inputs inside its domain."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnc.arguments import checked_engine
from attnc.check.literal import check_literal
from attnc.domain import Ball, Box, Interval
from attnc.errors import AttncError, CertificateError, InputError, Problem, UnsupportedError
from attnc.exporters.box_inputs import in_box
from attnc.exporters.model_inputs import (
    example_of,
    exported_report,
    masks_missing,
    tensors_of,
    unmasked_note,
    varied,
    with_masks,
)
from attnc.frontends.transformers import Call, example_call, read_sites
from attnc.incontext.base import InContext
from attnc.network.altered import why_changed
from attnc.network.engines import CERTIFIED
from attnc.network.head import Head
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.network import Network
from attnc.network.norm import Norm, QuadraticHead
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.network.running import FULL, PreciseModule
from attnc.network.token_sequences import sequences_of
from attnc.network.tokens import TokenNetwork
from attnc.pretrained.store import call_of
from attnc.pretrained.verify import why_not_applicable
from attnc.program.tokens import Value
from attnc.records.certificate import Certificate, Status
from attnc.records.tokens import program_to_json

Inputs = tuple[Tensor, ...]
Axes = dict[int, str]
ENGINES = ("softmax", "closed-form")
SIZES = (1, 7, 64)  # of the batches on which a file is compared


class Called(nn.Module):
    """A module as a function from tensors to a list of tensors."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.call = module, call
        self.training = module.training

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        return list(tensors_of(self.call(self.module, *tensors)).values())


@dataclass(frozen=True, eq=False)
class Subject:
    """`samples(k, free)` are k inputs inside the domain, or a context of k + 1 examples; `free` names the axes of any length."""

    called: Called
    certificate: Certificate
    names: tuple[str, ...]  # of the inputs
    outputs: tuple[str, ...]
    axes: tuple[Axes, ...]  # the axes of any length, by input
    samples: Callable[[int, Collection[str]], Inputs]
    rounds: bool = False  # whether `certificate.rounding` bounds the rounding of each output
    running: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)  # with the chosen engine
    further: Sequence[Inputs] = ()  # more inputs on which a file is compared
    decides: bool = False  # whether the place of the largest output is what counts: of logits
    about: Mapping[str, Any] = field(default_factory=dict)  # for readers of the file, as JSON
    masks: tuple[str, ...] = ()  # attention masks that were added to the inputs
    unmasked: tuple[str, ...] = ()  # attention masks that the module accepts and the file does not

    @property
    def carried(self) -> Certificate | None:
        """The certificate that the file carries."""
        module = self.called.module
        if isinstance(module, SelfAttentionNetwork) and module.source is None:
            return None
        return self.certificate

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the floating-point numbers."""
        tensors = (*self.called.parameters(), *self.called.buffers())
        found = {t.dtype for t in tensors if t.is_floating_point()}
        if len(found) != 1 or not found <= set(FULL):
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in found)) or "none"
            raise InputError(
                f"the numbers are {names}: export a module of float32 or float64, not a mix of them"
            )
        return found.pop()


def subject_of(x: object, engine: str, inputs: Any, masks: bool = True) -> Subject:
    """What is exported for each kind of module. Its certificate must apply to it as it is now. With `masks`, a model gets its
    attention masks as inputs, unless `inputs` are given."""
    if not isinstance(x, nn.Module):
        raise InputError(
            "export takes a head, a network, a token network, a learner, a literal form or a converted model: got "
            f"{type(x).__name__}"
        )
    engine = checked_engine(engine, ENGINES)
    for part in x.modules():
        if isinstance(part, PreciseModule) and part._cast_to is not None:
            raise InputError(f"the module was cast to {part._cast_to}: export it in float32 or float64")
    make = next((make for kind, make in _KINDS.items() if isinstance(x, kind)), None)
    if make is None:
        return _model(x, engine, inputs, masks)
    if inputs is not None:
        raise InputError(f"inputs are those of a converted model: leave them out for a {type(x).__name__}")
    if engine != "softmax" and not isinstance(x, Head):
        checked_engine(engine, ("softmax",))
    return make(x, engine)


def _head(head: Head, engine: str) -> Subject:
    _check(head)
    interval = head.domain or Interval(-1.0, 1.0)
    if engine != "softmax":
        head.run(
            torch.zeros(1, dtype=head.key.dtype) + interval.middle, engine, strict=False
        )  # raises, or derives its window
    call = partial(_run_head, engine=engine)
    samples = partial(in_box, Box(interval.lo, interval.hi, (1,)), (), head.key.dtype)
    rounds = engine == "softmax" and head.certificate.proved
    return Subject(Called(head, call), head.certificate, ("s",), ("y",), ({0: "batch"},), samples, rounds)


def _run_head(head: Head, s: Tensor, engine: str) -> Tensor:
    return head.run(s, engine, strict=False)


def _quadratic(head: QuadraticHead, engine: str) -> Subject:
    _check(head)
    domain = head.certificate.holds_for
    side = domain.radius / math.sqrt(domain.features) if isinstance(domain, Ball) else 1.0
    samples = partial(in_box, Box(-side, side, (head.dim,)), (head.dim,), head.slope.dtype)
    return Subject(Called(head, _plainly), head.certificate, ("z",), ("y",), ({0: "batch"},), samples)


def _network(network: Network, engine: str) -> Subject:
    _check(network)
    if network.engine not in CERTIFIED:
        raise InputError(f"the network runs engine={network.engine!r}: set net.engine='softmax'")
    known = network.certificate
    shape = network.program.shape
    box = network.domain if known.status is not Status.UNKNOWN else Box(-1, 1, shape)
    samples = partial(in_box, box, shape, next(network.parameters()).dtype)
    running = partial(_with_engine, [network], engine)
    return Subject(
        Called(network, _plainly), known, ("x",), ("y",), ({0: "batch"},), samples, known.proved, running
    )


def _tokens(network: TokenNetwork, engine: str) -> Subject:
    """Logits of token ids (batch, positions), for sequences of the given lengths (batch,)."""
    _check(network)
    size, most, program = len(network.vocabulary), network.program.length, network.program
    any_length = (
        most > 2
    )  # torch.export takes lengths from 2 on that are not the longest for examples of any length
    axes: tuple[Axes, ...] = ({0: "batch"} | ({1: "positions"} if any_length else {}), {0: "batch"})

    def samples(count: int, free: Collection[str]) -> Inputs:
        """The longest sequences, and shorter ones for the batch that is traced; all lengths occur."""
        n = min(3, most - 1) if any_length and count == SIZES[1] else most
        source = torch.Generator().manual_seed(count)
        ids = torch.randint(0, size, (count, n), generator=source)
        return ids, n - torch.arange(count) % n

    further = []
    for ids in sequences_of(network):
        lengths = torch.full((ids.shape[0],), ids.shape[1])
        further.append((ids if any_length else nn.functional.pad(ids, (0, most - ids.shape[1])), lengths))
    about = {
        "vocabulary": network.vocabulary, "outputs": [_listed(value) for value in network.outputs], "length": most,
        "causal": program.causal, "program": program_to_json(program),
    }  # fmt: skip
    called, names = Called(network, _run_tokens), ("ids", "lengths")
    more: dict[str, Any] = {"further": further, "decides": True, "about": about}
    return Subject(called, network.certificate, names, ("logits",), axes, samples, **more)


def _run_tokens(network: TokenNetwork, ids: Tensor, lengths: Tensor) -> Tensor:
    logits: Tensor = network(ids, lengths)
    return logits


def _listed(value: Value) -> Any:
    """A fraction as the list of its numerator and denominator."""
    return [value.numerator, value.denominator] if isinstance(value, Fraction) else value


def _literal(literal: SelfAttentionNetwork, engine: str) -> Subject:
    _check(literal)
    if literal.source is not None and literal.source.certificate.proved:
        verdict = check_literal(literal.record())
        if verdict.status is not Status.PROVED:
            raise CertificateError(_changed(verdict.reason))
    axes: list[Axes] = []
    for spec in literal.inputs:
        own = {i + 1: f"rows_of_{spec.name.partition('_')[0]}" for i, n in enumerate(spec.shape) if n is None}
        axes.append({0: "batch"} | own)

    def samples(count: int, free: Collection[str]) -> Inputs:
        source, found = torch.Generator().manual_seed(count), []
        rows = dict(
            zip(dict.fromkeys(name for own in axes for name in own.values()), (count, 5, 3), strict=False)
        )
        for spec, own in zip(literal.inputs, axes, strict=True):
            sizes = (rows["batch"], *(n or rows[own[i + 1]] for i, n in enumerate(spec.shape)))
            lo, hi = _ends(literal.domain, spec.limit, len(literal.inputs))
            x = torch.rand(sizes, generator=source, dtype=torch.float64) * (hi - lo) + lo
            x = x if spec.values == "real numbers" else (x > (lo + hi) / 2).double()
            found.append(x.to(literal.fixed.dtype) if spec.ids is None else x.round().long())
        return tuple(found)

    names = tuple(spec.name for spec in literal.inputs)
    return Subject(Called(literal, _loosely), literal.certificate, names, ("y",), tuple(axes), samples)


def _ends(domain: object, limit: float | None, inputs: int) -> tuple[Tensor, Tensor]:
    """The ends of the numbers of an input. Those of a context stay far inside the radius, so that w stays inside too."""
    if isinstance(domain, Box):
        return torch.tensor(domain.lo), torch.tensor(domain.hi)
    if isinstance(domain, Interval):
        return torch.tensor(domain.lo), torch.tensor(domain.hi)
    reach = 1.0 if limit is None else limit / (4 if inputs > 1 else 1)
    return torch.tensor(-reach), torch.tensor(reach)


def _learner(learner: InContext, engine: str) -> Subject:
    if (reason := learner.why_not_certified()) is not None and learner.certificate.proved:
        raise CertificateError(_changed(reason))
    names = ("context_x", "context_y", "query_x")
    axes: tuple[Axes, ...] = ({0: "examples"}, {0: "examples"}, {0: "queries"})
    samples = partial(_context, learner)
    return Subject(Called(learner, _loosely), learner.certificate, names, ("prediction",), axes, samples)


def _context(learner: InContext, count: int, free: Collection[str]) -> Inputs:
    """A context of count + 1 examples that stays within the radius, and three queries. Labels of 0 and 1 fit every loss."""
    source, dtype, radius = (
        torch.Generator().manual_seed(count),
        learner.reading.key.dtype,
        learner.settings.radius,
    )
    x, query = (
        torch.rand(n, learner.features, generator=source, dtype=torch.float64) * 2 - 1 for n in (count + 1, 3)
    )
    y = (x.sum(1) > 0).double()
    for k in range(12):
        reach, size = radius.x * 2.0**-k, min(1.0, radius.y)
        found = (x * reach).to(dtype), (y * size).to(dtype), (query * reach).to(dtype)
        try:
            learner(*found, strict=True)
        except InputError:
            continue
        return found
    raise InputError("no context was found on which the learner stays within its radius: use a larger radius")


def _plainly(module: nn.Module, x: Tensor) -> Any:
    return module(x, strict=False)


def _loosely(module: nn.Module, *tensors: Tensor) -> Any:
    return module(*tensors, strict=False)


def _model(model: nn.Module, engine: str, inputs: Any, masks: bool) -> Subject:
    """A converted model, called as it was when it was read, with attention masks."""
    report = exported_report(model)
    if model.training:
        raise InputError(f"{type(model).__name__} is in training mode: call model.eval() before exporting it")
    call = _call(inputs) if inputs is not None else call_of(model) or example_call(model)
    if (reason := why_not_applicable(model)) is not None:
        raise CertificateError(_changed(reason))
    if engine == "softmax":
        _check_parts(model, call)
    unmasked = masks_missing(model, call)
    added = unmasked if masks and inputs is None else ()
    running = partial(_with_engine, _converted(model), engine)
    with running(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if added:
            try:
                example = example_of(with_masks(model, call))
                made = tensors_of(example.run(model, *example.tensors))
            except Exception:  # of any kind: the model does not run with masks
                added = ()
        if not added:
            example = example_of(call)
            made = tensors_of(example.run(model, *example.tensors))
    if not made:
        raise InputError(f"{type(model).__name__} returns no tensors for {call}: give other inputs")
    unmasked = () if added else unmasked
    return Subject(
        Called(model, example.run), report.certificate, example.names, tuple(made), example.axes,
        partial(varied, model, example), False, running, masks=added, unmasked=unmasked,
        about={"note": unmasked_note(unmasked)} if unmasked else {},
    )  # fmt: skip


def _check_parts(model: nn.Module, call: Call) -> None:
    """Raise UnsupportedError if parts of the model are not attention, before its graph is traced. What cannot be read here is
    left to the check of the graph."""
    try:
        left = [site for site in read_sites(model, call) if not site.converted]
    except AttncError:
        return
    if left:
        names: dict[str, list[str]] = {}
        for site in left:
            names.setdefault(site.part, []).append(site.name)
        more = {part: f" (and {len(own) - 1} more)" * (len(own) > 1) for part, own in names.items()}
        found = [Problem(own[0] + more[part], f"{part}, not converted") for part, own in names.items()]
        raise UnsupportedError(IMPURE, found)


IMPURE = (
    "with engine='softmax', softmax must be the only nonlinear operation of the file. Convert the model with parts='all' "
    "(`attnc convert --parts all`), or export it with engine='closed-form' (`--engine closed-form`). Others are"
)


def _call(inputs: Any) -> Call:
    if isinstance(inputs, Mapping):
        return Call((), dict(inputs))
    found = (inputs,) if isinstance(inputs, Tensor) else inputs
    if not isinstance(found, Sequence) or not any(isinstance(x, Tensor) for x in found):
        raise InputError(
            f"inputs are a tensor, a tuple or a mapping of arguments: got {type(inputs).__name__}"
        )
    return Call(tuple(found), {})


def _converted(model: nn.Module) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, (Pointwise, Norm, GatedBlock))]


@contextmanager
def _with_engine(parts: Sequence[Any], engine: str) -> Iterator[None]:
    before = [part.engine for part in parts]
    try:
        for part in parts:
            part.engine = engine
        yield
    finally:
        for part, own in zip(parts, before, strict=True):
            part.engine = own


def _check(module: Any) -> None:
    """The certificate must be about the module as it is now; an error that was only measured may be exported too."""
    ask = getattr(module, "why_changed", module.why_not_certified)
    certificate: Certificate = module.certificate
    unknown = certificate.status is Status.UNKNOWN and certificate.subject != "literal"
    if certificate.status is Status.MEASURED and certificate.subject == "head":
        ask = partial(why_changed, module, certificate)
    if not unknown and (reason := ask()) is not None:
        raise CertificateError(_changed(reason))


def _changed(reason: str) -> str:
    return (
        f"the certificate would not apply to the exported file: {reason}. Build the module again, or load it"
    )


_KINDS = cast(
    "dict[type[nn.Module], Callable[[Any, str], Subject]]",
    {
        Head: _head,
        QuadraticHead: _quadratic,
        Network: _network,
        SelfAttentionNetwork: _literal,
        TokenNetwork: _tokens,
        InContext: _learner,
    },
)
