"""MEANING: what a network computes in exact arithmetic, before attention."""

from attnc.program.program import Program
from attnc.program.steps import Affine, Combine, Lookup, Normalise, Opaque, Pointwise, Reshape, Step

__all__ = ["Affine", "Combine", "Lookup", "Normalise", "Opaque", "Pointwise", "Program", "Reshape", "Step"]
