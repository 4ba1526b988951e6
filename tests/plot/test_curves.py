"""The function with its imitation, the error with its bound: what is on the axes is what is true."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from mpmath import mp, mpf

import attnc
from attnc import functions, plot
from attnc.check.witness import ROOM
from attnc.plot.sample import function_of, sample


def curve(ax: Any, label: str) -> tuple[Any, Any]:
    (line,) = [line for line in ax.lines if line.get_label().startswith(label)]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def labels(ax: Any) -> str:
    return " | ".join(text.get_text() for text in ax.get_legend().get_texts())


def test_the_function_lies_thin_below_its_imitation(relu: attnc.Head) -> None:
    ax = plot.function(relu)
    s, y = curve(ax, "f = relu")
    np.testing.assert_array_equal(y, np.maximum(s, 0))
    at, g = curve(ax, "head")
    np.testing.assert_array_equal(g, relu(torch.from_numpy(at)).numpy())
    thin, thick = ax.lines[0], ax.lines[1]
    assert thin.get_linewidth() < thick.get_linewidth()
    assert thin.get_zorder() < thick.get_zorder()


def test_the_axis_is_the_domain_and_anchors_are_ticks(relu: attnc.Head) -> None:
    ax = plot.function(relu)
    assert ax.get_xlim() == (-1, 1)
    x, _ = curve(ax, "anchors")
    inside = [a for a in relu.anchors.tolist() if -1 <= a <= 1]
    assert sorted(x) == sorted(inside)
    assert f"{len(inside)} of {len(relu.anchors)} in the domain" in labels(ax)


def test_the_bound_is_a_line_at_the_bound(relu: attnc.Head) -> None:
    assert relu.certificate is not None
    ax = plot.error(relu)
    _, y = curve(ax, "proved bound")
    assert set(y) == {relu.certificate.bound}
    assert f"proved bound {relu.certificate.bound:.4g}" in labels(ax)
    assert ax.get_yscale() == "log"
    bottom, top = ax.get_ylim()
    assert bottom < relu.certificate.witness.error < relu.certificate.bound < top


@pytest.mark.parametrize("name", ["tanh", "relu", "three_heads"])
def test_the_curve_reaches_the_witness_and_not_the_bound(name: str, request: pytest.FixtureRequest) -> None:
    head = request.getfixturevalue(name)
    ax = plot.error(head)
    witness = head.certificate.witness
    assert [xy[0] for xy in curve(ax, "witness")] == [witness.input, witness.error]
    s, error = curve(ax, "_error")
    assert error.max() <= head.certificate.bound
    assert error[s == witness.input] == pytest.approx(witness.error / ROOM, rel=1e-9)


def test_the_error_is_true_below_the_resolution_of_float64(tanh: attnc.Head) -> None:
    seen = sample(tanh, functions.tanh())
    assert seen.error.max() < 1e-14
    with mp.workdps(50):
        exact = [
            abs(mpf(y) - mp.tanh(mpf(s))) for s, y in zip(seen.s.tolist(), seen.head.tolist(), strict=True)
        ]
    np.testing.assert_allclose(seen.error, [float(e) for e in exact], rtol=1e-12)


def test_a_measured_error_is_called_so(measured: attnc.Head, bump_function: Any) -> None:
    assert measured.measured is not None
    ax = plot.error(measured, f=bump_function)
    _, y = curve(ax, "largest measured")
    assert set(y) == {max(measured.measured.error, curve(ax, "_error")[1].max())}
    assert y[0] == pytest.approx(measured.measured.error, rel=1e-3)
    assert "proved bound" not in labels(ax)
    assert "not proved" in labels(ax)


def test_a_certificate_that_no_longer_applies_draws_no_bound(relu: attnc.Head) -> None:
    other = copy.deepcopy(relu)
    with torch.no_grad():
        other.value[0, 3, 1] += 0.01
    ax = plot.error(other)
    assert "proved bound" not in labels(ax)
    _, y = curve(ax, "largest measured")
    assert y[0] == curve(ax, "_error")[1].max() > 1e-3
    assert "not certified" in plot.head(other).get_suptitle()


def test_an_error_of_zero_everywhere_can_be_drawn() -> None:
    from attnc.plot.canvas import new_axes
    from attnc.plot.curves import _set_scale
    from attnc.plot.sample import Level, Sample

    zero = np.zeros(3)
    ax = new_axes(4, 3)
    _set_scale(ax, Sample(zero, zero, zero, zero), Level(0.0, 0.0, 0.0, True))
    assert ax.get_yscale() == "linear"


def test_a_function_that_is_not_registered_must_be_given(measured: attnc.Head, bump_function: Any) -> None:
    for draw in (plot.function, plot.error, plot.head):
        with pytest.raises(attnc.InputError, match=r"'bump'.*f=\.\.\."):
            draw(measured)
    assert plot.function(measured, f=bump_function).lines


def test_a_namesake_of_a_built_in_function_is_not_taken_for_it() -> None:
    def sin(s: torch.Tensor) -> torch.Tensor:
        return torch.cos(s)

    head = attnc.head(sin, domain=(-1, 1), anchors=4, design="smooth")
    with pytest.raises(attnc.InputError):
        plot.error(head)
    assert curve(plot.error(head, f=sin), "_error")[1].max() < 0.1


def test_another_function_is_refused(tanh: attnc.Head) -> None:
    with pytest.raises(attnc.InputError, match=r"'tanh'.*'gelu'"):
        plot.error(tanh, f="gelu")
    assert function_of(tanh, "tanh").label == "tanh"
    assert function_of(tanh, functions.tanh()).label == "tanh"


def test_a_head_that_says_nothing_is_refused(tanh: attnc.Head) -> None:
    with pytest.raises(attnc.InputError):
        plot.attention(attnc.Head(tanh.numbers(), "tuned"))


def test_names_are_not_read_as_mathematics() -> None:
    f = attnc.function(torch.sin, name="a$b_c$", enclosure=lambda x: x.sin())
    head = attnc.head(f, domain=(-1, 1), anchors=4, design="smooth")
    figure = plot.head(head, f=f)
    figure.draw_without_rendering()
    assert figure.get_suptitle().startswith(r"a\$b_c\$ on")
