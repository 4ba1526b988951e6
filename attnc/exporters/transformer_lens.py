"""Literal forms as TransformerLens models: a `TransformerBridge` of attention alone, compared with the literal form.

    TransformerLens                            so
    scores are divided by √d_head              d_head is a power of 4 and W_Q is multiplied by √d_head: both are exact
    all layers have as many heads              the others are 0, named "unused"
    inputs are token ids                       the stream is given instead, as embeddings: W_E and W_pos are 0
    a residual stream, no maps of sequences    `attention_only`
    logits                                     W_U reads the output register

Nothing is folded, centred or normalised: the weights are those of the literal form."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnc.arguments import checked_count
from attnc.errors import ExportError, InputError, MissingExtraError
from attnc.exporters.attention_only import AttentionOnly, Block, attention_only
from attnc.exporters.reference import Rounding
from attnc.exporters.subjects import SIZES, Subject, subject_of
from attnc.extras import optional
from attnc.network.literal import Layout, SelfAttentionNetwork
from attnc.network.literal.steps import LARGEST, LETTERS
from attnc.network.running import in_chunks
from attnc.records.numbers import Array

_EXTRA = "transformer-lens"
_TOKENS = 512  # of a learner, unless n_ctx says otherwise
_CHUNK = 1 << 24  # weights held at once
_LINEAR = dict(zip(LETTERS, "qkvo", strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class LensModel:
    """A literal form in TransformerLens. `lens(x)` returns what the literal form returns; `run_with_cache` and `run_with_hooks`
    are those of the bridge, for the same inputs.

    bridge              the TransformerBridge. It takes the stream: `bridge(lens.embed(x))` are its logits
    steps, heads        the names of the blocks, and of the heads of each block
    layout              the registers of the stream: names of groups of coordinates, as slices. `coordinates` names each of them
    tokens(x)           the names of the tokens
    difference          the largest |bridge - literal form| that was seen, at `inputs` inputs inside the domain
    allowed             what rounding explains there

    >>> import attnc, torch
    >>> literal = attnc.head("tanh", domain=(-8, 8), eps=1e-5, dtype=torch.float64).as_self_attention(2)
    >>> lens = literal.to_transformer_lens()                                # doctest: +SKIP
    >>> outputs, cache = lens.run_with_cache(torch.tensor([0.5, 1.0]).double())    # doctest: +SKIP
    >>> cache["pattern", lens.block("head")].shape                          # doctest: +SKIP
    """

    bridge: Any
    literal: SelfAttentionNetwork
    form: AttentionOnly
    difference: float = math.nan
    allowed: float = math.nan
    inputs: int = 0

    @property
    def layout(self) -> Layout:
        """The registers of the stream."""
        return self.form.layout

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The name of every coordinate of the stream."""
        return self.layout.coordinates

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the coordinates that the unembedding reads, one for each logit."""
        return self.coordinates[self.form.output]

    @property
    def steps(self) -> tuple[str, ...]:
        """The name of every block: the step of the literal form that it executes."""
        return tuple(block.name for block in self.form.blocks)

    @property
    def heads(self) -> tuple[tuple[str, ...], ...]:
        """For every block, the name of every head."""
        most = self.bridge.cfg.n_heads
        return tuple((*b.heads, *["unused"] * (most - len(b.heads))) for b in self.form.blocks)

    def block(self, step: str) -> int:
        """The number of the block that executes a step."""
        if step not in self.steps:
            raise InputError(f"no step {step!r}: there are {', '.join(self.steps)}")
        return self.steps.index(step)

    def tokens(self, *inputs: Tensor) -> tuple[str, ...]:
        """The names of the tokens. Those of a learner depend on the inputs."""
        fixed = self.layout.tokens
        if all(None not in spec.shape for spec in self.literal.inputs):
            return fixed
        if not inputs:
            raise InputError("the number of tokens depends on the inputs: give them to `tokens`")
        return (*self.literal.token_names(*inputs), *fixed)

    def embed(self, *inputs: Tensor) -> Tensor:
        """(batch, tokens, d_model): the stream before the first block, for the inputs of the literal form."""
        literal = self.literal
        with torch.no_grad():
            x = literal.embed(*inputs)
            x = x.reshape(-1, *x.shape[-2:])
            for _, i in literal.order[: self.form.leading]:
                x = literal.steps[i](x)
            if self.form.constants is not None:
                held = torch.from_numpy(self.form.constants).to(x).repeat(len(x), 1, 1)
                held[:, : x.shape[1], : x.shape[2]] += x
                x = held
        if x.shape[1] > self.bridge.cfg.n_ctx:
            raise InputError(
                f"{x.shape[1]} tokens, but n_ctx is {self.bridge.cfg.n_ctx}: use to_transformer_lens(n_ctx={x.shape[1]})"
            )
        return x

    def read(self, logits: Tensor, *inputs: Tensor) -> Tensor:
        """The outputs for inputs, of the logits (batch, tokens, outputs) of the bridge."""
        spec = self.literal.inputs[0]
        batch = inputs[0].shape[: inputs[0].ndim - len(spec.shape)]
        return self.literal.result(logits.reshape(*batch, *logits.shape[1:]), *inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The outputs for inputs of the shapes of the literal form."""
        x, cfg = self.embed(*inputs), self.bridge.cfg
        rows = _CHUNK // (cfg.n_heads * x.shape[1] * (x.shape[1] + 4 * cfg.d_head))
        return self.read(in_chunks(self.bridge, rows, x), *inputs)

    def run_with_cache(self, *inputs: Tensor, **options: Any) -> tuple[Tensor, Any]:
        """The outputs, and the activations of every hook: `cache["pattern", 0]`, `cache["resid_post", 0]`, …"""
        logits, cache = self.bridge.run_with_cache(self.embed(*inputs), **options)
        return self.read(logits, *inputs), cache

    def run_with_hooks(self, *inputs: Tensor, fwd_hooks: Sequence[tuple[Any, Any]], **options: Any) -> Tensor:
        """The outputs with hooks, pairs of a name, such as "blocks.0.attn.hook_pattern", and a function (activation, hook)."""
        logits = self.bridge.run_with_hooks(self.embed(*inputs), fwd_hooks=list(fwd_hooks), **options)
        return self.read(logits, *inputs)

    def __repr__(self) -> str:
        cfg = self.bridge.cfg
        sizes = f"d_model {cfg.d_model}, d_head {cfg.d_head}, {cfg.n_heads} heads, {cfg.n_layers} layers"
        compared = f"largest difference {self.difference:.3g} at {self.inputs} inputs; rounding explains {self.allowed:.3g}"
        return f"LensModel of form {self.literal.form!r}: {sizes}\n{compared}\nstream: {self.layout!r}"


def lens_model(literal: SelfAttentionNetwork, n_ctx: int | None) -> LensModel:
    """See `SelfAttentionNetwork.to_transformer_lens`."""
    library = _library()
    subject = subject_of(literal, "softmax", None)
    form, dtype = attention_only(literal), subject.dtype
    varies = any(None in spec.shape for spec in literal.inputs)
    most = _TOKENS if varies else len(form.layout.tokens)
    if n_ctx is not None:
        most = max(most * (not varies), checked_count("n_ctx", n_ctx, why="the largest number of tokens"))
    bridge = _booted(library, form, most, dtype)
    return _compared(LensModel(bridge, literal, form), subject)


def _library() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = optional("transformer_lens", _EXTRA, "TransformerLens models")
    if not hasattr(getattr(library, "TransformerBridge", None), "boot_native"):
        raise MissingExtraError(
            f"transformer_lens {getattr(library, '__version__', '')} has no TransformerBridge.boot_native, version 4 has: "
            f"pip install 'attnc[{_EXTRA}]'"
        )
    return library


def _booted(library: Any, form: AttentionOnly, n_ctx: int, dtype: torch.dtype) -> Any:
    """The bridge with the weights of the blocks, without gradients."""
    heads, width = max(len(b.heads) for b in form.blocks), 1
    while width < max(max(b.W_Q.shape[2], b.W_V.shape[2]) for b in form.blocks):
        width *= 4
    d, names = form.layout.width, range(form.layout.width)[form.output]
    size = 4 * len(form.blocks) * heads * width * d + n_ctx * d
    if size > LARGEST:
        raise InputError(
            f"{len(form.blocks)} layers of {heads} heads of width {width} over {d} coordinates and {n_ctx} tokens need {size:,} "
            f"numbers, over {LARGEST:,}: use a smaller network, or a larger eps"
        )
    cfg = library.TransformerBridgeConfig(
        d_model=d, d_head=width, n_heads=heads, n_layers=len(form.blocks), n_ctx=n_ctx, d_vocab=1, d_vocab_out=len(names),
        attn_only=True, normalization_type=None, attention_dir="bidirectional", positional_embedding_type="standard",
        init_weights=False, act_fn="relu", d_mlp=1, dtype=dtype,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bridge = library.TransformerBridge.boot_native(cfg, device="cpu", dtype=dtype, model_name="attnc")
    state = {name: torch.zeros_like(tensor) for name, tensor in bridge.state_dict().items()}
    for i, block in enumerate(form.blocks):
        for letter, matrix in _weights(block, heads, width).items():
            _fill(state, f"blocks.{i}.attn.{_LINEAR[letter]}.weight", matrix)
    _fill(state, "unembed.weight", np.eye(d)[form.output])
    bridge.load_state_dict(state)
    bridge.requires_grad_(False)
    return bridge.eval()


def _weights(block: Block, heads: int, width: int) -> dict[str, Array]:
    """(out, in) each, as in torch.nn.Linear: of all heads, those that are not used 0; W_Q times √width."""
    found = {}
    for letter, axis in (("W_Q", 2), ("W_K", 2), ("W_V", 2), ("W_O", 1)):
        given = getattr(block, letter)
        room = [(0, heads - len(given)), (0, 0), (0, 0)]
        room[axis] = (0, width - given.shape[axis])
        full = np.pad(given, room)  # (heads, D, width) or (heads, width, D)
        stacked = full.swapaxes(1, 2) if axis == 2 else full
        flat = stacked.reshape(heads * width, -1)
        found[letter] = flat if axis == 2 else flat.T
    found["W_Q"] = math.isqrt(width) * found["W_Q"]
    return found


def _fill(state: dict[str, Tensor], name: str, matrix: Array) -> None:
    if name not in state or tuple(state[name].shape) != matrix.shape:
        shape = tuple(state[name].shape) if name in state else None
        raise ExportError(
            f"{name} is {matrix.shape} here and {shape} in this version of TransformerLens: use 4.3"
        )
    state[name] = torch.from_numpy(np.ascontiguousarray(matrix)).to(state[name].dtype)


def _compared(lens: LensModel, subject: Subject) -> LensModel:
    """The same with its largest difference to the literal form; an error if rounding does not explain it.

    `Rounding` measures how much rounding changes the result of the literal form. The bridge executes the same operations in
    another order, so its result differs by as much."""
    given = [subject.samples(count, ()) for count in SIZES]
    with torch.no_grad():
        example = subject.samples(SIZES[1], {"batch"})
        program = torch.export.export(subject.called, example, strict=False)
        allowed = Rounding(program, subject.dtype).allowed(example)[0]
        worst = 0.0
        for inputs in given:
            expected, found = subject.called(*inputs)[0], lens(*inputs)
            difference = float((expected - found).abs().max())
            if found.shape != expected.shape or found.dtype != expected.dtype or not difference <= allowed:
                raise ExportError(
                    f"TransformerLens and the literal form differ by {difference:.3g}, for a batch of {len(inputs[0])}; rounding "
                    f"explains {allowed:.3g}. Use another version of transformer-lens: 4.3 is tested"
                )
            worst = max(worst, difference)
    return LensModel(lens.bridge, lens.literal, lens.form, worst, allowed, sum(SIZES))
