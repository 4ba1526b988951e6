"""Exact arithmetic for the checker of literal networks: affine forms over rational numbers, and softmaxes of forms.

A form is a dict from atoms to rational coefficients. The atoms are ONE, the inputs ("input", i), the weights of softmaxes
("weight", index, score), products of such a weight with another atom ("weight", index, score, atom), and unknown numbers
("unknown", i). A softmax is identified by its scores minus their mean, which are numbered, so equal atoms are equal weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from attnc.check.values import CheckError

Form = dict[Hashable, Fraction]
Shape = frozenset[tuple[Hashable, Fraction]]
Argument = tuple[Form, Fraction, Fraction]  # s, lo, hi
ONE: Hashable = ()
UNDERFLOW = {"float32": 104, "float64": 746}  # exp of minus this rounds to 0
MOST_TERMS = 4_000_000


@dataclass
class Exact:
    """Arithmetic with forms, and the softmaxes that are known."""

    lo: list[Fraction]
    hi: list[Fraction]
    dtype: str
    known: dict[frozenset[tuple[Shape, int]], int] = field(default_factory=dict)
    arguments: list[Argument | None] = field(default_factory=list)
    counts: set[int] = field(default_factory=set)  # of keys, in the softmaxes that are known
    middles: dict[Hashable, float] = field(default_factory=dict)  # of the weights, as in `middle`
    scores: dict[Shape, int] = field(default_factory=dict)  # numbers of scores minus their mean
    terms: int = 0

    def sum(self, parts: Iterable[tuple[Fraction, Form]]) -> Form:
        found: Form = {}
        for factor, form in parts:
            self.terms += len(form)
            for atom, c in form.items():
                found[atom] = found.get(atom, Fraction(0)) + factor * c
        if self.terms > MOST_TERMS:
            raise CheckError(f"the network is too large to be checked: more than {MOST_TERMS:,} terms")
        return {atom: c for atom, c in found.items() if c}

    def product(self, a: Form, b: Form) -> Form:
        """One of the factors must be constant, or a weight of a softmax."""
        if set(b) <= {ONE}:
            a, b = b, a
        if set(a) <= {ONE}:
            return self.sum([(a.get(ONE, Fraction(0)), b)])
        if len(a) == 1:
            ((weight, c),) = a.items()
            if isinstance(weight, tuple) and weight[0] == "weight" and len(weight) == 3:
                return {weight if atom == ONE else (*weight, atom): c * x for atom, x in b.items()}
        raise CheckError("a score is a product of two values that depend on the input")

    def softmax(self, scores: Sequence[Form], argument: Argument | None) -> list[Form]:
        """The weights of a softmax of the source; `argument` is (s, lo, hi) if the scores are affine in s in [lo, hi]."""
        if all(score == scores[0] for score in scores):
            return [{ONE: Fraction(1, len(scores))} for _ in scores]
        shapes = self._shapes(scores)
        key = frozenset(Counter(shapes).items())
        if key not in self.known:
            self.known[key] = len(self.arguments)
            self.counts.add(len(scores))
            self.arguments.append(argument)
            sizes = np.array([self.middle(score) for score in scores])
            weights = np.exp(sizes - sizes.max()) / np.exp(sizes - sizes.max()).sum()
            pairs = zip(shapes, weights, strict=True)
            self.middles |= {self._weight(self.known[key], shape): float(w) for shape, w in pairs}
        return [{self._weight(self.known[key], shape): Fraction(1)} for shape in shapes]

    def weights(self, scores: Sequence[Form]) -> dict[int, Form] | None:
        """The weights that are not 0, by key; None if no rule applies."""
        sizes = [self.middle(score) for score in scores]
        order = sorted(range(len(scores)), key=lambda j: -sizes[j])
        equal = [j for j, score in enumerate(scores) if score == scores[order[0]]]
        if self._closed(scores, equal, None):
            return {j: {ONE: Fraction(1, len(equal))} for j in equal}
        for count in sorted(self.counts):
            visible = order[:count]
            shapes = self._shapes([scores[j] for j in visible])
            index = self.known.get(frozenset(Counter(shapes).items()))
            if index is not None and self._closed(scores, visible, self.arguments[index]):
                pairs = zip(visible, shapes, strict=True)
                return {j: {self._weight(index, shape): Fraction(1)} for j, shape in pairs}
        return None

    def named(self, form: Form) -> Form:
        """The same number; see `Interned`."""
        return form

    def keep(self, form: Form) -> Form:
        """The same number; see `Interned`."""
        return form

    def recognised(self, form: Form) -> Form:
        """The same number; see `Interned`."""
        return form

    def middle(self, form: Form) -> float:
        """The value of a form in the middle of the domain, in floats. Only the order of scores depends on it."""
        total = 0.0
        for atom, c in form.items():
            kind, rest = _parts(atom)
            if kind == "input":
                total += float(c) * float(self.lo[rest[0]] + self.hi[rest[0]]) / 2
            elif kind == "weight" and len(rest) == 3:
                weight = self.middles[("weight", rest[0], rest[1])]
                total += float(c) * weight * self.middle({rest[2]: Fraction(1)})
            else:
                total += float(c) * (1.0 if kind == "one" else self.middles.get(atom, 0.0))
        return total

    def size(self, form: Form) -> Fraction:
        """At least |form|, for every input: the weights of a softmax are nonnegative and their sum is 1."""
        total, groups = Fraction(0), dict[Hashable, Fraction]()
        for atom, c in form.items():
            kind, rest = _parts(atom)
            if kind == "one":
                total += abs(c)
            elif kind == "input":
                total += abs(c) * max(abs(self.lo[rest[0]]), abs(self.hi[rest[0]]))
            elif kind == "weight":
                size = abs(c) * (self.size({rest[2]: Fraction(1)}) if len(rest) == 3 else 1)
                group = (rest[0], rest[2:])  # of one softmax, the weights times one atom
                groups[group] = max(groups.get(group, Fraction(0)), size)
            else:
                raise CheckError("an output depends on weights that are not those of the source")
        return total + sum(groups.values())

    def _weight(self, index: int, shape: Shape) -> Hashable:
        return ("weight", index, self.scores.setdefault(shape, len(self.scores)))

    def _shapes(self, scores: Sequence[Form]) -> list[Shape]:
        """The scores minus their mean: they determine the weights, and they do not depend on the order of the keys."""
        share = Fraction(-1, len(scores))
        mean = self.sum((share, score) for score in scores)
        return [frozenset(self.sum([(Fraction(1), s), (Fraction(1), mean)]).items()) for s in scores]

    def _closed(self, scores: Sequence[Form], visible: Sequence[int], argument: Argument | None) -> bool:
        """Whether the scores of all other keys are lower than that of a visible one by the underflow of exp."""
        first, shown = scores[visible[0]], set(visible)
        others = {frozenset(s.items()): s for j, s in enumerate(scores) if j not in shown}
        gaps = (self.sum([(Fraction(1), first), (Fraction(-1), s)]) for s in others.values())
        return all(self._smallest(gap, argument) >= UNDERFLOW[self.dtype] for gap in gaps)

    def _smallest(self, form: Form, argument: Argument | None) -> Fraction:
        """A lower bound of a form."""
        atoms = [atom for atom in form if atom != ONE]
        if argument is not None and atoms and atoms[0] in argument[0]:
            s, lo, hi = argument
            slope = form[atoms[0]] / s[atoms[0]]
            rest = self.sum([(Fraction(1), form), (-slope, s)])
            if set(rest) <= {ONE}:
                return min(slope * lo, slope * hi) + rest.get(ONE, Fraction(0))
        inputs = [(form[a], a[1]) for a in atoms if isinstance(a, tuple) and a[0] == "input"]
        if len(inputs) < len(atoms):
            return Fraction(-1)
        return form.get(ONE, Fraction(0)) + sum(min(c * self.lo[i], c * self.hi[i]) for c, i in inputs)


def _parts(atom: Hashable) -> tuple[str, tuple[Any, ...]]:
    """The kind of an atom, and the rest of it."""
    return (atom[0], atom[1:]) if isinstance(atom, tuple) and atom else ("one", ())
