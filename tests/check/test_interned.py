"""Forms with names: an atom stands for one form, so names never change a value."""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnc.check.interned import Interned
from attnc.check.symbolic import ONE, Form
from attnc.check.values import CheckError

INPUTS = 3
ATOMS: list[Hashable] = [ONE, *(("input", i) for i in range(INPUTS))]
NUMBERS = st.fractions(-4, 4, max_denominator=4)
FORMS = st.dictionaries(st.sampled_from(ATOMS), NUMBERS.filter(bool), max_size=4)


def exact() -> Interned:
    return Interned([Fraction(-1)] * INPUTS, [Fraction(1)] * INPUTS, "float64")


def value(names: Interned, form: Form, x: list[Fraction]) -> Fraction:
    """The number that a form of inputs, names and products stands for."""

    def of(atom: Hashable) -> Fraction:
        if atom == ONE:
            return Fraction(1)
        assert isinstance(atom, tuple)
        if atom[0] == "input":
            return x[atom[1]]
        found = Fraction(1)
        for k in atom[1:]:
            found *= value(names, names.forms[k], x)
        return found

    return sum((c * of(atom) for atom, c in form.items()), Fraction(0))


@settings(max_examples=40)
@given(st.lists(FORMS, min_size=1, max_size=4), st.lists(NUMBERS, min_size=INPUTS, max_size=INPUTS))
def test_names_do_not_change_values(forms: list[Form], x: list[Fraction]) -> None:
    names, known = exact(), list(forms)
    for a in forms:
        kept = names.keep(a)
        for b in [*forms, kept]:
            product = names.product(a, b)
            assert value(names, product, x) == value(names, a, x) * value(names, b, x)
            known += [product, names.sum([(Fraction(2), product), (Fraction(-1), kept)])]
    for form in known:
        for same in (names.named(form), names.recognised(form)):
            assert value(names, same, x) == value(names, form, x)


@settings(max_examples=40)
@given(FORMS, FORMS, NUMBERS.filter(bool), NUMBERS.filter(bool))
def test_multiples_share_a_name(a: Form, b: Form, c: Fraction, d: Fraction) -> None:
    names = exact()
    wide, turned = names.sum([(c, a)]), names.sum([(d, dict(reversed(b.items())))])
    assert names.product(wide, turned) == names.sum([(c * d, names.product(b, a))])


def test_only_values_of_the_source_are_recognised() -> None:
    names, one = exact(), Fraction(1)
    form: Form = {("input", 0): one, ONE: 2 * one}
    names.factor(form)
    assert names.recognised(form) == form
    atom = names.keep(form)
    assert names.recognised({ONE: 4 * one, ("input", 0): 2 * one}) == names.sum([(2 * one, atom)])
    assert names.recognised({ONE: 5 * one, ("input", 0): 2 * one}) == {ONE: 5 * one, ("input", 0): 2 * one}


def test_bounds() -> None:
    """|x0 x1| <= 1 by the box; |x0 + x1| <= 2 by the box, and less if it is stated; nothing of an unknown number."""
    names, one = exact(), Fraction(1)
    x, y, u = ({atom: one} for atom in (("input", 0), ("input", 1), ("unknown", 1)))
    both = names.sum([(one, x), (one, y)])
    square = names.product(both, both)
    assert names._smallest({**names.product(x, y), ONE: 3 * one}, None) == 2
    assert names._smallest({**square, ONE: 9 * one}, None) == 5
    names = exact()
    names.bound(names.sum([(-2 * one, both)]), 1.0)
    assert names._smallest({**names.product(both, both), ONE: 9 * one}, None) == Fraction(35, 4)
    assert names._smallest({**names.product(both, u), ONE: 9 * one}, None) < 0
    names.bound(x, float("inf"))
    names.bound(x, float("nan"))
    assert names._smallest({**names.product(x, x), ONE: one}, None) == 0


def test_what_differs_is_not_small() -> None:
    names = exact()
    assert names.size({}) == 0
    with pytest.raises(CheckError):
        names.size({ONE: Fraction(1, 10**30)})
