"""A literal network as a record, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from attnc.errors import FileError
from attnc.network.literal.layout import Layout
from attnc.network.literal.network import Input, SelfAttentionNetwork
from attnc.network.literal.steps import LETTERS, Embedding, SelfAttention, SequenceMap, Softmax, Step
from attnc.program.step import Numbers
from attnc.records.domains import domain_from_json
from attnc.records.literal import LiteralRecord


def literal_from_record(record: LiteralRecord) -> SelfAttentionNetwork:
    """The network that a record describes."""
    s, t = record.structure, record.tensors
    try:
        inputs = [
            Input(
                i["name"],
                tuple(i["shape"]),
                i["width"],
                math.inf if i["limit"] is None else i["limit"],
                i["values"],
            )
            for i in s["inputs"]
        ]
        steps = [_step(step, _under(f"steps.{k}.", t), record.dtype) for k, step in enumerate(s["steps"])]
        embeddings = [
            Embedding(e["name"], e["reads"], t[f"embeddings.{k}.W"], t[f"embeddings.{k}.start"], record.dtype)
            for k, e in enumerate(s["embeddings"])
        ]
        register, shape, embedding = s["output"]
        literal = SelfAttentionNetwork(
            s["form"], inputs, [(name, steps[i]) for name, i in s["order"]], Layout.from_json(s["layout"]),
            (register, None if shape is None else tuple(shape), embedding), record.dtype, embeddings=embeddings,
            fixed=t["fixed"], arrangement=s["arrangement"], domain=cast(Any, domain_from_json(s["domain"])),
            limits=s["limits"], strict=s["strict"], source=record.source, encoding=record.encoding,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        raise FileError(f"the literal network is not valid: {type(problem).__name__}: {problem}") from problem
    if literal.record().certificate.digests != record.certificate.digests:
        raise FileError("the literal network is not valid: its parts do not fit together")
    return literal


def _step(s: Mapping[str, Any], t: Mapping[str, Numbers], dtype: str) -> Step:
    layout = Layout.from_json(s["layout"])
    if s["kind"] == "attention":
        return SelfAttention({name: t[name] for name in LETTERS}, s["shared"], s["heads"], layout, dtype)
    if s["kind"] == "map":
        at = t["rows"].astype(np.int64), t["columns"].astype(np.int64)
        return SequenceMap(
            t["core"], t["bias"], tuple(s["in_shape"]), tuple(s["out_shape"]), layout, dtype, at
        )
    return Softmax(s["axis"], layout)


def _under(prefix: str, arrays: Mapping[str, Numbers]) -> dict[str, Numbers]:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
