"""The facts that a certificate of each subject must state, and their types. Others may be added."""

from __future__ import annotations

FACTS: dict[str, dict[str, type]] = {
    "head": {"function": str, "design": str},
    "layer": {"function": str, "value": int, "neurons": list, "error_in": float},  # neurons: one count a head
    "lookup": {"value": int, "anchors": int},
    "network": {"program": str},
    "block": {"activation": str, "engine": str, "roundings": dict, "products": float},  # roundings: by engine
    "norm": {"kind": str, "engine": str, "features": int, "epsilon": float, "roundings": dict},
    "activation": {"activation": str, "engine": str, "roundings": dict},
    "quadratic": {"function": str, "features": int, "offset": float},
    "model": {},
    "learner": {"algorithm": str, "heads": list, "features": int},
    "literal": {},
    "tokens": {"program": str, "layers": list},  # program: the seal of its JSON; layers: heads in each
}
# Those of subjects whose error was measured (a block's bound is derived from a measured domain instead).
MEASURED_FACTS: dict[str, dict[str, type]] = {
    "head": {"points": int},
    "tokens": {"points": int, "seed": int, "wrong": int, "reason": str},
    "network": {"points": int, "seed": int, "method": str, "mean_square": float, "confidence": float},
}
PROVED_FACTS: dict[str, dict[str, type]] = {
    "head": {"precision": int, "cells": int},
    "tokens": {
        "margin": float,
        "states": int,
    },  # the least distance of logits; pairs of states that were checked
}
