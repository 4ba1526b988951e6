"""Attention-only transformers from tokens to tokens."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from attnc.arithmetic import loose_products
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.network.altered import CertifiedModule, as_made, warn_if_changed, why_changed
from attnc.network.running import PreciseModule, can_look, in_chunks, precise
from attnc.network.token_effects import effects_of
from attnc.network.token_sequences import COMPARED
from attnc.network.token_text import ByHead, description, layout_of
from attnc.program.tokens import TokenProgram, Value
from attnc.records.certificate import INTEGERS, Certificate, Status
from attnc.records.fields import DAMAGE, seal
from attnc.records.record import Record, write
from attnc.records.tokens import MATRICES, HeadRole, TokenLayer, TokenNumbers, program_to_json, rebuilt

_CHUNK = 1 << 22  # attention weights held at once


@as_made
class TokenPattern(PreciseModule):
    """scores ↦ softmax(scores): forward hooks see the scores (-inf where a key is masked) as the input and the attention pattern
    as the output, both (batch, heads, queries, keys), BOS first. A hook that returns a tensor replaces the pattern."""

    def forward(self, scores: Tensor) -> Tensor:
        """The attention weights."""
        return torch.softmax(scores, -1)


@as_made
class TokenAttention(PreciseModule):
    """One layer: x + Σ_h softmax(xQ_h (xK_h)ᵀ) xV_h O_h, without scaling, biases or norms.

    `query` and `key` have the shape (heads, d_model, d_head), `value` (heads, d_model, d_value) and `output` (heads, d_value,
    d_model). `pattern` is the module of the softmax, for hooks."""

    def __init__(self, layer: TokenLayer, dtype: torch.dtype) -> None:
        super().__init__()
        for name in MATRICES:
            tensor = torch.from_numpy(np.array(getattr(layer, name))).to(dtype)
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        self.roles: tuple[HeadRole, ...] = layer.roles
        self.pattern = TokenPattern()

    def weights(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        """The attention weights (batch, heads, queries, keys); `hidden` marks keys that are masked."""
        q, k = x[:, None] @ self._matrix("query"), x[:, None] @ self._matrix("key")
        scores = q @ k.transpose(-1, -2)
        found: Tensor = self.pattern(scores if hidden is None else scores.masked_fill(hidden, -torch.inf))
        return found

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """The stream (batch, positions, d_model) after the layer."""
        values = self.weights(x, hidden) @ (x[:, None] @ self._matrix("value"))
        return x + (values @ self._matrix("output")).sum(1)

    def _matrix(self, name: str) -> Tensor:
        found = getattr(self, name)
        assert isinstance(found, Tensor)
        return found

    def numbers(self) -> TokenLayer:
        """The stored numbers; raises if another module is in the place of the softmax, or beside it."""
        if {name: type(part) for name, part in self._modules.items()} != {"pattern": TokenPattern}:
            parts = ", ".join(f"{name}: {type(part).__name__}" for name, part in self._modules.items())
            raise InputError(
                f"a TokenAttention has one part, pattern: TokenPattern; it has {parts or 'none'}"
            )
        q, k, v, o = (self._matrix(name).detach().double().numpy() for name in MATRICES)
        return TokenLayer(q, k, v, o, self.roles)


@as_made
class TokenNetwork(CertifiedModule):
    """What `attnc.tokens` compiles: an attention-only transformer whose largest logit is the output of its program.

    It adds a first position, BOS. `coordinates` are the names of the d_model coordinates of the stream, `outputs` the values
    that the logits stand for, `program` the meaning. `certificate` states for which sequences it is proved."""

    def __init__(self, numbers: TokenNumbers, program: TokenProgram, certificate: Certificate | None) -> None:
        super().__init__()
        dtype = getattr(torch, numbers.dtype)
        for name in ("tokens", "positions", "unembedding"):
            tensor = torch.from_numpy(np.array(getattr(numbers, name))).to(dtype)
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        self.layers = nn.ModuleList(TokenAttention(layer, dtype) for layer in numbers.layers)
        self.coordinates, self.program = numbers.coordinates, program
        self.certificate = certificate or Certificate.unknown("tokens", numbers.dtype)

    @property
    def vocabulary(self) -> tuple[str | int, ...]:
        """The tokens, in the order of their ids."""
        return self.program.vocabulary

    @property
    def layout(self) -> dict[str, slice]:
        """The coordinates of each variable: the name of a group of coordinates and its slice of the stream."""
        return layout_of(self.coordinates, [role.name for layer in self._layers() for role in layer.roles])

    @property
    def heads(self) -> tuple[tuple[str, ...], ...]:
        """The names of the heads of each layer."""
        return tuple(tuple(role.name for role in layer.roles) for layer in self._layers())

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The output values, in the order of the logits."""
        return self.program.domains[self.program.output]

    @precise
    def forward(self, ids: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Logits (batch, positions, outputs) for token ids (batch, positions); for the ids (positions,) of one sequence, without
        the batch.

        With `lengths` (batch,), a tensor or a list, each sequence ends there: later positions are not attended to, and their
        logits are 0."""
        ids, lengths, flat = self._checked(ids, lengths)
        heads = max((len(layer.roles) for layer in self._layers()), default=1)
        rows = _CHUNK // (heads * (ids.shape[1] + 1) ** 2)
        logits = in_chunks(
            lambda i, n: self._run(i, n)[:, 1:] @ self._table("unembedding"), rows, ids, lengths
        )
        return logits[0] if flat else logits

    @precise
    def attention(self, ids: Tensor, lengths: Tensor | Sequence[int] | None = None) -> dict[str, Tensor]:
        """The attention weights of each head by its name, "1.0 induction", or "induction" if one head has it: (batch, 1 +
        positions, 1 + positions), BOS first; without the batch for the ids (positions,) of one sequence."""
        ids, lengths, flat = self._checked(ids, lengths)
        found = ByHead[Tensor]()
        padding, hidden = self._padding(ids, lengths), self._hidden(ids, lengths)
        x = self._embedded(ids).masked_fill(padding, 0)
        for i, layer in enumerate(self._layers()):
            weights = layer.weights(x, hidden)
            found.update({f"{i}.{h} {role.name}": weights[:, h] for h, role in enumerate(layer.roles)})
            x = layer(x, hidden).masked_fill(padding, 0)
        return ByHead({name: weights[0] if flat else weights for name, weights in found.items()})

    @precise
    def stream(
        self, ids: Tensor, lengths: Tensor | Sequence[int] | None = None, *, layer: int | None = None
    ) -> Tensor:
        """The stream (batch, 1 + positions, d_model) after a layer, by default the last, BOS first; `coordinates` names its axis.

        layer=0 is the first layer, and layer=-1 the embedding, before it.

        >>> from attnc import zoo
        >>> net = zoo.load("induction")
        >>> after = [net.stream(net.encode("ab"), layer=k)[2, net.layout["previous"]] for k in (-1, 0)]
        >>> after[0].tolist(), after[1].tolist()                    # at b: the first head writes previous=a
        ([0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0])
        """
        most = len(self._layers())
        if layer is not None and (type(layer) is not int or not -1 <= layer < most):
            raise InputError(f"layer={layer!r}: give 0 to {most - 1}, or -1 for the embedding")
        ids, lengths, flat = self._checked(ids, lengths)
        x = self._run(ids, lengths, most if layer is None else layer + 1)
        return x[0] if flat else x

    def effects(self, names: Collection[str] | None = None, most: int = COMPARED) -> dict[str, float]:
        """For each head, by its name, the share of outputs that change if what it writes is set to 0 at every position.

        Outputs are those at all positions of all sequences if there are at most `most`. Otherwise the share is estimated on a
        fixed random sample of `most` sequences, in which every sequence is as likely as any other, so most are long. Its standard
        error is about 0.5/√most or less, 0.008 by default, and 0 means that no output of the sample changed. `names` chooses
        heads.

        >>> from attnc import zoo
        >>> {name: round(share, 2) for name, share in zoo.load("induction", vocabulary=2, length=4).effects().items()}
        {'0.0 previous': 0.47, '1.0 induction': 0.47}
        """
        return effects_of(self, names, most)

    def run(self, sequence: Sequence[str | int]) -> list[Value]:
        """The output at each position of one sequence of tokens: a list, or a string of tokens of one letter.

        >>> from attnc import tokens
        >>> p = tokens.program("ab", max_len=4)
        >>> p.compile(p.count(p.tokens == p.tokens.q)).run("aab")
        [2, 2, 1]
        """
        ids = self.encode(sequence)
        with torch.no_grad():
            return [self.outputs[i] for i in self(ids).argmax(-1).tolist()]

    def encode(self, sequence: Sequence[str | int]) -> Tensor:
        """The ids of a sequence of tokens; raises for a token that is not in the vocabulary."""
        places = {token: i for i, token in enumerate(self.vocabulary)}
        tokens = self.program.sequence(sequence)
        return torch.tensor([places[token] for token in tokens], dtype=torch.int64)

    def numbers(self) -> TokenNumbers:
        """The stored numbers."""
        ends = [self._table(name).detach() for name in ("tokens", "positions", "unembedding")]
        stored = [*ends, *(layer._matrix(name) for layer in self._layers() for name in MATRICES)]
        dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in stored})
        if len(dtypes) > 1:  # embeddings of float32 and float64 would add up to float64
            raise InputError(f"the tensors of the network have the dtypes {dtypes}: they must share one")
        tokens, positions, unembedding = (end.double().numpy() for end in ends)
        layers = tuple(layer.numbers() for layer in self._layers())
        return TokenNumbers(tokens, positions, layers, unembedding, self.coordinates, dtypes[0])

    def why_not_certified(self) -> str | None:
        """Why nothing is proved of what the network returns now, or None."""
        if self.certificate.status is not Status.PROVED:
            return f"the certificate is {self.certificate.status}, not proved"
        try:
            meaning = seal(program_to_json(rebuilt(self.program)))
        except DAMAGE as problem:
            return f"the program was replaced: {problem}"
        if meaning != self.certificate.digests.get("program"):
            return "the certificate is about another program"
        stored = {name: d for name, d in self.certificate.digests.items() if name != "program"}
        return loose_products(self.certificate.dtype) or why_changed(self, self.certificate, stored)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the matrices, the program and the certificate to a safetensors file; `attnc.load` reads it. Warns if numbers
        have changed."""
        warn_if_changed(self, self.certificate)
        write(path, Record(self.numbers(), self.certificate, self.program))

    def to_transformer_lens(self) -> Any:
        """The network as a TransformerLens model (extra `transformer-lens`), with vocabulary, positions and unembedding.

        `attnc.exporters.token_lens.TokenLens` says how to run it, how to hook it and how to read it."""
        exporter = importlib.import_module("attnc.exporters.token_lens")
        return exporter.token_lens(self)

    def as_self_attention(self, *_: object, **__: object) -> NoReturn:
        """Raise: a token network is plain attention as it is, so it has no other form."""
        reason = "is plain self-attention as it is: read net.layers[i].query, key, value and output, or use to_transformer_lens()"
        raise UnsupportedError("there is no other form of a token network", [Problem("the network", reason)])

    def describe(self) -> str:
        """Layers, heads and coordinates as text."""
        return description(self.numbers(), self.program)

    def _repr_html_(self) -> str:
        from attnc.network.cards import token_card

        return token_card(self)

    def __repr__(self) -> str:
        heads = ", ".join(str(len(getattr(layer, "roles", ()))) for layer in self.layers)
        shape = f"heads=[{heads}], d_model={len(self.coordinates)}"
        lapsed = self.certificate.why_lapsed()
        state = "" if lapsed is None else f", not certified: {lapsed}"
        return f"TokenNetwork({len(self.vocabulary)} tokens, length <= {self.program.length}, {shape}{state})"

    def _layers(self) -> list[TokenAttention]:
        """All layers; raises if another module is among them, which would run without being read by `numbers`."""
        found = self._modules.get("layers")
        parts = list(found) if type(found) is nn.ModuleList else []
        layers = [part for part in parts if type(part) is TokenAttention]
        if type(found) is not nn.ModuleList or len(layers) < len(parts) or set(self._modules) != {"layers"}:
            others = sorted({type(part).__name__ for part in parts} - {"TokenAttention"})
            raise InputError(
                f"the parts of a token network are the TokenAttention layers of net.layers alone: it has "
                f"{', '.join(self._modules)} and layers of {', '.join(others) or 'no other'} kind; remove what was added"
            )
        return layers

    def _table(self, name: str) -> Tensor:
        found = getattr(self, name)
        assert isinstance(found, Tensor)
        return found

    def _run(self, ids: Tensor, lengths: Tensor, layers: int | None = None) -> Tensor:
        """The stream after the first `layers`, or all. It is 0 at padding before every layer: keys and values there are
        0, whatever a head would write, so that 0 · value is 0 at every query."""
        padding, hidden = self._padding(ids, lengths), self._hidden(ids, lengths)
        x = self._embedded(ids).masked_fill(padding, 0)
        for layer in self._layers()[:layers]:
            x = layer(x, hidden).masked_fill(padding, 0)
        return x

    def _embedded(self, ids: Tensor) -> Tensor:
        bos = ids.new_full((ids.shape[0], 1), len(self.vocabulary))
        both = torch.cat([bos, ids], 1)
        return self._table("tokens")[both] + self._table("positions")[: both.shape[1]]

    def _padding(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The positions after the end of each sequence: (batch, positions, 1)."""
        return (torch.arange(ids.shape[1] + 1, device=ids.device) > lengths[:, None])[..., None]

    def _hidden(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The keys that a query does not see: (batch, 1, queries or 1, keys)."""
        at = torch.arange(ids.shape[1] + 1, device=ids.device)
        hidden = (at > lengths[:, None])[:, None, None]
        return hidden | (at[None] > at[:, None]) if self.program.causal else hidden

    def _checked(self, ids: Tensor, lengths: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor, bool]:
        """Ids (batch, positions) and lengths (batch,), and whether the batch has to be dropped again."""
        if not isinstance(ids, Tensor) or ids.dtype not in INTEGERS or ids.ndim not in (1, 2):
            got = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            words = (
                " Use net.run(sequence), or net(net.encode(sequence))."
                if isinstance(ids, (str, list, tuple))
                else " Convert them: ids.long()."
                if isinstance(ids, Tensor) and ids.dtype.is_floating_point
                else ""
            )
            raise InputError(
                f"token ids are a tensor of whole numbers, (batch, positions): got {got}.{words}"
            )
        flat, most = ids.ndim == 1, self.program.length
        ids = (ids[None] if flat else ids).long()
        if not 1 <= ids.shape[1] <= most:
            raise InputError(f"sequences of {ids.shape[1]} tokens: the network takes 1 to {most}")
        if can_look(ids) and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.vocabulary):
            wrong = f"ids from {int(ids.min())} to {int(ids.max())}"
            raise InputError(f"{wrong}: the vocabulary has the ids 0 to {len(self.vocabulary) - 1}")
        if lengths is None:
            return ids, ids.new_full((ids.shape[0],), ids.shape[1]), flat
        whole = isinstance(lengths, (list, tuple)) and {type(n) for n in lengths} <= {int}
        if whole and not isinstance(lengths, Tensor) and all(abs(n) < 2**63 for n in lengths):
            lengths = torch.tensor(lengths, dtype=torch.int64, device=ids.device)
        if (
            not isinstance(lengths, Tensor)
            or lengths.dtype not in INTEGERS
            or lengths.numel() != ids.shape[0]
        ):
            raise InputError(
                f"lengths are one whole number for each of {ids.shape[0]} sequences, a tensor or a list: got {lengths!r}"
            )
        lengths = lengths.reshape(-1).long()
        if (
            can_look(lengths)
            and lengths.numel()
            and not 1 <= int(lengths.min()) <= int(lengths.max()) <= ids.shape[1]
        ):
            raise InputError(f"lengths must be 1 to {ids.shape[1]}: got {lengths.tolist()[:8]}")
        return ids, lengths, flat


def token_network(record: Record) -> TokenNetwork:
    """The network of a file."""
    program, numbers = record.tokens
    return TokenNetwork(numbers, program, record.certificate)


def digests_of(numbers: TokenNumbers, program: TokenProgram) -> Mapping[str, str]:
    """What a certificate identifies a token network by."""
    return {**numbers.digests(), "program": seal(program_to_json(program))}
