"""Mutations of the front ends, of the modules that run and of the conversion of pretrained models."""

from __future__ import annotations

from mutations.mutation import Mutation

BORDERS: list[Mutation] = []
