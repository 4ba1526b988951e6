"""Settings in the address of the explorer: what is read, what is written, and what is ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

import chromium
import pytest

from tests.explorer.test_controls import control, drag, kind, outputs, picture, slide, value, words

IGNORED = '[data-name="ignored"]'


@pytest.fixture
def visit(opened: Any) -> Iterator[Any]:
    """Opens the page with a fragment in a fresh tab; the test fails if a console has a message or a page an exception."""
    browser, address = opened
    tabs, heard = [], []

    def go(fragment: str) -> Any:
        tab = browser.new_page(viewport={"width": 1280, "height": 720})
        tabs.append(tab)
        heard.append(chromium.listen(tab))
        tab.goto(fragment if fragment.startswith("file:") else address + fragment)
        return tab

    yield go
    for tab in tabs:
        tab.close()
    assert not any(heard)


def given(page: Any) -> dict[str, str]:
    """The settings in the address."""
    return dict(parse_qsl(page.url.split("?", 1)[1], keep_blank_values=True))


def settled(page: Any, name: str, wanted: str) -> None:
    """Wait until the address has a setting: typing writes it after a pause."""
    page.wait_for_function(
        "([name, wanted]) => new URLSearchParams(location.hash.split('?')[1]).get(name) === wanted",
        arg=[name, wanted],
    )


def test_address(opened: Any) -> None:
    """The address sets the controls, and a moved control writes it: the same page opens again."""
    browser, address = opened
    with browser.new_page(viewport={"width": 1000, "height": 900}) as page:
        page.goto(f"{address}#one-head?function=sin&design=nearest&anchors=16&s=2.5&sharpness=2")
        assert control(page, "head-function").input_value() == "sin"
        assert control(page, "head-anchors").input_value() == "16"
        assert value(page, "head", "s") == 2.5 and kind(page, "head") == "void"
        assert words(page, "head", "label:has([data-control=head-sharpness])").split() == [
            "sharpness",
            "×",
            "2.00",
        ]
        control(page, "surface-function").select_option("smaller first")
        control(page, "surface-network").select_option("grid-100")
        copied = page.url
        bound = value(page, "surface", "bound")
    with browser.new_page(viewport={"width": 1000, "height": 900}) as page:
        page.goto(copied)
        assert value(page, "surface", "bound") == bound
        page.evaluate("location.hash = 'two-layers?function=product'")
        page.wait_for_function("attncExplorer.panels.surface.state.f.label === 'product'")
        page.goto(f"{address}#a-token-program?program=sort&text=dcba")
        page.reload()
        assert outputs(page) == list("abcd")


def test_an_address_keeps_broken_heads(opened: Any) -> None:
    browser, address = opened
    with browser.new_page(viewport={"width": 1000, "height": 900}) as page:
        page.goto(f"{address}#a-token-program?program=induction&sequence=abcab")
        assert control(page, "tokens-text").input_value() == "abcab" and outputs(page) == list("---bc")
        control(page, "head-1.0").click()
        control(page, "tokens-break").click()
        broken, copied = outputs(page), page.url
        assert kind(page, "tokens") == "void" and "broken=1.0" in copied
    with browser.new_page(viewport={"width": 1000, "height": 900}) as page:
        page.goto(copied)
        assert outputs(page) == broken and kind(page, "tokens") == "void"
        page.evaluate("location.hash = 'a-token-program?program=induction&text=abcab&broken=7.0'")
        page.wait_for_function("attncExplorer.panels.tokens.state.broken.size === 0")
        assert kind(page, "tokens") == "proved" and outputs(page) == list("---bc")


def test_names_and_values_are_those_beside_the_controls(visit: Any, data: Any) -> None:
    """Every setting that the panels write has the words of its control as its name, and reads back as the same value."""
    page = visit("")
    moves = {
        "head-sharpness": (-0.5, "sharpness", "0.70711"),
        "head-shift": (0.5, "move-it-by", "0.5"),
        "surface-x1": (0.25, "x1", "0.25"),
        "learner-point": (4, "example", "4"),
        "transformer-neuron": (2, "neuron", "2"),
        "norm-square": (2, "mean-square-of-z", "100"),
    }
    for name, (position, word, written) in moves.items():
        slide(page, name, position)
        settled(page, word, written)
        other = visit(page.url)
        assert given(other)[word] == written
        assert float(control(other, name).input_value()) == pytest.approx(position, abs=1e-4)
        assert words(other, name.split("-")[0], IGNORED) == ""
    for name, index, word, written in (
        ("surface-function", 1, "function", "smaller first"), ("surface-network", 1, "network", "grid-100"),
        ("transformer-sentence", 1, "sentence", "2"), ("learner-task", 1, "task", data["learners"][1]["label"]),
    ):  # fmt: skip
        control(page, name).select_option(index=index)
        assert given(page)[word] == written
        assert control(visit(page.url), name).input_value() == written


def test_sharpness_is_the_factor_that_is_shown(visit: Any) -> None:
    page = visit("#one-head?function=gelu&design=nearest&anchors=16&sharpness=0.7")
    assert "0.70" in words(page, "head", "label:has([data-control=head-sharpness])")
    assert kind(page, "head") == "void"
    page = visit("#one-head?sharpness=1")
    assert kind(page, "head") == "proved"


def test_keys_and_typed_text_reach_the_address(visit: Any) -> None:
    page = visit("#one-head?s=1")
    picture(page, "head").press("ArrowRight")
    settled(page, "s", "1.08")
    picture(page, "surface", 1).press("ArrowRight")
    settled(page, "x1", "0.37")
    control(page, "tokens-text").press_sequentially("b")
    settled(page, "sequence", control(page, "tokens-text").input_value())


@pytest.mark.parametrize(
    ("fragment", "panel", "ignored", "left"),
    [
        ("#one-head?function=foo&design=bar", "head", "ignored: function=foo, design=bar", {"design": "smooth"}),
        ("#one-head?s=100&other=1", "head", "ignored: s=100, other=1", {"s": "1.2"}),
        ("#one-head?s=&sharpness=0", "head", "ignored: s=, sharpness=0", {"sharpness": "1"}),
        ("#two-layers?network=7&x1=0.5", "surface", "ignored: network=7", {"network": "grid-110", "x1": "0.5"}),
        ("#a-token-program?program=sort&broken=0.0,7.0", "tokens", "ignored: broken=0.0,7.0", {"program": "sort"}),
        ("#one-head?broken=0.0", "head", "ignored: broken=0.0", {}),
    ],
)  # fmt: skip
def test_what_no_control_can_show_is_ignored_and_said(
    visit: Any, fragment: str, panel: str, ignored: str, left: dict[str, str]
) -> None:
    page = visit(fragment)
    assert words(page, panel, IGNORED) == ignored
    assert given(page).items() >= left.items() and not {"other", "broken"} & given(page).keys()
    page.locator(f"[data-panel={panel}] select").first.select_option(index=0)
    assert words(page, panel, IGNORED) == ""


def test_the_number_of_anchors_that_was_asked_for_is_named(visit: Any) -> None:
    page = visit("#one-head?function=gelu&design=gated&anchors=16")
    assert "with 16 anchors, so it shows 2" in words(page, "head", '[data-name="design"]')
    assert words(page, "head", IGNORED) == "" and control(page, "head-anchors").input_value() == "2"


@pytest.mark.parametrize("text", ["%E0%A4%A", "%", "a%20b%zz"])
def test_malformed_escapes(visit: Any, text: str) -> None:
    """The fixture listens: no exception. The panel says what it cannot read."""
    page = visit(f"#a-token-program?program=sort&text={text}")
    assert kind(page, "tokens") == "not run" and control(page, "tokens-program").input_value() == "sort"
    visit(f"#{text}")


def test_escaped_question_marks(visit: Any) -> None:
    page = visit("#a-token-program%3Fprogram=sort&sequence=dcba")
    assert outputs(page) == list("abcd")


def test_anchors_beyond_the_picture_can_be_dragged(visit: Any) -> None:
    """sin, smooth, 6: every value lies outside the upper picture; a triangle at its edge stands for each."""
    page = visit("#one-head?function=sin&design=smooth&anchors=6")
    assert "6 lie outside the upper picture" in words(page, "head", '[data-name="outside"]')
    where = picture(page, "head")
    width = where.bounding_box()["width"] - 58
    x = 46 + width * (1.5 + 6) / 12
    drag(page, where, (x, 28), (x + 30, 28))  # the value 5.43 at s = 1.5
    assert kind(page, "head") == "void"
    assert float(control(page, "head-shift").input_value()) == pytest.approx(12 * 30 / width, abs=0.02)


def test_the_dot_of_s_comes_before_an_anchor_at_its_place(visit: Any) -> None:
    """A drag that starts at the black dot moves s; one that starts at another circle moves its anchor."""
    page = visit("#one-head?function=relu&design=nearest&anchors=8&s=-4")
    where = picture(page, "head")
    left, width = 46, where.bounding_box()["width"] - 58
    anchors = page.evaluate("attncExplorer.DATA.heads[1].designs.nearest[8].anchors")
    values = [max(anchor, 0) for anchor in anchors]
    assert min(values) == 0 and anchors[0] >= -4
    x = left + width * (anchors[0] + 4) / 8
    slide(page, "head-s", anchors[0])
    y = 26 + 150 * (1.12 * 4) / (4 + 0.24 * 4)  # the height of the value 0
    drag(page, where, (x, y), (x + 40, y))
    assert value(page, "head", "s") == pytest.approx(anchors[0] + 40 * 8 / width, abs=0.05)
    assert kind(page, "head") == "proved"
    drag(page, where, (x, y), (x + 20, y))
    assert kind(page, "head") == "void"
