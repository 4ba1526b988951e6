"""SelfAttentionNetwork: what `as_self_attention` returns for heads, networks, learners and solvers."""

from __future__ import annotations

import copy
import importlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from attnc.domain import Box, Interval
from attnc.errors import AttncError, FileError, InputError
from attnc.network.altered import CertifiedModule, as_made, why_altered, why_others
from attnc.network.describe import aligned
from attnc.network.literal.steps import (
    LETTERS,
    VALUES,
    Embedding,
    Input,
    Layout,
    SelfAttention,
    SequenceMap,
    Softmax,
    Step,
    parameter,
)
from attnc.network.running import (
    can_look,
    check_domain,
    in_chunks,
    is_traced,
    precise,
)
from attnc.program.step import Numbers
from attnc.records.domains import domain_from_json, domain_to_json
from attnc.records.fields import DAMAGE
from attnc.records.numbers import Array
from attnc.records.record import LiteralRecord, Record, under, write

_CHUNK = 1 << 22  # numbers held at once


@as_made
class SelfAttentionNetwork(CertifiedModule):
    """Layers of plain self-attention over [data tokens; fixed tokens], with W_Q, W_K, W_V, W_O and without a mask.

    With a residual stream (`residual`), every step adds to the sequence, X ← X + step(X). The networks of theorems have none:
    X ← step(X). A step may run several times. Every token and every coordinate has a name (`tokens`, `coordinates`, `layouts`).
    The result is that of the source up to rounding.

    `output` says where the result is read: a register (None: all coordinates), its shape (None: one number for each token), and
    the embedding whose tokens hold it. `limits` bound registers; with strict=True they are checked."""

    fixed: nn.Parameter  # (fixed tokens, D)

    def __init__(
        self,
        form: str,
        inputs: Sequence[Input],
        steps: Sequence[tuple[str, Step]],
        layout: Layout,  # of the sequence before the first step
        output: tuple[str | None, tuple[int, ...] | None, int],
        dtype: str,
        *,
        embeddings: Sequence[Embedding] = (),  # none: the first step reads the rows of the input
        fixed: Array | None = None,
        arrangement: str = "",  # how neurons are laid out, in the form 'two-layer'
        domain: Interval | Box | None = None,
        limits: Mapping[str, float] | None = None,
        strict: bool | None = None,
        source: Record | None = None,
        encoding: float = 0.0,
    ) -> None:
        super().__init__()
        self.form, self.arrangement, self.inputs, self.output = form, arrangement, tuple(inputs), output
        self.domain, self.limits, self.strict, self.first = domain, dict(limits or {}), strict, layout
        distinct = list(dict.fromkeys(step for _, step in steps))
        self.order = tuple((name, distinct.index(step)) for name, step in steps)
        self.embeddings, self.steps = nn.ModuleList(embeddings), nn.ModuleList(distinct)
        self.fixed = parameter(np.zeros((0, 0)) if fixed is None else fixed, dtype)
        self.source = copy.deepcopy(source)  # its module may change later
        self.encoding = encoding
        self.certificate = self.record().certificate

    @property
    def residual(self) -> bool:
        """Whether every step adds to the sequence."""
        return len(self.embeddings) > 0

    @property
    def layers(self) -> list[SelfAttention]:
        """The layers of self-attention."""
        return [step for step in self.steps if isinstance(step, SelfAttention)]

    @property
    def maps(self) -> list[SequenceMap]:
        """The affine maps of the sequence."""
        return [step for step in self.steps if isinstance(step, SequenceMap)]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the steps as they run: "map", "attention", "softmax"."""
        return tuple(step.kind for _, step in self._ordered())

    def step(self, name: str) -> Step:
        """The step of a name."""
        found = [step for known, step in self._ordered() if known == name]
        if not found:
            raise InputError(f"no step {name!r}: there are {', '.join(known for known, _ in self.order)}")
        return found[0]

    @property
    def layouts(self) -> dict[str, Layout]:
        """The names of the sequence before the first step ("input") and after every step."""
        return {"input": self.first} | {name: step.layout for name, step in self._ordered()}

    @property
    def layout(self) -> Layout:
        """The names of the sequence that the first layer of attention reads; with a residual stream, every step reads it."""
        names = [name for name, step in self._ordered() if isinstance(step, SelfAttention)]
        return self.first if self.residual or not names else self.layout_before(names[0])

    def layout_before(self, name: str) -> Layout:
        """The names of the sequence that a step reads."""
        self.step(name)
        before = list(self.layouts)
        return self.layouts[before[before.index(name) - 1]]

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The names of the coordinates that the first layer of attention reads."""
        return self.layout.coordinates

    @property
    def tokens(self) -> tuple[str, ...]:
        """The names of the tokens that the first layer of attention reads; without those that depend on the inputs."""
        return self.layout.tokens

    def token_names(self, *inputs: Tensor) -> tuple[str, ...]:
        """The names of the tokens that depend on the inputs, such as "example 0": those of every embedding."""
        blocks = zip(cast(Sequence[Embedding], self.embeddings), self._blocks(inputs), strict=False)
        return tuple(f"{embedding.name} {i}" for embedding, block in blocks for i in range(block.shape[-2]))

    @precise
    def embed(self, *inputs: Tensor) -> Tensor:
        """(…, tokens, D): the sequence before the first step."""
        blocks = self._blocks(inputs)
        if not self.residual:
            return blocks[0]
        return torch.cat([*blocks, self.fixed.expand(*blocks[0].shape[:-2], *self.fixed.shape)], -2)

    @precise
    def stream(self, *inputs: Tensor, after: str | None = None, strict: bool | None = None) -> Tensor:
        """(…, tokens, D): the sequence after the step of this name; by default after the last one."""
        if after is not None:
            self.step(after)
        x, strict = self.embed(*inputs), self.strict if strict is None else strict
        self._check_values(inputs, strict)
        heads = max([len(layer.heads) for layer in self.layers], default=1)
        tokens = max(x.shape[-2], *(len(layout.tokens) for layout in self.layouts.values()))
        width = max(layout.width for layout in self.layouts.values())
        rows = 1 if is_traced() else _CHUNK // (heads * tokens * (tokens + width))
        out = in_chunks(lambda part: self._run(part, after, strict), rows, x.reshape(-1, *x.shape[-2:]))
        return out.reshape(*x.shape[:-2], *out.shape[1:])

    @precise
    def forward(self, *inputs: Tensor, strict: bool | None = None) -> Tensor:
        """The outputs for inputs of the shapes of the source. `strict` overrides the network's own for this call."""
        self._blocks(inputs, optional=0)
        x, register = self.stream(*inputs, strict=strict), self.output[0]
        return self.result(x if register is None else x[..., self.layout[register]], *inputs)

    def result(self, held: Tensor, *inputs: Tensor) -> Tensor:
        """The outputs for inputs, of the output register of all tokens, held (…, tokens, width), after the last step."""
        blocks, (_, shape, embedding) = self._blocks(inputs, optional=0), self.output
        shape = blocks[embedding].shape[-2:-1] if shape is None else shape
        first = sum(block.shape[-2] for block in blocks[:embedding])
        out = held[..., first : first + math.prod(shape) // held.shape[-1], :]
        return out.reshape(*held.shape[:-2], *shape)

    def to_transformer_lens(self, n_ctx: int | None = None) -> Any:
        """The network as a TransformerLens model (extra `transformer-lens`): a `LensModel`, whose `bridge` is a
        `TransformerBridge` of attention alone. It was compared with this network, and an error is raised if they differ by more
        than rounding explains. `n_ctx` is the largest number of tokens, for a learner 512 by default.

        `attnc.exporters.transformer_lens.LensModel` says how to run it, how to hook it and how to read it."""
        exporter = importlib.import_module("attnc.exporters.transformer_lens")
        return exporter.lens_model(self, n_ctx)

    @precise
    def attention(self, *inputs: Tensor) -> dict[str, Tensor]:
        """By step, (…, heads, tokens, tokens): the weights of every token over every token; of a softmax over columns, its
        result."""
        x, found = self.embed(*inputs), dict[str, Tensor]()
        for name, before, step, after in self._trace(x.reshape(-1, *x.shape[-2:])):
            if not isinstance(step, SequenceMap):
                found[name] = step.weights(before) if isinstance(step, SelfAttention) else after
        return {name: w.reshape(*x.shape[:-2], *w.shape[1:]) for name, w in found.items()}

    @precise
    def sequences(self, *inputs: Tensor) -> dict[str, Tensor]:
        """By step, (…, tokens, coordinates): the sequence after it."""
        x = self.embed(*inputs)
        runs = self._trace(x.reshape(-1, *x.shape[-2:]))
        return {name: after.reshape(*x.shape[:-2], *after.shape[1:]) for name, _, _, after in runs}

    def read(self, sequence: Tensor, register: str, of: str | None = None) -> Tensor:
        """(tokens, width): a register of the stream; with `of`, only in the tokens in which the register `of` is 1.

        >>> import attnc
        >>> literal = attnc.head("tanh", domain=(-8, 8), eps=1e-5).as_self_attention(2)
        >>> literal.read(literal.embed(torch.tensor([0.5, 1.0])), "x", of="data").tolist()
        [[0.5], [1.0]]
        """
        if of is not None:
            sequence = sequence[sequence[..., self.layout[of].start] == 1]
        return sequence[..., self.layout[register]]

    def record(self) -> LiteralRecord:
        """Structure, matrices and source, for files and for the checker."""
        steps = [cast(Step, step) for step in self.steps]
        plain = ("form", "arrangement", "output", "order", "limits", "strict")
        structure = {name: getattr(self, name) for name in plain} | {
            "inputs": [i.to_json() for i in self.inputs],
            "layout": self.first.to_json(),
            "embeddings": [{"name": e.name, "reads": e.reads} for e in self.embeddings],
            "steps": [{"kind": s.kind, "layout": s.layout.to_json(), **s.settings()} for s in steps],
            "domain": domain_to_json(self.domain),
        }
        tensors = {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.state_dict().items()}
        dtype = str(self.fixed.dtype).removeprefix("torch.")
        return LiteralRecord(json.loads(json.dumps(structure)), tensors, dtype, self.source, self.encoding)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the matrices, the names and the source with its certificate to a safetensors file; `attnc.load` reads it."""
        write(path, self.record())

    def why_not_certified(self) -> str | None:
        """None if the certificate applies to the module as it is now, else the reason."""
        if (altered := why_altered(self)) is not None:
            return altered
        try:
            now = self.record().certificate
        except (AttncError, *DAMAGE) as problem:
            return f"it was changed: {problem}"
        changed = "the certificate itself changed" if now != self.certificate else None
        return why_others(now.digests, self.certificate) or changed

    def describe(self) -> str:
        """A line for every step: its kind, its name and the shapes of its matrices. A step that repeats has one line."""
        arrangement = f", layout {self.arrangement!r}" if self.arrangement else ""
        shapes = ", ".join(f"{i.name} {i.sizes}" for i in self.inputs)
        first = {i: name for name, i in reversed(self.order)}
        steps = [(i, name, cast(Step, self.steps[i])) for i, name in sorted(first.items())]
        lines = aligned([(f"{i + 1}", step.kind, name, step.shapes) for i, name, step in steps])
        repeated = f", {len(self.order)} steps" if len(self.order) > len(lines) else ""
        title = f"form {self.form!r}{arrangement}: {shapes}{repeated}"
        stream = [f"{len(self.tokens)} tokens; coordinates: {self.layout!r}"] if self.residual else []
        return "\n".join([title, *stream, *lines])

    def _repr_html_(self) -> str:
        from attnc.network.cards import literal_card

        return literal_card(self)

    def __repr__(self) -> str:
        return f"SelfAttentionNetwork, {self.describe()}"

    def _ordered(self) -> list[tuple[str, Step]]:
        return [(name, cast(Step, self.steps[i])) for name, i in self.order]

    def _trace(self, x: Tensor) -> Iterator[tuple[str, Tensor, Step, Tensor]]:
        """Every step in order: its name, the sequence before it, the step, the sequence after it."""
        for name, step in self._ordered():
            after = x + step(x) if self.residual else step(x)
            yield name, x, step, after
            x = after

    def _run(self, x: Tensor, last: str | None, strict: bool | None) -> Tensor:
        for name, _, _, after in self._trace(x):
            x = after
            for register, limit in self.limits.items() if strict and can_look(x) else ():
                _check_size(f"|{register}|", x[..., self.layout[register]], limit)
            if name == last:
                break
        return x

    def _blocks(self, inputs: Sequence[Tensor], optional: int = 1) -> list[Tensor]:
        """(…, tokens, D): what each embedding makes of the inputs; without embeddings, the rows of the input. Of several inputs,
        the last may be missing."""
        if not max(1, len(self.inputs) - optional) <= len(inputs) <= len(self.inputs):
            raise InputError(f"give {', '.join(i.name for i in self.inputs)}: got {len(inputs)} inputs")
        rows = []
        for spec, x in zip(self.inputs, inputs, strict=False):
            rows.append(spec.rows(x, self.fixed.dtype))
        found = [] if self.residual else rows
        for embedding in cast(Sequence[Embedding], self.embeddings):
            if max(embedding.reads) < len(rows):
                given = [rows[i] for i in embedding.reads]
                for i, x in zip(embedding.reads, given, strict=True):
                    if x.shape[:-1] != (*rows[0].shape[:-2], given[0].shape[-2]) or not x.shape[-2]:
                        wanted = f"{self.inputs[embedding.reads[0]].name} has {given[0].shape[-2]} rows"
                        raise InputError(f"{self.inputs[i].name}: {tuple(inputs[i].shape)}, but {wanted}")
                found.append(embedding(torch.cat(given, -1)))
        return found

    def _check_values(self, inputs: Sequence[Tensor], strict: bool | None) -> None:
        check_domain(self, inputs[0], strict, self.domain)
        for spec, x in zip(self.inputs, inputs, strict=False):
            if strict and can_look(x) and x.numel():
                _check_size(spec.name, x, math.inf if spec.limit is None else spec.limit)
                if not bool(VALUES[spec.values](x).all()):
                    raise InputError(f"{spec.name} must hold {spec.values}")


def _check_size(name: str, x: Tensor, limit: float) -> None:
    size = float(x.abs().max())
    if not size <= limit:  # so is NaN
        raise InputError(
            f"{name} reaches {size:.6g}, the limit is {limit:g}: scale the data, or use a larger radius"
        )


def literal_from_record(record: LiteralRecord) -> SelfAttentionNetwork:
    """The network that a record describes."""
    s, t = record.structure, record.tensors
    try:
        inputs = [Input(**{**i, "shape": tuple(i["shape"])}) for i in s["inputs"]]
        steps = [_step(step, under(f"steps.{k}.", t), record.dtype) for k, step in enumerate(s["steps"])]
        embeddings = [
            Embedding(e["name"], e["reads"], t[f"embeddings.{k}.W"], t[f"embeddings.{k}.start"], record.dtype)
            for k, e in enumerate(s["embeddings"])
        ]
        register, shape, embedding = s["output"]
        literal = SelfAttentionNetwork(
            s["form"], inputs, [(name, steps[i]) for name, i in s["order"]], Layout(**s["layout"]),
            (register, None if shape is None else tuple(shape), embedding), record.dtype, embeddings=embeddings,
            fixed=t["fixed"], arrangement=s["arrangement"], domain=cast(Any, domain_from_json(s["domain"])),
            limits=s["limits"], strict=s["strict"], source=record.source, encoding=record.encoding,
        )  # fmt: skip
    except DAMAGE as problem:
        raise FileError(f"the literal network is not valid: {type(problem).__name__}: {problem}") from problem
    if literal.record().certificate.digests != record.certificate.digests:
        raise FileError("the literal network is not valid: its parts do not fit together")
    return literal


def _step(s: Mapping[str, Any], t: Mapping[str, Numbers], dtype: str) -> Step:
    layout = Layout(**s["layout"])
    if s["kind"] == "attention":
        return SelfAttention({name: t[name] for name in LETTERS}, s["shared"], s["heads"], layout, dtype)
    if s["kind"] == "map":
        at = t["rows"].astype(np.int64), t["columns"].astype(np.int64)
        shapes = tuple(s["in_shape"]), tuple(s["out_shape"])
        return SequenceMap(t["core"], t["bias"], shapes, at, layout, dtype)
    return Softmax(s["axis"], layout)
