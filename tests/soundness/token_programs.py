"""Random token programs."""

from __future__ import annotations

import itertools
import random

from attnc.errors import InputError
from attnc.tokens import ProgramBuilder, Variable, Where, program

PREDICATES = ("==", "!=", "<", "<=", ">", ">=")


def random_program(seed: int) -> tuple[ProgramBuilder, Variable]:
    """A program of a few random variables; the last of them that can be an output is the output."""
    draw = random.Random(seed)
    size, length = draw.choice(((2, 4), (3, 3), (2, 5), (4, 2), (1, 4)))
    p = program(range(size) if draw.random() < 0.6 else "abcd"[:size], length, causal=draw.random() < 0.5)
    variables = [p.tokens, p.indices]
    for _ in range(draw.randint(1, 5)):
        try:
            variables.append(_variable(p, variables, draw))
        except InputError:
            continue
    return p, next(v for v in reversed(variables) if _is_output(v))


def _is_output(v: Variable) -> bool:
    return all(isinstance(x, (str, int)) for x in v.domain)


def _numbers(variables: list[Variable]) -> list[Variable]:
    return [v for v in variables if all(type(x) is int for x in v.domain)]


def _variable(p: ProgramBuilder, variables: list[Variable], draw: random.Random) -> Variable:
    kind = draw.choice(
        ("get", "get", "get", "count", "count", "mean", "map", "map", "sum", "exists", "length")
    )
    value = draw.choice([v for v in variables if _is_output(v)])
    if kind == "get":
        default = draw.choice(
            (None, value.domain[0], "-" if isinstance(value.domain[0], str) else 7, value.domain[-1])
        )
        prefer = draw.choice((None, None, draw.choice(_numbers(variables))))
        return p.get(
            _where(p, variables, draw), value, default, draw.choice((None, "first", "last", "last")), prefer
        )
    if kind == "count":
        return p.count(_where(p, variables, draw))
    if kind == "exists":
        return p.exists(_where(p, variables, draw))
    if kind == "length":
        return p.indices.map(lambda i: i % 2 == 0) if p.known.causal else p.length
    if kind == "mean":
        return p.mean(_where(p, variables, draw), draw.choice(_numbers(variables)), draw.randint(-1, 1))
    if kind == "sum":
        a, b = draw.choice(_numbers(variables)), draw.choice(_numbers(variables))
        return draw.randint(-2, 2) * a + draw.choice((-1, 1)) * b + draw.randint(-2, 2)
    args = [draw.choice(variables) for _ in range(draw.choice((1, 1, 2)))]
    values = draw.choice(((0, 1), ("x", "y", "z"), (True, False), (-1, 0, 3)))
    table = {xs: draw.choice(values) for xs in itertools.product(*(v.domain for v in args))}
    return p.map(lambda *xs: table[xs], *args)


def _where(p: ProgramBuilder, variables: list[Variable], draw: random.Random) -> Where:
    found = p.condition(True)
    for _ in range(draw.choice((0, 1, 1, 1, 2))):
        key, query = draw.choice(variables), draw.choice(variables)
        sign = draw.choice(PREDICATES)
        kind = draw.random()
        if kind < 0.25:
            key = query = p.indices
        table = {pair: draw.random() < 0.4 for pair in itertools.product(key.domain, query.domain)}
        if kind < 0.5:
            shift = draw.choice((-1, 0, 1)) if all(type(x) is int for x in query.domain) else 0
            compared = query.q + shift if shift else query.q
            found &= {"==": key == compared, "!=": key != compared}.get(sign, key == compared)
        elif kind < 0.8:
            found &= p.select(key, query, lambda k, q, table=table: table[k, q])
        else:
            found &= (
                key == draw.choice(key.domain)
                if draw.random() < 0.5
                else query.q != draw.choice(query.domain)
            )
    return found
