"""Forms with names: exact arithmetic for networks that multiply two values of the data, such as queries and keys.

Two kinds of atoms are added to those of `check/symbolic.py`. A form up to its leading coefficient has a number k, and is the atom
("form", k); it stands for this form and for nothing else, so replacing a form by its atom never changes a value. A product of two
forms is the atom ("product", k, l), k <= l. Equal atoms are equal numbers. The converse does not hold: a value that is computed
in another way may get other atoms, and then nothing is proved.

The source names the results of its softmaxes and the values that a literal network keeps. The literal network names the results
of its softmaxes in the same way, and finds the values of the source in its stream by `recognised`.

A number is bounded by what the checker derives of the values of the source (`bound`), or else by its atoms."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction

from attnc.check.symbolic import ONE, Argument, Exact, Form
from attnc.check.values import CheckError


@dataclass
class Interned(Exact):
    """Arithmetic with forms that have names."""

    order: dict[Hashable, int] = field(default_factory=dict)  # of atoms, as they were first seen
    numbers: dict[frozenset[tuple[Hashable, Fraction]], int] = field(default_factory=dict)
    forms: list[Form] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)  # the forms of values of the source
    limits: dict[int, Fraction] = field(default_factory=dict)  # at least |form k|, for every input
    sizes: dict[int, Fraction | None] = field(default_factory=dict)  # the same, derived from the atoms

    def factor(self, form: Form) -> tuple[Fraction, int]:
        """c and k with form = c·(form k)."""
        if len(form) == 1:
            ((atom, c),) = form.items()
            if isinstance(atom, tuple) and atom[:1] == ("form",):
                return c, atom[1]
        lead, key = self._normal(form)
        if key not in self.numbers:
            self.numbers[key] = len(self.forms)
            self.forms.append(dict(key))
        return lead, self.numbers[key]

    def named(self, form: Form) -> Form:
        """The form as one atom."""
        if len(form) < 2:
            return form
        c, k = self.factor(form)
        return {("form", k): c}

    def keep(self, form: Form) -> Form:
        """A value of the source as one atom."""
        if len(form) > 1:
            self.kept.add(self.factor(form)[1])
        return self.named(form)

    def bound(self, form: Form, limit: float) -> None:
        """State |form| <= limit."""
        if form and limit < float("inf"):
            c, k = self.factor(form)
            least = Fraction(limit) / abs(c)
            self.limits[k] = min(least, self.limits.get(k, least))

    def recognised(self, form: Form) -> Form:
        """The form as one atom if it is a value of the source."""
        if len(form) < 2:
            return form
        lead, key = self._normal(form)
        k = self.numbers.get(key)
        return {("form", k): lead} if k in self.kept else form

    def product(self, a: Form, b: Form) -> Form:
        """Of any two forms. A weight times a form is one atom too."""
        if set(b) <= {ONE}:
            a, b = b, a
        if set(a) <= {ONE}:
            return self.sum([(a.get(ONE, Fraction(0)), b)])
        for weight, other in ((a, b), (b, a)):
            atom, c = next(iter(weight.items()))
            if len(weight) == 1 and isinstance(atom, tuple) and atom[:1] == ("weight",) and len(atom) == 3:
                d, k = self.factor(other)
                return {(*atom, ("form", k)): c * d}
        (c, k), (d, m) = self.factor(a), self.factor(b)
        return {("product", min(k, m), max(k, m)): c * d}

    def middle(self, form: Form) -> float:
        total = 0.0
        for atom, c in form.items():
            kind = atom[0] if isinstance(atom, tuple) and atom else "one"
            if kind == "form" or kind == "product":
                value = float(c)
                for k in atom[1:]:  # type: ignore[index]
                    value *= self._middle(k)
                total += value
            else:
                total += super().middle({atom: c})
        return total

    def size(self, form: Form) -> Fraction:
        """Raises `CheckError` unless the form is 0: how far apart other values are is not derived."""
        if form:
            raise CheckError("an output is not recognised as that of the source")
        return Fraction(0)

    def _middle(self, k: int) -> float:
        atom = ("form", k)
        if atom not in self.middles:
            self.middles[atom] = self.middle(self.forms[k])
        return self.middles[atom]

    def _normal(self, form: Form) -> tuple[Fraction, frozenset[tuple[Hashable, Fraction]]]:
        """The coefficient of the atom that was seen first, and the form divided by it."""
        for atom in form:
            self.order.setdefault(atom, len(self.order))
        lead = form[min(form, key=self.order.__getitem__)]
        return lead, frozenset((atom, c / lead) for atom, c in form.items())

    def _smallest(self, form: Form, argument: Argument | None) -> Fraction:
        least = super()._smallest(form, argument)
        rest = self._most({atom: c for atom, c in form.items() if atom != ONE})
        return least if rest is None else max(least, form.get(ONE, Fraction(0)) - rest)

    def _most(self, form: Form) -> Fraction | None:
        """At least |form|, for every input; None if nothing is known."""
        total = Fraction(0)
        for atom, c in form.items():
            size = self._size(atom)
            if size is None:
                return None
            total += abs(c) * size
        return total

    def _size(self, atom: Hashable) -> Fraction | None:
        kind = atom[0] if isinstance(atom, tuple) and atom else "one"
        rest = atom[1:] if isinstance(atom, tuple) else ()
        if kind == "one":
            return Fraction(1)
        if kind == "input":
            return max(abs(self.lo[rest[0]]), abs(self.hi[rest[0]]))
        if kind == "weight":
            return Fraction(1) if len(rest) == 2 else self._size(rest[2])
        if kind == "form":
            return self._limit(rest[0])
        if kind == "product":
            k, m = map(self._limit, rest)
            return None if k is None or m is None else k * m
        return None

    def _limit(self, k: int) -> Fraction | None:
        if k in self.limits:
            return self.limits[k]
        if k not in self.sizes:
            self.sizes[k] = self._most(self.forms[k])
        return self.sizes[k]
