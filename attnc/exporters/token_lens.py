"""Token networks as TransformerLens models: W_E, W_pos, attention and W_U, in a `TransformerBridge` of attention alone.

TransformerLens divides scores by √d_head: d_head is a power of 4 and W_Q is multiplied by √d_head, so scores stay whole numbers.
Heads that a layer does not need are 0. Nothing is folded, centred or normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from attnc.errors import ArgumentError, ExportError, InputError, Problem, UnknownNameError, UnsupportedError
from attnc.exporters.attention_only import Block
from attnc.exporters.transformer_lens import boot, lens_library
from attnc.network.running import can_look
from attnc.network.token_sequences import sequences_of
from attnc.network.tokens import TokenNetwork
from attnc.program.tokens import Value

_WEIGHTS = ("W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "W_U")  # of the bridge, and of TokenLens too


@dataclass(frozen=True, eq=False, repr=False)
class TokenLens:
    """A token network in TransformerLens.

    `lens(ids)`, `run`, `run_with_cache` and `run_with_hooks` take token ids as the network does, and add BOS. `bridge` is the
    TransformerBridge, for functions of TransformerLens; its input is `with_bos(ids)`: ids with BOS, id V, in front. It raises
    without BOS. `coordinates` are the names of the residual stream, `layout` maps groups of them to slices, `heads` are the names
    of the heads of each block, `outputs` the values of the logits. Logit j stands for outputs[j], not for the token with the id
    j, so the bridge raises where TransformerLens would compute a loss. `difference` is the largest |logit - logit of the network|
    over the `compared` sequences; the output tokens were equal at every position.

    >>> from attnc import zoo
    >>> net = zoo.load("induction")
    >>> lens = net.to_transformer_lens()
    >>> "".join(lens.run("abcab")), lens.difference
    ('---bc', 0.0)
    >>> logits, cache = lens.run_with_cache(net.encode("abcab")[None])
    >>> cache["pattern", 1][0, 0, 5]               # block 1, head 0; the last b attends to the c
    tensor([0., 0., 0., 1., 0., 0.])
    >>> lens.block("induction"), lens.layout["previous"], lens.tokens(net.encode("ab"))
    (1, slice(15, 20, None), ('BOS', 'a', 'b'))
    """

    bridge: Any
    network: TokenNetwork
    heads: tuple[tuple[str, ...], ...]
    difference: float = float("nan")
    compared: int = 0

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The names of the coordinates of the residual stream."""
        return self.network.coordinates

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that the logits stand for: logit j is for outputs[j], which need not be the token with the id j."""
        return self.network.outputs

    @property
    def layout(self) -> dict[str, slice]:
        """The coordinates of each variable: the name of a group of coordinates and its slice of the stream."""
        return self.network.layout

    def block(self, name: str) -> int:
        """The number of the block of a head, by its name ("previous", or "0.0 previous" as `network.attention` has it)."""
        found = {
            i
            for i, block in enumerate(self.heads)
            for h, n in enumerate(block)
            if name in (n, f"{i}.{h} {n}")
        }
        if len(found) != 1 or name == "unused":
            known = ", ".join(
                f"{i}.{h} {n}" for i, b in enumerate(self.heads) for h, n in enumerate(b) if n != "unused"
            )
            count = f"{len(found)} blocks have" if found else "no block has"
            raise UnknownNameError(f"{count} a head {name!r}: the heads are {known}")
        return found.pop()

    def tokens(self, ids: Tensor | None = None) -> tuple[str, ...]:
        """The names of the positions for the ids of one sequence: BOS and the tokens."""
        if ids is None:
            raise ArgumentError("the tokens are those of a sequence: lens.tokens(net.encode(sequence))")
        ids, _, _ = self.network._checked(ids, None)
        if len(ids) != 1:
            raise InputError(f"{len(ids)} sequences: give the ids of one")
        return ("BOS", *(str(self.network.vocabulary[i]) for i in ids[0].tolist()))

    def with_bos(self, ids: Tensor) -> Tensor:
        """Token ids (batch, 1 + positions) for the bridge."""
        ids, _, _ = self.network._checked(ids, None)
        return torch.cat([ids.new_full((len(ids), 1), len(self.network.vocabulary)), ids], 1)

    def __call__(self, ids: Tensor, lengths: None = None) -> Tensor:
        """Logits (batch, positions, outputs) for token ids (batch, positions), as the network returns them."""
        if lengths is not None:
            raise InputError(
                "lengths are not supported in TransformerLens: run sequences of one length in a batch, or use the network"
            )
        logits: Tensor = self.bridge(self.with_bos(ids))[:, 1:]
        return logits

    def run(self, sequence: Sequence[str | int]) -> list[Value]:
        """The output at each position of a sequence of tokens."""
        ids = self.network.encode(sequence)[None]
        return [self.outputs[i] for i in self(ids)[0].argmax(-1).tolist()]

    def run_with_cache(self, ids: Tensor, **options: Any) -> tuple[Tensor, Any]:
        """Logits and activations: `cache["pattern", i]` (batch, heads, queries, keys) and others, BOS first."""
        logits, cache = self.bridge.run_with_cache(self.with_bos(ids), **options)
        return logits[:, 1:], cache

    def run_with_hooks(self, ids: Tensor, fwd_hooks: Sequence[tuple[Any, Any]], **options: Any) -> Tensor:
        """Logits with hooks: pairs of a name, such as "blocks.0.attn.hook_pattern", and a function of (activation, hook)."""
        logits: Tensor = self.bridge.run_with_hooks(self.with_bos(ids), fwd_hooks=list(fwd_hooks), **options)
        return logits[:, 1:]

    def __getattr__(self, name: str) -> Any:
        if name in _WEIGHTS:
            return getattr(self.bridge, name)
        known = sorted(n for n in {*dir(type(self)), *vars(self), *_WEIGHTS} if not n.startswith("_"))
        raise AttributeError(
            f"TokenLens has no {name!r}: it has {', '.join(known)}; functions of TransformerLens take lens.bridge and "
            "lens.with_bos(ids)"
        )

    def __repr__(self) -> str:
        cfg = self.bridge.cfg
        sizes = f"d_model {cfg.d_model}, d_head {cfg.d_head}, n_heads {cfg.n_heads}, n_layers {cfg.n_layers}"
        return f"TokenLens: {sizes}; largest difference {self.difference:.3g} at {self.compared:,} sequences"


@dataclass(frozen=True)
class _NeedsBos:
    """A hook before the embedding of a bridge: ids without BOS in front would give other outputs, silently."""

    bos: int

    def __call__(self, module: Any, args: tuple[Any, ...]) -> None:
        ids = args[0] if args else None
        if isinstance(ids, Tensor) and can_look(ids) and not bool((ids[..., :1] == self.bos).all()):
            raise InputError("the bridge takes ids with BOS in front: use lens.bridge(lens.with_bos(ids))")


def _no_loss(*_: object, **__: object) -> NoReturn:
    """In the place of TransformerLens's loss, which takes the id of the next token for the place of its logit."""
    raise UnsupportedError(
        "a token network has no loss of the next token",
        [Problem("return_type", "logits stand for lens.outputs, not for token ids: use the logits")],
    )


def token_lens(network: TokenNetwork) -> TokenLens:
    """See `TokenNetwork.to_transformer_lens`."""
    library, numbers = lens_library(), network.numbers()
    if not numbers.layers:
        raise UnsupportedError("TransformerLens needs a layer", [Problem("the network", "has no heads")])
    blocks = [
        Block(str(i), tuple(r.name for r in layer.roles), layer.query, layer.key, layer.value, layer.output)
        for i, layer in enumerate(numbers.layers)
    ]
    ends = {"embed": numbers.tokens, "pos_embed": numbers.positions, "unembed": numbers.unembedding.T}
    dtype, causal = getattr(torch, numbers.dtype), network.program.causal
    bridge = boot(library, blocks, ends, len(numbers.positions), dtype, causal)
    bridge.embed.register_forward_pre_hook(_NeedsBos(len(network.vocabulary)))
    bridge.loss_fn = _no_loss
    most = max(len(block.heads) for block in blocks)
    heads = tuple((*block.heads, *["unused"] * (most - len(block.heads))) for block in blocks)
    return _compared(TokenLens(bridge, network, heads))


def _compared(lens: TokenLens) -> TokenLens:
    """The same with its largest difference to the network; an error if an output token differs."""
    worst, count = 0.0, 0
    for ids in sequences_of(lens.network):
        with torch.no_grad():
            expected, found = lens.network(ids), lens(ids)
        if not torch.equal(expected.argmax(-1), found.argmax(-1)):
            raise ExportError(
                f"TransformerLens returns other tokens for sequences of {ids.shape[1]}: use version 4.0 to 4.3"
            )
        worst, count = max(worst, float((expected - found).abs().max())), count + len(ids)
    return replace(lens, difference=worst, compared=count)
