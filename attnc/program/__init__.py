"""MEANING: what a model computes in exact arithmetic, before it becomes attention. One file for each kind of step."""

from attnc.program.affine import Affine
from attnc.program.attend import Attend
from attnc.program.batch_norm import BatchNorm
from attnc.program.black_box import BlackBox
from attnc.program.combine import Combine
from attnc.program.embed import Embed
from attnc.program.lookup import Lookup
from attnc.program.mix import Mix
from attnc.program.norm import Norm
from attnc.program.pointwise import Pointwise
from attnc.program.product import Product
from attnc.program.program import Program
from attnc.program.reshape import Reshape
from attnc.program.scale import Scale
from attnc.program.step import Step
from attnc.program.traced import Traced

_STEPS: tuple[type[Step], ...] = (
    Affine, Attend, BatchNorm, BlackBox, Combine, Embed, Lookup, Mix, Norm, Pointwise, Product, Reshape, Scale,
    Traced,
)  # fmt: skip
KINDS = {step.kind: step for step in _STEPS}

__all__ = [
    "KINDS", "Affine", "Attend", "BatchNorm", "BlackBox", "Combine", "Embed", "Lookup", "Mix", "Norm", "Pointwise",
    "Product", "Program", "Reshape", "Scale", "Step", "Traced",
]  # fmt: skip
