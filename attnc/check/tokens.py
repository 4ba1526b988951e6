"""The checker of token networks: for every sequence the largest logit is that of the program's output.

It reads the stored matrices and the program, and enumerates no sequences. Layer by layer it derives every coordinate of the
stream as a function of few variables with finite domains (`check/token_states.py`, `check/token_heads.py`). At last the
unembedding must separate the classes for every assignment of the variables that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from attnc.arithmetic import ARITHMETIC, probe_tokens
from attnc.check.token_heads import HeadChecker, HeadMatrices
from attnc.check.token_sizes import check_counts
from attnc.check.token_states import Exact, Meaning, Stream, chunks
from attnc.check.values import CheckError
from attnc.domain import Sequences
from attnc.program.tokens import Get, TokenProgram
from attnc.records.certificate import Certificate, Status, Verdict
from attnc.records.fields import DAMAGE, seal
from attnc.records.numbers import listed
from attnc.records.tokens import HeadRole, TokenNumbers, program_to_json

_LOGITS = 1 << 22  # held at once


@dataclass(frozen=True)
class TokenProof:
    """`margin`: the executed logit of the output exceeds all others by at least this; `states`: how many pairs were checked."""

    margin: float
    states: int


def check_tokens(program: TokenProgram, numbers: TokenNumbers, certificate: Certificate) -> Verdict:
    """Prove again what the certificate of a token network states. The verdict has no bound: it is about tokens."""
    try:
        _check_claims(program, numbers, certificate)
        proof = prove_tokens(program, numbers)
        if type(certificate.facts["states"]) is not int or certificate.facts["states"] != proof.states:
            raise CheckError(
                f"the certificate states {certificate.facts['states']} pairs of states: it took {proof.states}"
            )
        if certificate.facts["margin"] > proof.margin:
            raise CheckError(
                f"the certificate states a margin of {certificate.facts['margin']:g}: {proof.margin:g} is proved"
            )
    except CheckError as problem:
        return problem.verdict(None)
    except DAMAGE as problem:
        reason = f"the matrices do not fit the program: {type(problem).__name__}: {problem}"
        return Verdict(Status.UNKNOWN, reason)
    heads = sum(len(layer.roles) for layer in numbers.layers)
    sizes = f"{len(numbers.layers)} layers, {heads} heads, {proof.states:,} pairs of states"
    reason = f"every output token is the program's: {sizes}"
    return Verdict(Status.PROVED, reason, cells=proof.states)


def prove_tokens(program: TokenProgram, numbers: TokenNumbers) -> TokenProof:
    """Prove that the network computes the program; raises `CheckError` with the reason if that fails."""
    if (seen := probe_tokens(numbers.dtype)) is not None:
        raise CheckError(f"the arithmetic of this machine is not as assumed: {seen}")
    sizes = len(numbers.tokens), len(numbers.positions), numbers.unembedding.shape[1]
    expected = len(program.vocabulary) + 1, program.length + 1, len(program.domains[program.output])
    if sizes != expected:
        raise CheckError(f"tokens, positions and classes are {sizes}: the program needs {expected}")
    arithmetic = ARITHMETIC[numbers.dtype]
    stream = Stream(Meaning(program), numbers.tokens, numbers.positions, arithmetic)
    check_counts(stream, numbers.layers, numbers.unembedding)
    checker = HeadChecker(stream)
    proved: set[int] = set()
    for i, layer in enumerate(numbers.layers):
        written = []
        for h, role in enumerate(layer.roles):
            matrices = HeadMatrices(layer.query[h], layer.key[h], layer.value[h], layer.output[h])
            try:
                written += checker.check(role, matrices)
            except CheckError as problem:
                raise CheckError(f"layer {i}, head {h} ({_called(program, role)}): {problem}") from None
            if role.node is not None:
                proved.add(role.node)
        for coordinate, column, bos in written:
            stream.add(coordinate, column, bos)
    _check_defined(program, proved)
    margin, states = _separated(stream, program, numbers)
    return TokenProof(margin, checker.pairs + states)


def _called(program: TokenProgram, role: HeadRole) -> str:
    """The name of a head; of one for a variable without a name, the expression."""
    at = role.node
    if at is None or not 0 <= at < len(program.nodes) or program.names[at]:
        return role.name
    return program.title(at)


def _check_defined(program: TokenProgram, proved: set[int]) -> None:
    """Every node that the output reads has a value for every sequence. The heads prove it for their nodes, the interpreter
    for positional ones; another node must have a default, and a value that does not depend on the choice of a key."""
    for at in program.closure(program.output) - proved:
        node = program.nodes[at]
        if isinstance(node, Get) and not program.positional[at]:
            one = node.tie is not None or len(program.domains[node.value]) == 1
            if node.default is None or not one:
                raise CheckError(
                    f"{program.title(at)} may select no key, or several, and has no head: give default= and tie="
                )


def _separated(stream: Stream, program: TokenProgram, numbers: TokenNumbers) -> tuple[float, int]:
    """The least distance of the executed logit of the output to the others, rounded down; it must be positive."""
    meaning, matrix = stream.meaning, numbers.unembedding
    states = meaning.states(stream.variables(matrix) | meaning.variables(program.output))
    classes, least = matrix.shape[1], None
    if classes == 1:
        return 0.0, states.count
    every = states.count
    states, _ = stream.distinct(matrix, states, meaning.place(program.output, states))
    for part in chunks(states, max(1, _LOGITS // classes)):
        logits, y = stream.read(matrix, part), meaning.place(program.output, part)
        rows = np.arange(part.count)
        others: Exact = logits.hi.copy()
        others[rows, y] = logits.lo.min()
        others[rows, y] = others.min(1)
        margin = (logits.lo[rows, y] - others.max(1)).min()
        least = margin if least is None else min(least, margin)
    if least is None or not least > 0:
        raise CheckError("the logit of the output is not always the largest")
    near = float(least)
    return near if Fraction(near) <= least else float(np.nextafter(near, 0.0)), every


def _check_claims(program: TokenProgram, numbers: TokenNumbers, certificate: Certificate) -> None:
    """What the certificate states beside the claim that is proved."""
    domain = Sequences(len(program.vocabulary), program.length)
    program_seal = seal(program_to_json(program))
    if certificate.subject != "tokens" or not certificate.proved:
        raise CheckError(f"it has a certificate of a {certificate.subject}, {certificate.status}")
    if certificate.holds_for != domain or certificate.dtype != numbers.dtype:
        raise CheckError(
            f"the certificate is for {certificate.holds_for}, {certificate.dtype}: expected {domain}"
        )
    if (certificate.bound, certificate.approximation, certificate.rounding) != (0.0, 0.0, 0.0):
        raise CheckError("the certificate of a token network has bounds of 0")
    found = {**numbers.digests(), "program": program_seal}
    changed = sorted(
        n for n in found.keys() | certificate.digests if found.get(n) != certificate.digests.get(n)
    )
    if changed:
        raise CheckError(f"changed since it was certified: {listed(changed, len(found))}")
    if certificate.facts["layers"] != [len(layer.roles) for layer in numbers.layers]:
        raise CheckError("the certificate states other layers")
    if certificate.facts["program"] != program_seal or certificate.children:
        raise CheckError("the certificate states another program, or parts")
