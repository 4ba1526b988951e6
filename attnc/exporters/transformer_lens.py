"""Literal forms as TransformerLens models: a `TransformerBridge` of attention alone, compared with the literal form.

    TransformerLens                            so here
    divides scores by √d_head                  d_head is a power of 4 and W_Q is multiplied by √d_head: both are exact
    has as many heads in every layer           heads that a layer does not need are 0 and named "unused"
    takes token ids                            its input is the stream, in the place of embeddings: W_E and W_pos are 0
    has a residual stream, and no maps         `attention_only`
    returns logits                             W_U reads the output register

No weights are folded or centred, and nothing is normalised: the weights are those of the literal form."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnc.arguments import checked_count
from attnc.errors import ExportError, InputError, MissingExtraError
from attnc.exporters.attention_only import AttentionOnly, Block, attention_only, check_size
from attnc.exporters.reference import LiteralRounding
from attnc.exporters.subjects import SIZES, Subject, subject_of
from attnc.extras import optional
from attnc.network.literal import Layout, SelfAttentionNetwork
from attnc.network.literal.steps import LETTERS
from attnc.network.running import in_chunks
from attnc.records.numbers import Array

_EXTRA = "transformer-lens"
_TOKENS = 512  # of a learner, unless n_ctx is given
_CHUNK = 1 << 24  # numbers held at once
_LINEAR = dict(zip(LETTERS, "qkvo", strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class LensModel:
    """A literal form in TransformerLens. `lens(x)` returns what the literal form returns for x. `run_with_cache` and
    `run_with_hooks` are those of the bridge, for the same inputs.

    `bridge` is the TransformerBridge; its input is the stream, `bridge(lens.embed(x))`. `layout` maps the names of registers to
    slices of coordinates of the stream, `steps` are the names of the blocks, `heads` those of the heads of each block.
    `difference` is the largest |bridge - literal form| that was seen, at `inputs` inputs inside the domain; `allowed` is what
    rounding explains there.

    >>> import attnc, torch
    >>> literal = attnc.head("tanh", domain=(-8, 8), eps=1e-5, dtype=torch.float64).as_self_attention(2)
    >>> lens = literal.to_transformer_lens()
    >>> x = torch.tensor([0.5, 1.0], dtype=torch.float64)
    >>> outputs, cache = lens.run_with_cache(x)
    >>> torch.allclose(outputs, literal(x), atol=1e-12), lens.difference <= lens.allowed
    (True, True)
    >>> torch.allclose(cache["pattern", lens.block("head")][0], literal.attention(x)["head"], atol=1e-12)
    True
    >>> lens.tokens()[:3], lens.coordinates[:5], lens.outputs
    (('data 0', 'data 1', 'anchor 0'), ('data', 'anchor', 'one', 'x', 'y'), ('y',))
    """

    bridge: Any
    literal: SelfAttentionNetwork
    layout: Layout
    steps: tuple[str, ...]
    heads: tuple[tuple[str, ...], ...]
    output: slice  # the coordinates of the result
    leading: int  # steps of the literal form that belong to the embedding
    constants: Array | None  # (tokens, d_model), what the stream holds beside the embedded sequence
    difference: float = math.nan
    allowed: float = math.nan
    inputs: int = 0

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The name of every coordinate of the stream."""
        return self.layout.coordinates

    @property
    def outputs(self) -> tuple[str, ...]:
        """The name of every logit: the coordinates that the unembedding reads."""
        return self.coordinates[self.output]

    def block(self, step: str) -> int:
        """The number of the block that executes a step of the literal form."""
        if step not in self.steps:
            raise InputError(f"no block {step!r}: there are {', '.join(self.steps)}")
        return self.steps.index(step)

    def tokens(self, *inputs: Tensor) -> tuple[str, ...]:
        """The names of the tokens; those of a learner depend on the inputs."""
        if not _varies(self.literal):
            return self.layout.tokens
        if not inputs:
            raise InputError("the number of tokens depends on the inputs: give them, tokens(context_x, …)")
        return (*self.literal.token_names(*inputs), *self.layout.tokens)

    def embed(self, *inputs: Tensor) -> Tensor:
        """(batch, tokens, d_model): the stream before the first block, for inputs of the literal form."""
        literal, n_ctx = self.literal, self.bridge.cfg.n_ctx
        x = literal.embed(*inputs)
        literal._check_values(inputs, literal.strict)
        x = x.reshape(-1, *x.shape[-2:])
        for _, i in literal.order[: self.leading]:
            x = literal.steps[i](x)
        if self.constants is not None:
            stream = torch.from_numpy(self.constants).to(x).repeat(len(x), 1, 1)
            stream[:, : x.shape[1], : x.shape[2]] += x
            x = stream
        if x.shape[1] > n_ctx:
            raise InputError(
                f"{x.shape[1]} tokens, but n_ctx is {n_ctx}: use to_transformer_lens(n_ctx={x.shape[1]})"
            )
        return x.to(next(self.bridge.parameters()).device)

    def read(self, logits: Tensor, *inputs: Tensor) -> Tensor:
        """The outputs for inputs, of the bridge's logits (batch, tokens, d_vocab_out)."""
        batch = inputs[0].shape[: inputs[0].ndim - len(self.literal.inputs[0].shape)]
        return self.literal.result(logits.reshape(*batch, *logits.shape[1:]), *inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The outputs for inputs of the literal form."""
        x, cfg = self.embed(*inputs), self.bridge.cfg
        rows = _CHUNK // (cfg.n_heads * x.shape[1] * (x.shape[1] + 4 * cfg.d_head))
        return self.read(in_chunks(self.bridge, rows, x), *inputs)

    def run_with_cache(self, *inputs: Tensor, **options: Any) -> tuple[Tensor, Any]:
        """The outputs and the activations: `cache["pattern", i]` and `cache["resid_post", i]` of block i, and others."""
        logits, cache = self.bridge.run_with_cache(self.embed(*inputs), **options)
        return self.read(logits, *inputs), cache

    def run_with_hooks(self, *inputs: Tensor, fwd_hooks: Sequence[tuple[Any, Any]], **options: Any) -> Tensor:
        """The outputs with hooks: pairs of a name, such as "blocks.0.attn.hook_pattern", and a function of (activation, hook).
        What it returns replaces the activation."""
        logits = self.bridge.run_with_hooks(self.embed(*inputs), fwd_hooks=list(fwd_hooks), **options)
        return self.read(logits, *inputs)

    def __repr__(self) -> str:
        cfg = self.bridge.cfg
        sizes = f"d_model {cfg.d_model}, d_head {cfg.d_head}, n_heads {cfg.n_heads}, n_layers {cfg.n_layers}"
        seen = f"largest difference {self.difference:.3g} at {self.inputs} inputs; rounding explains {self.allowed:.3g}"
        return f"LensModel, form {self.literal.form!r}: {sizes}\n{seen}\ncoordinates: {self.layout!r}"


def lens_model(literal: SelfAttentionNetwork, n_ctx: int | None) -> LensModel:
    """See `SelfAttentionNetwork.to_transformer_lens`."""
    library, subject = lens_library(), subject_of(literal, "softmax", None)
    form = attention_only(literal)
    least = len(form.layout.tokens)
    most = _TOKENS + least if _varies(literal) else least
    if n_ctx is not None:
        most = checked_count("n_ctx", n_ctx, least, why="the largest number of tokens")
    heads, names = max(len(b.heads) for b in form.blocks), tuple(b.name for b in form.blocks)
    padded = tuple((*b.heads, *["unused"] * (heads - len(b.heads))) for b in form.blocks)
    bridge = _booted(library, form, most, subject.dtype)
    lens = LensModel(bridge, literal, form.layout, names, padded, form.output, form.leading, form.constants)
    return _compared(lens, subject)


def _varies(literal: SelfAttentionNetwork) -> bool:
    """Whether the number of tokens depends on the inputs."""
    return any(None in spec.shape for spec in literal.inputs)


def lens_library() -> Any:
    """TransformerLens, if it is installed in a version that has native bridges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = optional("transformer_lens", _EXTRA, "TransformerLens models")
    if not hasattr(getattr(library, "TransformerBridge", None), "boot_native"):
        raise MissingExtraError(
            "this version of transformer_lens has no TransformerBridge.boot_native, which version 4 has: "
            f"pip install 'attnc[{_EXTRA}]'"
        )
    return library


def _booted(library: Any, form: AttentionOnly, n_ctx: int, dtype: torch.dtype) -> Any:
    """The bridge of a literal form: its input is the stream, its logits are the output register."""
    reads = np.eye(form.layout.width)[form.output]
    return boot(library, form.blocks, {"unembed": reads}, n_ctx, dtype)


def boot(
    library: Any,
    blocks: Sequence[Block],
    ends: Mapping[str, Array],
    n_ctx: int,
    dtype: torch.dtype,
    causal: bool = False,
) -> Any:
    """A bridge with the weights of the blocks and of `ends`: "unembed" (logits, d_model), and for token ids "embed" and
    "pos_embed". It records no gradients of them."""
    d = ends["unembed"].shape[1]
    heads, width, layers = max(len(b.heads) for b in blocks), _power_of_4(blocks), len(blocks)
    check_size(layers, heads, width, d)
    vocabulary = len(ends["embed"]) if "embed" in ends else 1
    cfg = library.TransformerBridgeConfig(
        d_model=d, d_head=width, n_heads=heads, n_layers=layers, n_ctx=n_ctx, d_vocab=vocabulary,
        d_vocab_out=len(ends["unembed"]), dtype=dtype, attn_only=True, normalization_type=None,
        attention_dir="causal" if causal else "bidirectional", positional_embedding_type="standard", init_weights=False,
        act_fn="relu", d_mlp=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bridge = library.TransformerBridge.boot_native(cfg, device="cpu", dtype=dtype, model_name="attnc")
    state = {name: torch.zeros_like(tensor) for name, tensor in bridge.state_dict().items()}
    weights = dict(ends)
    for i, block in enumerate(blocks):
        for letter, matrix in _weights(block, heads, width).items():
            weights[f"blocks.{i}.attn.{_LINEAR[letter]}"] = matrix
    for name, matrix in weights.items():
        known = state.get(f"{name}.weight")
        if known is None or known.shape != matrix.shape:
            shape = None if known is None else tuple(known.shape)
            raise ExportError(
                f"{name}.weight is {matrix.shape}, in this version of TransformerLens {shape}: use version 4"
            )
        state[f"{name}.weight"] = torch.from_numpy(np.ascontiguousarray(matrix)).to(known.dtype)
    bridge.load_state_dict(state)
    bridge.requires_grad_(False)
    return bridge.eval()


def _power_of_4(blocks: Sequence[Block]) -> int:
    """The smallest that is at least the width of every query and value: √d_head is then a power of 2."""
    widest = max(max(block.W_Q.shape[2], block.W_V.shape[2]) for block in blocks)
    return int(4 ** math.ceil(math.log2(widest) / 2))


def _weights(block: Block, heads: int, width: int) -> dict[str, Array]:
    """(out, in) each, as in torch.nn.Linear, with zeros for heads and columns that are not used; W_Q times √width."""
    found = {}
    for letter in LETTERS:
        given = getattr(block, letter) if letter == "W_O" else getattr(block, letter).swapaxes(1, 2)
        room = (0, heads - len(given)), (0, width - given.shape[1]), (0, 0)
        flat = np.pad(given, room).reshape(heads * width, -1)
        found[letter] = flat.T if letter == "W_O" else flat
    found["W_Q"] = math.isqrt(width) * found["W_Q"]
    return found


def _compared(lens: LensModel, subject: Subject) -> LensModel:
    """The same with its largest difference to the literal form; an error if rounding does not explain it.

    The bridge executes the operations of the literal form in another order, to the same precision. So its result differs by as
    much as rounding changes that of the literal form, which `LiteralRounding` measures."""
    given = [subject.samples(count, ()) for count in SIZES]
    rounding, worst = LiteralRounding(lens.literal), 0.0
    allowed = max(most for inputs in given[:2] for most in rounding.allowed(inputs))
    for inputs in given:
        with torch.no_grad():
            expected, found = subject.called(*inputs)[0], lens(*inputs)
        fits = found.shape == expected.shape and found.dtype == expected.dtype
        difference = float((expected - found).abs().max()) if fits else math.inf
        if not difference <= allowed:
            raise ExportError(
                f"TransformerLens and the literal form differ by {difference:.3g}, for a batch of {len(inputs[0])}; rounding "
                f"explains {allowed:.3g}. Use another version of transformer-lens; 4.0 to 4.3 are tested"
            )
        worst = max(worst, difference)
    return replace(lens, difference=worst, allowed=allowed, inputs=sum(SIZES))
