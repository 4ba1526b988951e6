"""Token programs → networks with certificates."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import torch

from attnc.arguments import checked_dtype
from attnc.check.tokens import prove_tokens
from attnc.check.values import CheckError
from attnc.domain import Sequences
from attnc.errors import InputError, NotExactError
from attnc.lower.tokens import lower_tokens
from attnc.network.tokens import TokenNetwork, digests_of
from attnc.program.tokens import TokenProgram, Value, run
from attnc.progress import watched
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import seal, versions
from attnc.records.tokens import TokenNumbers, program_to_json

POINTS = 1000


@watched("compiling and proving a token program")
def compile_tokens(
    program: TokenProgram, dtype: torch.dtype | str = torch.float32, claim: str = "proved", seed: int = 0
) -> TokenNetwork:
    """The network of a token program, with a certificate.

    The compiler proves nothing: the certificate states what the checker proved from the finished matrices. With
    claim="measured" a network that is not proved is compared with the interpreter on `POINTS` random sequences, or on all."""
    name = checked_dtype(dtype)
    if claim not in ("proved", "measured"):
        raise InputError(f"claim={claim!r}: give 'proved', or 'measured' to allow what cannot be proved")
    try:
        numbers = lower_tokens(program, name)
        proof = prove_tokens(program, numbers)
    except RecursionError as problem:
        raise InputError(
            f"{program.title(program.output)} is computed by too long a chain of maps and sums: join some of them in one map"
        ) from problem
    except OverflowError as problem:
        raise InputError(
            f"the program has numbers beyond the range of {name}: use smaller ones, or strings"
        ) from problem
    except CheckError as problem:
        unproved = str(problem)
    else:
        facts = {"margin": proof.margin, "states": proof.states}
        return TokenNetwork(numbers, program, _certificate(program, numbers, Status.PROVED, 0.0, facts))
    if claim == "measured":
        return _measured(program, numbers, _cases(program, seed, unproved), seed, unproved)
    _cases(
        program, seed, unproved, max(10, 10**6 // program.length**2)
    )  # whether claim='measured' may be of use
    raise NotExactError(
        f"the network is not proved to be exact: {unproved}. claim='measured' compares it at random sequences instead"
    )


def _certificate(
    program: TokenProgram, numbers: TokenNumbers, status: Status, bound: float, facts: Mapping[str, object]
) -> Certificate:
    shape = {
        "program": seal(program_to_json(program)),
        "layers": [len(layer.roles) for layer in numbers.layers],
    }
    return Certificate(
        subject="tokens",
        name=program.names[program.output],
        status=status,
        approximation=0.0,
        rounding=bound,
        bound=bound,
        holds_for=Sequences(len(program.vocabulary), program.length),
        dtype=numbers.dtype,
        digests=dict(digests_of(numbers, program)),
        facts={**shape, **facts},
        versions=versions(),
    )


def _cases(
    program: TokenProgram, seed: int, reason: str, most: int = POINTS
) -> list[tuple[list[str | int], list[Value]]]:
    """Random sequences, or all if they are few, at most `most`, with the outputs of the interpreter; an error if it has none for
    one of them."""
    domain = Sequences(len(program.vocabulary), program.length)
    if domain.count <= POINTS:
        lengths = range(1, program.length + 1)
        sequences = [list(s) for n in lengths for s in itertools.product(program.vocabulary, repeat=n)]
    else:
        draw = random.Random(seed)
        sizes = [draw.randint(1, program.length) for _ in range(POINTS)]
        sequences = [[draw.choice(program.vocabulary) for _ in range(size)] for size in sizes]
    found, undefined = [], ""
    for sequence in sequences[:most]:
        try:
            found.append((sequence, run(program, sequence)))
        except InputError as problem:
            undefined = f"the program has no value for the sequence {sequence}: {problem}"
            break
    if undefined:
        raise NotExactError(
            f"the network is not proved to be exact: {reason}; {_new_advice(undefined, reason)}"
        )
    return found


def _new_advice(text: str, known: str) -> str:
    """A reason without the advice at its end, if that is known."""
    what, _, advice = text.rpartition(": ")
    repeated = any(word in advice and word in known for word in ("default", "tie="))
    return what if repeated else text


def _measured(
    program: TokenProgram,
    numbers: TokenNumbers,
    cases: Sequence[tuple[list[str | int], list[Value]]],
    seed: int,
    reason: str,
) -> TokenNetwork:
    """Compare with the interpreter. The bound is the fraction of wrong sequences."""
    network = TokenNetwork(numbers, program, None)
    wrong = sum(network.run(sequence) != expected for sequence, expected in cases)
    facts = {"points": len(cases), "seed": seed, "wrong": wrong, "reason": reason}
    measured = _certificate(program, numbers, Status.MEASURED, wrong / len(cases), facts)
    network.certificate = measured
    return network
