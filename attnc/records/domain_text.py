"""Domains and assumptions in words: "every input of [-8, 8]"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnc.domain import Ball, Context, Domain, Interval, Normed, Sequences


def domain_text(domain: Domain) -> str:
    if isinstance(domain, Context):
        sizes = ", ".join(f"|{name}| <= {limit:g}" for name, limit in domain.limits.items())
        return f"every context of up to {domain.examples:,} examples with {sizes}"
    if isinstance(domain, Ball):
        token = "every token, minus its mean as executed," if domain.centred else "every token"
        return f"{token} of {domain.features} features with a norm of at most {domain.radius:g}"
    if isinstance(domain, Sequences):
        size = f"over {domain.vocabulary} tokens ({_amount(domain.count)} sequences)"
        return f"every sequence of length 1 to {domain.length} {size}"
    if isinstance(domain, Normed):
        return f"every output of {'a LayerNorm' if domain.centred else 'an RMSNorm'} of {len(domain.gain)} features"
    return f"every input of {f'[{domain.lo:g}, {domain.hi:g}]' if isinstance(domain, Interval) else domain}"


def tested_text(domain: Sequences, points: int) -> str:
    """The sequences that a measured token network ran on.

    >>> tested_text(Sequences(vocabulary=2, length=3), 14)
    'tested on all 14 sequences of length 1 to 3 over 2 tokens'
    """
    of = f"{_amount(domain.count)} sequences of length 1 to {domain.length} over {domain.vocabulary} tokens"
    return (
        f"tested on all {of}" if points == domain.count else f"tested on {points:,} random ones of the {of}"
    )


def assumed_text(given: Sequence[Mapping[str, float] | None]) -> str:
    """What is assumed of a function that is known by values at points."""
    return "".join(
        f", if f has the Lipschitz constant {facts['lipschitz']:g} and the stored values up to {facts['noise']:.2g}"
        for facts in given[:1]
        if facts is not None
    )


def _amount(count: int) -> str:
    """A whole number, or its size if it is long.

    >>> _amount(349524), _amount(8**33)
    ('349,524', '6e+29')
    """
    return f"{count:,}" if count < 10**9 else f"{count:.0e}"
