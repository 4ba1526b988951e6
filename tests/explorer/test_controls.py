"""Every control of the explorer is moved, and what the page then says is checked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from attnc.records.fields import round_up
from tests.explorer.test_numbers import rebuilt


def value(page: Any, panel: str, name: str) -> float:
    """A value that a panel shows, with all digits."""
    return float(page.locator(f'[data-panel={panel}] [data-name="{name}"]').get_attribute("data-value"))


def kind(page: Any, panel: str) -> str:
    found: str = page.locator(f"[data-panel={panel}] .ex-verdict").get_attribute("data-kind")
    return found


def words(page: Any, panel: str, where: str) -> str:
    """The text of a part of a panel."""
    found: str = page.locator(f"[data-panel={panel}] {where}").inner_text()
    return found


def control(page: Any, name: str) -> Any:
    return page.locator(f'[data-control="{name}"]')


def slide(page: Any, name: str, number: float) -> None:
    """Move a slider as a hand would: the value is set and an input event follows."""
    control(page, name).evaluate(
        "(e, n) => { e.value = n; e.dispatchEvent(new Event('input', {bubbles: true})); }", number
    )


def numbers(text: str) -> list[float]:
    """The numbers of a sentence as a reader sees them: 1.25 or 6.84·10⁻⁶."""
    found = re.findall(r"(\d+(?:\.\d+)?)(?:·10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?", text)
    plain = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    return [float(f"{digits}e{power.translate(plain) or 0}") for digits, power in found]


def shown_bound(page: Any, panel: str, where: str) -> float:
    """The bound that a part of a panel shows: its first number, or that after the first ≤."""
    text = page.locator(f"[data-panel={panel}] {where}").text_content()
    return numbers(text.split("≤")[1] if "≤" in text else text)[0]


def picture(page: Any, panel: str, at: int = 0) -> Any:
    return page.locator(f"[data-panel={panel}] canvas.ex-canvas").nth(at)


def ink(page: Any, panel: str, at: int = 0) -> str:
    """What is drawn, as a data URL."""
    found: str = picture(page, panel, at).evaluate("(c) => c.toDataURL()")
    return found


def drag(page: Any, where: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag on a canvas, in pixels from its corner."""
    where.scroll_into_view_if_needed()
    box = where.bounding_box()
    page.mouse.move(box["x"] + start[0], box["y"] + start[1])
    page.mouse.down()
    page.mouse.move(box["x"] + end[0], box["y"] + end[1], steps=3)
    page.mouse.up()


def test_head_follows_s(page: Any, data: Any) -> None:
    control(page, "head-function").select_option("gelu")
    control(page, "head-design").select_option("tuned")
    control(page, "head-anchors").select_option("6")
    stored = next(f for f in data["heads"] if f["name"] == "gelu")["designs"]["tuned"]["6"]
    head = rebuilt(stored)
    for s in (-3.25, 0.5, 7.0):
        slide(page, "head-s", s)
        assert value(page, "head", "s") == s
        assert abs(value(page, "head", "head") - head(torch.tensor([s], dtype=torch.float64)).item()) <= 1e-12
        assert value(page, "head", "error") <= stored["bound"] == value(page, "head", "bound")
    assert kind(page, "head") == "proved"
    before = ink(page, "head")
    picture(page, "head").press("ArrowLeft")
    assert value(page, "head", "s") == pytest.approx(7.0 - 0.08)
    assert ink(page, "head") != before
    drag(page, picture(page, "head"), (100, 60), (150, 60))
    assert -8 < value(page, "head", "s") < 0


def test_every_function_and_design(page: Any, data: Any) -> None:
    for stored in data["heads"]:
        control(page, "head-function").select_option(stored["name"])
        for design, sizes in stored["designs"].items():
            control(page, "head-design").select_option(design)
            for size, numbers in sizes.items():
                control(page, "head-anchors").select_option(size)
                assert value(page, "head", "bound") == numbers["bound"] >= value(page, "head", "largest")
                assert kind(page, "head") == "proved"
                assert shown_bound(page, "head", '[data-name="bound"]') == round_up(numbers["bound"], 3)
                assert shown_bound(page, "head", ".ex-verdict") == round_up(numbers["bound"], 3)


def test_bounds_are_rounded_up_as_in_python(page: Any) -> None:
    """Also where a float lies just above its few digits."""
    bounds = [c * 10.0**e for e in range(-12, 6) for c in (1, 1.001, 3.49, 6.834, 9.991, 9.99999)] + [
        3.49e-06,
        0.0002524,
        2.0**-30,
    ]
    shown = page.evaluate("(bounds) => bounds.map(attncExplorer.atMost)", bounds)
    assert [numbers(text)[0] for text in shown] == [round_up(bound, 3) for bound in bounds]


def test_the_head_is_the_mean_of_the_values(page: Any, data: Any) -> None:
    """The weights add up to 1; the circles outside the picture are counted."""
    designs = next(f for f in data["heads"] if f["name"] == "gelu")["designs"]
    control(page, "head-design").select_option("tuned")
    control(page, "head-anchors").select_option("6")
    slide(page, "head-s", 1.5)
    assert value(page, "head", "sum") == pytest.approx(1, abs=1e-15)
    far = sum(not -8 <= anchor <= 8 for anchor in designs["tuned"]["6"]["anchors"])
    assert re.findall(r"\d+", words(page, "head", '[data-name="outside"]')) == ["6", str(far)]


def test_designs_keep_the_number_of_anchors(page: Any, data: Any) -> None:
    """If a design has no head of this size, the nearest size is chosen, and the page says so."""
    control(page, "head-anchors").select_option("12")
    note = '[data-name="design"]'
    control(page, "head-design").select_option("nearest")
    assert control(page, "head-anchors").input_value() == "12" and "12" not in words(page, "head", note)
    control(page, "head-design").select_option("tuned")
    assert control(page, "head-anchors").input_value() == "11"
    assert re.findall(r"\d+", words(page, "head", note)) == ["12", "11"]
    control(page, "head-anchors").select_option("8")
    assert re.findall(r"\d+", words(page, "head", note)) == []
    for stored in data["heads"]:
        assert {"12", "16"} <= stored["designs"]["nearest"].keys() & stored["designs"]["smooth"].keys()


def test_breaking_a_head(page: Any) -> None:
    """A moved anchor, dragged or by its slider, or another sharpness, voids the certificate; the button restores it."""
    control(page, "head-design").select_option("smooth")
    control(page, "head-anchors").select_option("16")
    bound = value(page, "head", "bound")
    slide(page, "head-anchor", 9)
    slide(page, "head-shift", 0.6)
    assert kind(page, "head") == "void" and value(page, "head", "largest") > bound
    control(page, "head-restore").click()
    assert kind(page, "head") == "proved" and value(page, "head", "bound") == bound
    slide(page, "head-sharpness", 1.5)
    assert kind(page, "head") == "void" and value(page, "head", "largest") > bound
    control(page, "head-restore").click()
    where = picture(page, "head")
    width = where.bounding_box()["width"]
    x = 46 + (width - 58) * 8 / 15  # anchor 9 of 16 over the interval
    drag(page, where, (x, 300), (x + 18, 300))
    assert kind(page, "head") == "void" and value(page, "head", "largest") > bound
    assert control(page, "head-anchor").input_value() == "9"


def test_surface(page: Any, data: Any) -> None:
    for i, stored in enumerate(data["two_tokens"]):
        control(page, "surface-function").select_option(index=i)
        for j, network in enumerate(stored["networks"]):
            control(page, "surface-network").select_option(index=j)
            slide(page, "surface-x1", 0.25)
            slide(page, "surface-x2", -0.75)
            assert kind(page, "surface") == network["status"]
            assert value(page, "surface", "error") <= network["bound"]
            option = "[data-control=surface-network] option:checked"
            for where in ('[data-name="bound"]', ".ex-verdict", option):
                assert shown_bound(page, "surface", where) == round_up(network["bound"], 3)
            assert value(page, "surface", "gather") == 0.5
            sentence = words(page, "surface", ".ex-verdict")
            assert ("Lipschitz" in sentence) == (network["method"] == "grid")
            assert ("operations" in sentence) == (network["method"] == "lattice")
            reach = min(max(abs(u) for anchor in network["anchors"] for u in anchor), 2.2)
            outside = sum(max(map(abs, anchor)) > reach for anchor in network["anchors"])
            counts = re.findall(r"\d+", words(page, "surface", '[data-name="outside"]'))
            assert counts == ([str(outside)] if outside else [])
    before = ink(page, "surface", 0)
    slide(page, "surface-turn", 120)
    assert ink(page, "surface", 0) != before
    before, weights = value(page, "surface", "f"), ink(page, "surface", 1)
    drag(page, picture(page, "surface", 1), (200, 150), (260, 200))
    assert value(page, "surface", "f") != before and ink(page, "surface", 1) != weights
    x1 = float(control(page, "surface-x1").input_value())
    picture(page, "surface", 1).press("ArrowRight")
    assert float(control(page, "surface-x1").input_value()) == pytest.approx(min(x1 + 0.02, 1))
    before = ink(page, "surface", 0)
    drag(page, picture(page, "surface", 0), (100, 150), (160, 150))
    assert ink(page, "surface", 0) != before


def test_learner(page: Any, data: Any) -> None:
    for task in (0, 1):
        control(page, "learner-task").select_option(index=task)
        for where in ('[data-name="bound"]', ".ex-verdict"):
            assert shown_bound(page, "learner", where) == round_up(data["learners"][task]["bound"], 3)
        losses = []
        for t in (0, 1, 10, 40):
            slide(page, "learner-step", t)
            losses.append(value(page, "learner", "loss"))
            assert (
                value(page, "learner", "distance")
                <= value(page, "learner", "bound")
                == data["learners"][task]["bound"]
            )
        assert losses == sorted(losses, reverse=True) and losses[0] > 1.2 * losses[-1]
        for layer in "ABC":
            before = ink(page, "learner", 1)
            control(page, "learner-layer").select_option(layer)
            assert (layer == "A" and task == 0) or ink(page, "learner", 1) != before
        assert kind(page, "learner") == "proved"
    slide(page, "learner-step", 3)
    control(page, "learner-next").click()
    assert control(page, "learner-layer").input_value() == "A"
    assert control(page, "learner-step").input_value() == "4"
    slide(page, "learner-point", 4)
    w = page.locator('[data-panel=learner] [data-name="w"]')
    before = json.loads(w.get_attribute("data-value"))
    control(page, "learner-flip").click()
    flipped = json.loads(w.get_attribute("data-value"))
    assert flipped != before
    control(page, "learner-reset").click()
    assert json.loads(w.get_attribute("data-value")) == before
    picture(page, "learner").press("ArrowUp")
    assert json.loads(w.get_attribute("data-value")) != before


def test_learner_layers(page: Any) -> None:
    """Layers A and B read the line of the step before; layer C moves it; after the last layer there is no next one."""

    def w() -> list[float]:
        found = page.locator('[data-panel=learner] [data-name="w"]').get_attribute("data-value")
        return [float(number) for number in json.loads(found)]

    note = ".ex-note"
    slide(page, "learner-step", 0)
    assert w() == [0, 0] and re.findall(r"\d+", words(page, "learner", note)) == ["0"]
    assert control(page, "learner-layer").is_disabled()
    for layer in "AB":
        control(page, "learner-next").click()
        assert control(page, "learner-step").input_value() == "1" and w() == [0, 0]
        assert control(page, "learner-layer").input_value() == layer
    control(page, "learner-next").click()
    first = w()
    assert first != [0, 0] and words(page, "learner", note).startswith("Step 1 of 40, layer C")
    control(page, "learner-next").click()
    assert control(page, "learner-step").input_value() == "2" and w() == first
    slide(page, "learner-step", 40)
    control(page, "learner-layer").select_option("C")
    assert control(page, "learner-next").is_disabled()


def test_learner_drag(page: Any) -> None:
    """An example that is dragged changes the line."""
    w = page.locator('[data-panel=learner] [data-name="w"]')
    before = json.loads(w.get_attribute("data-value"))
    where = picture(page, "learner")
    width = where.bounding_box()["width"]
    x = 46 + (width - 58) * (0.93 + 1.05) / 2.1
    y = 26 + 300 * (1.05 - 0.47) / 2.1
    drag(page, where, (x, y), (x, y + 150))
    after = json.loads(w.get_attribute("data-value"))
    assert after[0] < before[0] and control(page, "learner-point").input_value() == "12"


def test_transformer(page: Any, data: Any) -> None:
    stored = data["transformer"]
    for i, sentence in enumerate(stored["sentences"]):
        control(page, "transformer-sentence").select_option(index=i)
        for block in (0, 5):
            slide(page, "transformer-block", block + 1)
            slide(page, "transformer-token", 3)
            slide(page, "transformer-neuron", 2)
            neuron = sentence["neurons"][block][1]
            assert value(page, "transformer", "s") == neuron["input"][2]
            assert value(page, "transformer", "error") <= stored["blocks"][block]["approximation"]
            counts = sentence["usage"][block][2]
            assert sum(counts) == 1536
            active = [sum(row[len(row) // 2 + 1 :]) for row in sentence["usage"][block]]
            assert value(page, "transformer", "active") == active[2]
            assert value(page, "transformer", "mean") == pytest.approx(sum(active) / len(active))
        for block in range(6):
            slide(page, "transformer-block", block + 1)
            bounds = [stored["blocks"][block]["approximation"], sentence["bound"]]
            assert numbers(words(page, "transformer", ".ex-verdict"))[1:] == [round_up(b, 3) for b in bounds]
    drag(page, picture(page, "transformer"), (300, 40), (300, 41))
    assert control(page, "transformer-token").input_value() == "1"
    picture(page, "transformer").press("ArrowDown")
    assert control(page, "transformer-token").input_value() == "2"


def test_norm(page: Any, data: Any) -> None:
    for power in (-5, 0, 4):
        slide(page, "norm-square", power)
        assert value(page, "norm", "square") == pytest.approx(10.0**power)
        assert value(page, "norm", "relative") < 1e-5
    slide(page, "transformer-token", 2)
    control(page, "norm-token").click()
    square = data["transformer"]["sentences"][0]["squares"][1]
    assert value(page, "norm", "square") == pytest.approx(square, rel=1e-9)
    assert value(page, "norm", "exact") == pytest.approx(square**-0.5, rel=1e-6)


def outputs(page: Any, name: str = "output") -> list[str]:
    found: list[str] = json.loads(
        page.locator(f'[data-panel=tokens] [data-name="{name}"]').get_attribute("data-value")
    )
    return found


def test_tokens(page: Any, data: Any) -> None:
    for stored in data["token_programs"]:
        control(page, "tokens-program").select_option(stored["name"])
        assert kind(page, "tokens") == "proved" and outputs(page) == outputs(page, "program")
        assert page.locator("[data-panel=tokens] .ex-head").count() == sum(map(len, stored["layers"]))
    control(page, "tokens-program").select_option("sort")
    control(page, "tokens-text").fill("dcba")
    assert outputs(page) == list("abcd")
    control(page, "key-a").click()
    assert outputs(page) == list("aabcd")
    control(page, "key-delete").click()
    assert outputs(page) == list("abcd")
    control(page, "tokens-text").fill("dxba")
    assert page.locator("[data-panel=tokens] .ex-problem").inner_text() != ""
    assert kind(page, "tokens") == "not run" and outputs(page) == []
    assert page.locator("[data-panel=tokens] td").count() == 0
    control(page, "head-1.0").click()
    page.evaluate("attncExplorer.redraw()")
    assert kind(page, "tokens") == "not run" and page.locator("[data-panel=tokens] td").count() == 0
    control(page, "tokens-text").fill("abcdabcdabcd")
    assert page.locator("[data-panel=tokens] .ex-problem").inner_text() != ""
    control(page, "tokens-text").fill("ba")
    assert page.locator("[data-panel=tokens] .ex-problem").inner_text() == "" and outputs(page) == ["a", "b"]


def test_breaking_tokens(page: Any) -> None:
    """The first head of the induction model is broken: the second finds nothing. Repaired, all is right."""
    control(page, "tokens-text").fill("abcab")
    assert outputs(page) == list("---bc")
    before = ink(page, "tokens")
    control(page, "head-1.0").click()
    assert ink(page, "tokens") != before
    control(page, "head-0.0").click()
    control(page, "tokens-break").click()
    assert (
        kind(page, "tokens") == "void"
        and outputs(page) == list("-----")
        and value(page, "tokens", "wrong") == 2
    )
    control(page, "tokens-repair").click()
    assert kind(page, "tokens") == "proved" and outputs(page) == list("---bc")
    control(page, "tokens-break").click()
    control(page, "tokens-break").click()
    assert kind(page, "tokens") == "proved"


def test_every_control_is_tested(page: Any) -> None:
    """The names of all controls of the page occur in this file."""
    names = page.evaluate("[...document.querySelectorAll('[data-control]')].map((e) => e.dataset.control)")
    text = Path(__file__).read_text(encoding="utf-8")
    missing = {n for n in names if f'"{n}"' not in text and not n.startswith(("key-", "head-0", "head-1"))}
    assert len(names) > 25 and missing == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone(opened: Any, scheme: str) -> None:
    """At 390 pixels nothing is wider than the page, and every control has a name and is reached by the Tab key."""
    browser, address = opened
    with browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme) as page:
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        unnamed = page.evaluate(
            "[...document.querySelectorAll('.ex input, .ex select, .ex button, .ex canvas.ex-canvas')].filter((e) => "
            "!(e.labels?.length || e.innerText?.trim() || e.ariaLabel || e.getAttribute('aria-label')))"
            ".map((e) => e.outerHTML)"
        )
        assert unnamed == []
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate("document.activeElement.dataset.control ?? document.activeElement.tagName")
            )
        assert {
            "head-s",
            "head-shift",
            "surface-turn",
            "learner-next",
            "transformer-block",
            "tokens-text",
            "CANVAS",
        } <= reached


def test_projector(opened: Any, data: Any) -> None:
    """At 1280 x 720, where the site leaves 734 pixels to a panel, its controls and its pictures are seen at once. Small
    pictures of heads scroll in a box of their own."""
    browser, address = opened
    with browser.new_page(viewport={"width": 1280, "height": 720}) as page:
        page.goto(address)
        page.evaluate("document.body.style.maxWidth = '734px'")
        page.evaluate("dispatchEvent(new Event('resize'))")
        page.wait_for_function("document.querySelector('canvas').clientWidth < 500")

        def bottom(panel: str) -> float:
            """How far the controls and pictures reach below the top of the panel."""
            return float(
                page.evaluate(
                    """(panel) => {
                      const root = document.querySelector(`[data-panel=${panel}]`);
                      const what = "[data-control]:not(.ex-head), canvas.ex-canvas, .ex-heads";
                      const parts = [...root.querySelectorAll(what)].filter((e) => e.offsetParent);
                      return Math.max(...parts.map((e) => e.getBoundingClientRect().bottom)) - root.getBoundingClientRect().top;
                    }""",
                    panel,
                )
            )

        for panel in ("head", "surface", "learner", "transformer", "norm"):
            assert 200 < bottom(panel) <= 700, (panel, bottom(panel))
        for stored in data["token_programs"]:
            control(page, "tokens-program").select_option(stored["name"])
            assert bottom("tokens") <= 700, stored["name"]


def test_theme(opened: Any) -> None:
    """The drawings change with the theme of the page."""
    browser, address = opened
    with browser.new_page(viewport={"width": 800, "height": 900}) as page:
        page.goto(address)
        light = ink(page, "head")
        page.evaluate("document.body.dataset.theme = 'dark'")
        page.wait_for_function(
            "(before) => document.querySelector('canvas').toDataURL() !== before", arg=light
        )


def test_touch(opened: Any) -> None:
    """A finger drags an example up and down; beside the examples it scrolls the page."""
    browser, address = opened
    with browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    ) as context:
        page = context.new_page()
        page.goto(address)
        where = picture(page, "learner")
        where.scroll_into_view_if_needed()
        fingers = context.new_cdp_session(page)

        def swipe(x: float, y: float, down: float) -> None:
            box = where.bounding_box()
            for kind, moved in (("touchStart", 0.0), *(("touchMove", i / 8) for i in range(1, 9))):
                at = {"x": box["x"] + x, "y": box["y"] + y + moved * down}
                fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [at]})
            fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

        before = page.evaluate("scrollY")
        width = where.bounding_box()["width"]
        swipe(46 + (width - 58) * (0.93 + 1.05) / 2.1, 26 + 300 * (1.05 - 0.47) / 2.1, 80)
        example = page.evaluate("attncExplorer.panels.learner.state.examples[11]")
        assert example[1] == pytest.approx(0.47 - 80 * 2.1 / 300, abs=0.02)
        assert page.evaluate("scrollY") == before
        swipe(60, 40, -100)
        page.wait_for_function("(y) => scrollY > y", arg=before)
