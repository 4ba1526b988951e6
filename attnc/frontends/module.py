"""module_to_program: a trained torch module, as the exact map that its numbers define."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx, nn

from attnc.domain import Box
from attnc.errors import Problem, UnsupportedError
from attnc.frontends.agree import disagreement
from attnc.frontends.builder import Builder
from attnc.frontends.layers import SUPPORTED
from attnc.frontends.problems import DTYPES, Inspection, inspected
from attnc.frontends.trace import preserved, traced
from attnc.frontends.translate import Translator
from attnc.program import Affine, Program
from attnc.program.steps import Shape


def module_to_program(model: nn.Module, shape: Shape, box: Box | None = None) -> Program:
    """The program of a module in eval mode, for inputs of a shape (without the batch axis).

    Its numbers are the module's, as they are stored, taken as exact; numbers in the code (a slope, an alpha, x * 0.1)
    are the floats that python holds. Whatever is not understood is refused, and all of it is listed.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).eval()
    >>> [step.kind for step in module_to_program(model, (4,)).steps]
    ['affine', 'pointwise', 'affine']
    >>> module_to_program(nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1)).eval(), (3,))
    Traceback (most recent call last):
        ...
    attnc.errors.UnsupportedError: Sequential cannot be made into a program (supported modules: Linear, ...):
      - 0 (Linear): takes 4 features, and gets the shape (3,)
      - 1 (Softmax): is not supported: leave it off and compile the logits
    """
    seen = inspected(model)
    problems = list(seen.problems)
    program = None
    if "" not in seen.opaque:
        builder = Builder(shape, _dtype(model))
        program = _built(model, seen, builder, problems)
        problems += [p for p in builder.problems if p not in problems]
    if program is not None and not problems:
        with preserved(model, problems):
            found = disagreement(model, program, box)
        problems += [found] if found else []
    if problems or program is None:
        unknown = any("is not supported" in p.reason for p in problems)
        what = f"{type(model).__name__} cannot be made into a program"
        raise UnsupportedError(f"{what} (supported modules: {SUPPORTED})" if unknown else what, problems)
    return program


def _built(model: nn.Module, seen: Inspection, builder: Builder, problems: list[Problem]) -> Program | None:
    with preserved(model, problems):
        graph = traced(model)
    if isinstance(graph, Problem):
        problems.append(graph)
        return None
    output = Translator(builder, graph[0], seen.opaque).output(graph[1])
    if output is None or builder.problems or problems:
        return None
    program = builder.program(output)
    if not any(isinstance(step, Affine) for step in program.steps):
        reason = "is empty" if _is_empty(graph[1]) else "has no linear layer between input and output"
        problems.append(
            Problem(
                f"the model ({type(model).__name__})",
                f"{reason}: give a network with nn.Linear layers; for a function alone there is attnc.head",
            )
        )
    return program


def _is_empty(graph: fx.Graph) -> bool:
    return all(node.op in ("placeholder", "output") for node in graph.nodes)


def _dtype(model: nn.Module) -> np.dtype[np.floating]:
    """That of the first tensor of floating point; a mixture is reported elsewhere."""
    dtypes = [t.dtype for t in (*model.parameters(), *model.buffers()) if t.dtype in DTYPES]
    return np.dtype(np.float64 if dtypes and dtypes[0] is torch.float64 else np.float32)
