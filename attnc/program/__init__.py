"""MEANING: what a model computes in exact arithmetic, before it becomes attention. One file for each kind of step."""

from attnc.program.attend import Attend
from attnc.program.linear import Affine, BatchNorm, Combine, Reshape
from attnc.program.lookup import BlackBox, Lookup
from attnc.program.norm import Norm
from attnc.program.pointwise import Pointwise
from attnc.program.product import Product
from attnc.program.program import Program
from attnc.program.step import Step

KINDS: dict[str, type[Step]] = {
    step.kind: step
    for step in (Affine, Attend, BatchNorm, BlackBox, Combine, Lookup, Norm, Pointwise, Product, Reshape)
}

__all__ = [
    "KINDS", "Affine", "Attend", "BatchNorm", "BlackBox", "Combine", "Lookup", "Norm", "Pointwise", "Product", "Program",
    "Reshape", "Step",
]  # fmt: skip
