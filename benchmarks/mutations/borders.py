"""Mutations of the front ends, of the modules that run and of the conversion of pretrained models."""

from __future__ import annotations

from mutations.borders_blocks import BORDERS_BLOCKS
from mutations.borders_compile import BORDERS_COMPILE
from mutations.borders_convert import BORDERS_CONVERT
from mutations.borders_reading import BORDERS_READING
from mutations.borders_running import BORDERS_RUNNING
from mutations.mutation import Mutation

BORDERS: list[Mutation] = [
    *BORDERS_READING,
    *BORDERS_BLOCKS,
    *BORDERS_COMPILE,
    *BORDERS_CONVERT,
    *BORDERS_RUNNING,
]
