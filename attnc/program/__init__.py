"""MEANING: what a network computes in exact arithmetic, before attention."""

from attnc.program.program import Program
from attnc.program.steps import Affine, Combine, Normalise, Pointwise, Reshape, Step

__all__ = ["Affine", "Combine", "Normalise", "Pointwise", "Program", "Reshape", "Step"]
