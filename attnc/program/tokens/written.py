"""Nodes and conditions of a token program in words, nearly as they are written: "index == (index - 1).q"."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnc.program.tokens.nodes import Count, Get, Index, Linear, Map, Mean, Predicate, Token

if TYPE_CHECKING:
    from attnc.program.tokens.program import TokenProgram

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_DEPTH = 3  # of expressions inside of expressions that are written out


def node_text(program: TokenProgram, at: int, depth: int = _DEPTH) -> str:
    """The name of a node; without one, the expression that it stands for.

    >>> from attnc import tokens
    >>> p = tokens.program("ab", max_len=3)
    >>> sums, same = 2 * p.indices + 1, p.count(p.tokens == p.tokens.q)
    >>> node_text(p.known, sums.node), node_text(p.known, same.node)
    ('2 * index + 1', 'count(token == token.q)')
    """
    if program.names[at]:
        return program.names[at]
    node, kind = program.nodes[at], type(program.nodes[at]).__name__.lower()
    if depth == 0 or isinstance(node, (Token, Index)):
        return "…" if depth == 0 else kind
    if isinstance(node, Linear):
        return _sum(program, node, depth)
    if isinstance(node, Map):
        return _map(program, node, depth)
    assert isinstance(node, (Count, Mean, Get))
    texts = [condition_text(program, p, depth - 1) for p in node.where]
    where = " & ".join(f"({text})" for text in texts) if len(texts) > 1 else "".join(texts) or "True"
    value = "" if isinstance(node, Count) else f", {node_text(program, node.value, depth - 1)}"
    return f"{kind}({where}{value})"


def condition_text(program: TokenProgram, p: Predicate, depth: int = _DEPTH) -> str:
    """A condition: its sign, if it is a comparison of values, and the variables at the key and the query."""
    key, query = ("" if n is None else _operand(program, n, depth) for n in (p.key, p.query))
    if p.key is None or p.query is None:
        return f"{query}.q" if p.key is None else node_text(program, p.key, depth)
    columns = program.domains[p.key]
    rows = list(zip(program.domains[p.query], p.table, strict=True))
    for sign, compare in COMPARE.items():
        try:
            if all(compare(k, q) == x for q, row in rows for k, x in zip(columns, row, strict=True)):
                return f"{key} {sign} {query}.q"
        except TypeError:
            continue
    return f"predicate({key}, {query}.q)"


def _operand(program: TokenProgram, at: int, depth: int) -> str:
    """A node; a sum or a comparison in parentheses."""
    text = node_text(program, at, depth)
    operation = isinstance(program.nodes[at], (Linear, Map)) and not text.startswith("map(")
    return f"({text})" if operation and not program.names[at] and " " in text else text


def _sum(program: TokenProgram, node: Linear, depth: int) -> str:
    terms = [
        text if c == 1 else f"{c} * {text}"
        for c, text in zip(
            node.coefficients, (node_text(program, n, depth - 1) for n in node.args), strict=True
        )
    ]
    return " + ".join([*terms, str(node.constant)] if node.constant or not terms else terms).replace(
        "+ -", "- "
    )


def _map(program: TokenProgram, node: Map, depth: int) -> str:
    """A map; a comparison of one node with a value as such."""
    args = [node_text(program, n, depth - 1) for n in node.args]
    values = program.domains[node.args[0]] if len(args) == 1 else ()
    for sign, wanted in (("==", True), ("!=", False)):
        held = [v for v, x in zip(values, node.table, strict=False) if x is wanted]
        if len(held) == 1 and {type(x) for x in node.table} == {bool}:
            return f"{args[0]} {sign} {held[0]!r}"
    return f"map({', '.join(args)})"
