"""MEANING: what a model computes in exact arithmetic, before it becomes attention. One file for each kind of step."""

from attnc.program.affine import Affine
from attnc.program.batch_norm import BatchNorm
from attnc.program.black_box import BlackBox
from attnc.program.combine import Combine
from attnc.program.lookup import Lookup
from attnc.program.pointwise import Pointwise
from attnc.program.product import Product
from attnc.program.program import Program
from attnc.program.reshape import Reshape
from attnc.program.step import Step

KINDS: dict[str, type[Step]] = {
    step.kind: step for step in (Affine, BatchNorm, BlackBox, Combine, Lookup, Pointwise, Product, Reshape)
}

__all__ = [
    "KINDS", "Affine", "BatchNorm", "BlackBox", "Combine", "Lookup", "Pointwise", "Product", "Program", "Reshape", "Step",
]  # fmt: skip
