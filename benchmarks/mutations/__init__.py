"""All mutations, by area."""

from __future__ import annotations

from mutations.blocks import BLOCKS
from mutations.borders import BORDERS
from mutations.check_heads import CHECK_HEADS
from mutations.check_learners import CHECK_LEARNERS
from mutations.check_networks import CHECK_NETWORKS
from mutations.check_traced import CHECK_TRACED
from mutations.exports import EXPORTS
from mutations.heads import HEADS
from mutations.inputs import INPUTS
from mutations.learners import LEARNERS
from mutations.lookups import LOOKUPS
from mutations.mutation import Mutation, StaleMutationError
from mutations.networks import NETWORKS
from mutations.records import RECORDS
from mutations.tokens import TOKENS
from mutations.traced import TRACED_FUNCTIONS
from mutations.transformers import TRANSFORMERS
from mutations.windows import WINDOWS

MUTATIONS: list[Mutation] = [
    *HEADS,
    *CHECK_HEADS,
    *NETWORKS,
    *CHECK_NETWORKS,
    *CHECK_TRACED,
    *LOOKUPS,
    *WINDOWS,
    *BLOCKS,
    *INPUTS,
    *LEARNERS,
    *CHECK_LEARNERS,
    *RECORDS,
    *BORDERS,
    *EXPORTS,
    *TRACED_FUNCTIONS,
    *TRANSFORMERS,
    *TOKENS,
]

__all__ = ["MUTATIONS", "Mutation", "StaleMutationError"]
