"""A certificate: a tree of statements about errors, with a seal that shows edits; and the verdict of a check."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import torch

from attnc.domain import Box, Domain, Interval, Tokens
from attnc.errors import CertificateError, InputError
from attnc.records.cards import bound_name, card, folded, table
from attnc.records.domain_text import assumed_text, domain_text
from attnc.records.domains import domain_from_json, domain_to_json
from attnc.records.facts import FACTS, MEASURED_FACTS, PROVED_FACTS
from attnc.records.fields import (
    DAMAGE,
    at_most,
    check_types,
    checked_record,
    round_up,
    seal,
    unsealed,
    with_fields,
)
from attnc.records.held import Held
from attnc.records.numbers import TENSORS

FORMAT = 3
TERMS = ("approximation", "rounding", "bound")
HALF = ("bfloat16", "float16")  # dtypes whose rounding nothing is claimed of
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # of token ids


class Status(str, Enum):
    """What is known of an error bound.

    >>> Status.PROVED == "proved", Status.PROVED
    (True, 'proved')
    """

    PROVED = "proved"
    MEASURED = "measured"  # at samples: larger errors may exist elsewhere
    UNKNOWN = "unknown"
    REFUTED = "refuted"

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Witness:
    """An input and the error of the executed output there, evaluated in high precision: the bound cannot be smaller."""

    input: tuple[float, ...]
    output: int  # the coordinate of the output with this error
    error: float

    def __post_init__(self) -> None:
        check_types(vars(self), {"input": tuple, "output": int, "error": float})
        numbers = all(type(x) is float and math.isfinite(x) for x in self.input)
        if not numbers or min(self.error, self.output) < 0:
            raise CertificateError(f"{self}: expected finite floats, and no negative error or output")

    @classmethod
    def from_json(cls, record: object) -> Witness:
        body = checked_record(cls, record)
        check_types(body, {"input": list})
        return cls(**{**body, "input": tuple(body["input"])})


_OF_MODELS = (
    (
        "bound of",
        "one converted part, the one with the largest bound, given its input; not of the model's output",
    ),
    ("whole model", "for given inputs: report.for_input(...)"),
)
WITNESSED = ("head", "network")  # the checker executes them at their witnesses


@dataclass(frozen=True, kw_only=True, repr=False)
class Certificate(Held):
    """In every output |executed - exact meaning| <= bound, for every input of `holds_for` that the dtype can represent.

    `approximation` bounds the error in exact arithmetic, `rounding` what execution in `dtype` adds. If `status` is MEASURED,
    `bound` is the largest error that was seen, or a bound for a domain that was measured. `children` are the certificates of
    the parts: layers of a network, heads of a layer, blocks of a model. `digests` identify the numbers that it is about.
    """

    subject: str
    name: str = ""
    status: Status
    approximation: float
    rounding: float
    bound: float
    holds_for: Domain | None = None  # None: the children have domains
    dtype: str
    witness: Witness | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    children: tuple[Certificate, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        types: dict[str, type] = {"status": Status, "children": tuple}
        types |= dict.fromkeys(("subject", "name", "dtype"), str)
        unclaimed = self._rounding_unclaimed()
        if self.status is not Status.UNKNOWN:
            types |= dict.fromkeys(("approximation",) if unclaimed else TERMS, float)
        check_types(vars(self), types)
        if min(self.bound, self.approximation, self.rounding) < 0:
            raise CertificateError(f"{self.title}: the bound and its terms must not be negative")
        if self.dtype not in ("float32", "float64", "mixed", *(HALF if unclaimed else ())):
            raise CertificateError(f"{self.title}: dtype is {self.dtype!r}, expected float32 or float64")
        for mapping in (self.digests, self.versions):
            if not isinstance(mapping, dict) or {type(x) for pair in mapping.items() for x in pair} - {str}:
                raise CertificateError(f"{self.title}: digests and versions must map names to strings")
        if self.subject not in FACTS or not isinstance(self.facts, dict):
            raise CertificateError(f"subject {self.subject!r}: expected one of {', '.join(FACTS)}")
        if self.status is not Status.UNKNOWN and not unclaimed:
            more = (MEASURED_FACTS if self.status is Status.MEASURED else PROVED_FACTS).get(self.subject, {})
            check_types(self.facts, FACTS[self.subject] | more)
        seal(self.facts)  # raises unless they are JSON values
        self._check_parts()

    def _total(self) -> float:
        return round_up(math.nextafter(self.approximation + self.rounding, math.inf))

    def _rounding_unclaimed(self) -> bool:
        """Whether nothing is claimed of rounding: that of an unknown error, and of parts in half precision. Those of a measured
        domain keep that status."""
        parts = self.subject in ("block", "model") and self.dtype in (*HALF, "mixed")
        known = self.status is Status.UNKNOWN or (self.status is Status.MEASURED and parts)
        return known and self.rounding == self.bound == math.inf

    def _check_parts(self) -> None:
        if not all(isinstance(child, Certificate) for child in self.children):
            raise CertificateError(f"{self.title}: children must be certificates")
        if self.subject == "lookup" and "assumed" in self.facts:
            with_fields("what is assumed", self.facts["assumed"], {"lipschitz", "noise"})
            check_types(self.facts["assumed"], {"lipschitz": float, "noise": float})
        if self.proved and not all(child.proved for child in self.children):
            raise CertificateError(f"{self.title}: it cannot be proved if a part is not")
        if self.witness is not None and self.subject not in WITNESSED:
            raise CertificateError(f"{self.title}: only a {' or a '.join(WITNESSED)} has a witness")
        if self.status is Status.UNKNOWN:
            return
        if self.proved and not self.bound <= (total := self._total()):
            raise CertificateError(f"{self.title}: the bound {self.bound:g} exceeds {total:g}, its terms")
        if self.subject == "head" and set(self.digests) != set(TENSORS):
            raise CertificateError(f"{self.title}: expected digests of {TENSORS}, got {sorted(self.digests)}")
        if self.subject == "layer" and len(self.facts["neurons"]) != len(self.children):
            raise CertificateError(f"{self.title}: {len(self.children)} heads, but other neurons")
        if self.witness is not None and isinstance(self.holds_for, (Interval, Box)):
            interval = isinstance(self.holds_for, Interval)
            size = self.holds_for.size if isinstance(self.holds_for, Box) else 1
            if len(self.witness.input) != size or (interval and self.witness.output != 0):
                raise CertificateError(f"{self.title}: the witness {self.witness} does not fit the domain")

    @classmethod
    def unknown(cls, subject: str, dtype: str, **facts: Any) -> Certificate:
        """The certificate of something whose error is neither proved nor measured.

        >>> Certificate.unknown("head", "float32").bound
        inf
        """
        terms: dict[str, Any] = dict.fromkeys(("approximation", "rounding", "bound"), math.inf)
        return cls(subject=subject, status=Status.UNKNOWN, dtype=dtype, facts=facts, **terms)

    @property
    def title(self) -> str:
        """The kind of the subject and its name."""
        if self.subject == "learner":
            return f"{'solver' if self.name == 'ridge regression' else 'learner'}: {self.name}"
        return f"{self.subject} {self.name}".rstrip()

    @property
    def proved(self) -> bool:
        return self.status is Status.PROVED

    @property
    def error(self) -> float | None:
        """The largest error that was seen."""
        return None if self.witness is None else self.witness.error

    @property
    def quality(self) -> float:
        """bound / largest error seen: the factor by which a proved bound may be too large (1 is perfect). Else infinite."""
        return self.bound / self.error if self.proved and self.error else math.inf

    @property
    def interval(self) -> Interval:
        """`holds_for` of a head."""
        if not isinstance(self.holds_for, Interval):
            raise CertificateError(f"{self.title} holds for {self.holds_for}, not for an interval")
        return self.holds_for

    @property
    def box(self) -> Box:
        """`holds_for` of a network."""
        if not isinstance(self.holds_for, Box):
            raise CertificateError(f"{self.title} holds for {self.holds_for}, not for a box")
        return self.holds_for

    @property
    def claims(self) -> Certificate | None:
        """What is proved of the layers of a network: itself, or the certificate against a network that was fitted to f."""
        return next(iter(self.parts("network")), self if self.proved else None)

    @property
    def fraction(self) -> float:
        """Of a network with a measured error: with `confidence`, at most this fraction of the box has a larger error.

        If a fraction q had one, N independent inputs would all miss it with probability (1 - q)^N, which is 1 - confidence for

            q = 1 - (1 - confidence)^(1/N)"""
        return float(1 - (1 - self.facts["confidence"]) ** (1 / self.facts["points"]))

    def covers(self, x: torch.Tensor) -> bool:
        """Whether the statement holds for every input of a batch: inside the domain, not NaN, of the certified dtype."""
        if not isinstance(x, torch.Tensor):
            raise InputError(f"covers takes a tensor: got {type(x).__name__}")
        if isinstance(self.holds_for, Tokens) and x.dtype in INTEGERS:
            x = x.to(getattr(torch, self.dtype))
        if x.dtype != getattr(torch, self.dtype, None):
            return False
        if isinstance(self.holds_for, Box):
            return bool(self.holds_for.contains(x).all())
        wide = x.detach().to(torch.float64)
        return bool(((wide >= self.interval.lo) & (wide <= self.interval.hi)).all())

    def parts(self, subject: str) -> tuple[Certificate, ...]:
        """The children of one kind."""
        return tuple(child for child in self.children if child.subject == subject)

    def walk(self) -> Iterator[Certificate]:
        """The certificate and all below it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def seal(self) -> str:
        """The SHA-256 of everything that the certificate states."""
        return seal(self._body())

    def to_json(self) -> dict[str, Any]:
        """A JSON object with a seal; `from_json` reads it."""
        body = {"format": FORMAT, **self._body()}
        return {**body, "seal": seal(body)}

    def _body(self) -> dict[str, Any]:
        witness = self.witness and vars(self.witness) | {"input": list(self.witness.input)}
        body = {f.name: getattr(self, f.name) for f in fields(self)}
        body |= {term: None for term in TERMS if body[term] == math.inf}  # JSON has no infinity
        body |= {"status": self.status.value, "holds_for": domain_to_json(self.holds_for), "witness": witness}
        return body | {"children": [child._body() for child in self.children]}

    @classmethod
    def from_json(cls, record: object) -> Certificate:
        """Read the result of `to_json`; raises if it was edited, or if a field is missing or unknown."""
        body = unsealed(record, "a certificate")
        if repr(body.pop("format", None)) != repr(FORMAT):  # not 3.0
            raise CertificateError(f"this version of attnc reads certificates of format {FORMAT}")
        return cls._from_body(body)

    @classmethod
    def _from_body(cls, record: object) -> Certificate:
        body = dict(checked_record(cls, record))
        check_types(body, {"children": list})
        try:
            body["status"], body["holds_for"] = Status(body["status"]), domain_from_json(body["holds_for"])
            if body["status"] in (Status.UNKNOWN, Status.MEASURED):
                body |= {term: math.inf for term in TERMS if body[term] is None}
            body["witness"] = None if body["witness"] is None else Witness.from_json(body["witness"])
            return cls(**body | {"children": tuple(map(cls._from_body, body["children"]))})
        except DAMAGE as problem:
            raise CertificateError(f"the certificate has a field of another type: {problem}") from problem

    def rows(self) -> list[tuple[str, str]]:
        """The at most five lines of the printed certificate; seven for a converted model, which say what its bound is about. One
        more if it does not apply to its module as that is now."""
        terms = f"approximation {at_most(self.approximation)}, rounding {at_most(self.rounding)}"
        seen = f"largest error seen {self.error:.3g}" if self.error is not None else ""
        if self._rounding_unclaimed() or self.status is Status.UNKNOWN:
            bound = "the error is neither proved nor measured"
            if math.isfinite(self.approximation):
                bound = f"approximation {at_most(self.approximation)} in exact arithmetic; rounding is not bounded"
        elif self.subject == "tokens":
            bound = "at every position the largest logit is that of the program's output, for every sequence"
            if not self.proved:
                bound = f"not proved; {self.facts['wrong']} of {self.facts['points']:,} sequences are wrong"
        elif self.status is Status.MEASURED and "points" in self.facts:
            bound = f"not proved; {seen} at {self.facts['points']:,} inputs"
        else:
            error = "executed/exact - 1" if self.facts.get("relative") is True else "executed - exact"
            bound = f"|{error}| <= {at_most(self.bound)} ({terms})"
        lapsed = self.why_lapsed()
        rows = [("certificate", self.title), ("status", str(self.status)), ("bound", bound)]
        if lapsed is not None:
            said = f"does not apply to the module as it is now; it was {self.status}"
            rows[1:2] = [("status", said), ("reason", lapsed)]
        rows += _OF_MODELS if self.subject == "model" else ()
        domain = "" if self.holds_for is None else f"{domain_text(self.holds_for)}, "
        if self.status is Status.MEASURED and isinstance(self.holds_for, (Interval, Box)):
            domain = domain.replace("every input of", "the inputs that were tried in", 1)
        given = [part.facts.get("assumed") for part in self.walk() if part.subject == "lookup"]
        rows.append(("holds for", f"{domain}{self.dtype}{assumed_text(given)}"))
        below = [c.subject for c in self.walk()][1:]
        counts = {kind: below.count(kind) for kind in FACTS}
        parts = ", ".join(f"{n} {kind}{'s' * (n != 1)}" for kind, n in counts.items() if n)
        last = "; ".join(part for part in (seen if bound.startswith("|") else "", parts) if part)
        return [*rows, ("details", last)] if last else rows

    def __str__(self) -> str:
        return "\n".join(f"{name + ':':<13}{text}" for name, text in self.rows())

    def __repr__(self) -> str:
        bound = "largest error seen" if self.status is Status.MEASURED and "points" in self.facts else "bound"
        lapsed = "" if self.why_lapsed() is None else "does not apply to the module as it is now, was "
        about = f"{self.title!r}, {lapsed}{self.status}, {bound}={self.bound:.4g}"
        return f"Certificate({about}, holds_for={self.holds_for}, dtype={self.dtype!r})"

    def _repr_html_(self) -> str:
        (_, title), (_, status), *others = self.rows()
        lapsed = others.pop(0) if others[0][0] == "reason" else None
        (_, bound), *others = others
        if lapsed is not None:
            status, bound, others = (
                "not certified",
                lapsed[1],
                [("it was", f"{self.status}: {bound}"), *others],
            )
        return card(f"certificate: {title}", status, bound, others, "", self._parts_html())

    def _parts_html(self) -> str:
        if not self.children:
            return ""
        rows = [[part.title, str(part.status), dict(part.rows())["bound"]] for part in self.children]
        count = f"{len(rows)} part{'s' * (len(rows) != 1)}"
        return folded(count, table(("part", "status", "bound"), rows))


@dataclass(frozen=True)
class Verdict:
    """The result of a check: `status` is PROVED, REFUTED (`input` has the error `error`) or UNKNOWN; `reason` explains it.

    A verdict is true if it is PROVED. `children` has one verdict for each part, for instance for each block of a model.

    >>> bool(Verdict(Status.PROVED, "1 layer")), bool(Verdict(Status.UNKNOWN, "no certificate"))
    (True, False)
    """

    status: Status
    reason: str
    bound: float | None = None
    input: tuple[float, ...] | None = None
    error: float | None = None
    cells: int = 0
    name: str = ""  # of the part
    exact: bool = False  # whether the bound is that of exact arithmetic: nothing is said of rounding
    children: tuple[Verdict, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))

    def __bool__(self) -> bool:
        return self.status is Status.PROVED

    def __str__(self) -> str:
        return f"{self.name + ': ' if self.name else ''}{self.status}: {self.reason}"

    def _repr_html_(self) -> str:
        facts = [(bound_name(bool(self), self.exact), "" if self.bound is None else at_most(self.bound))]
        facts.append(("error there", "" if self.error is None else f"{self.error:.6g}"))
        rows = [[part.name, str(part.status), part.reason] for part in self.children]
        parts = folded(f"{len(rows)} parts", table(("part", "status", "reason"), rows)) if rows else ""
        title = f"verdict{': ' + self.name if self.name else ''}: the independent checker"
        return card(title, str(self.status), self.reason, facts, "", parts)
