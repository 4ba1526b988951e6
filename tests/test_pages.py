"""Code on the pages: every block has a kind, and every kind has a test.

Sessions (python with >>>) run as doctests: pytest collects every page. Commands (console) run in tests/test_page_commands.py.
Listings (python without >>>), Coq and outputs (text) are compared here with the code or the object that they show."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch

import attnc
from attnc import zoo
from attnc.functions import library
from attnc.records.tokens import program_to_json
from tests.functions import reference

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_CODE = {  # blocks of text that are no code: the page, how they begin, what checks them
    "architecture.md": r"\s+a model, a function|\w+[\w/]*\.py +",  # maps: tests/contracts/test_architecture.py
    "zoo.md": r"certificate: ",  # outputs: below
}
NOT_RUN = {  # listings that are parsed only, and why
    "huggingface.md": "needs sentence-transformers, which is not among the extras",
    "experiments.md": "takes half an hour, on a cluster; tests/cli/test_reproduce.py runs the same sweep in small",
}


def blocks() -> Iterator[tuple[str, str, str]]:
    """Page, language and text of every block."""
    for path in PAGES:
        for match in BLOCK.finditer(path.read_text(encoding="utf-8")):
            yield path.name, match[1], match[2]


def of_page(page: str, language: str) -> list[str]:
    return [text for name, kind, text in blocks() if (name, kind) == (page, language)]


LISTINGS = [(name, text) for name, language, text in blocks() if language == "python" and ">>>" not in text]


def test_the_kinds_of_blocks() -> None:
    """Nothing is in a language that no test knows, and text is what a test compares."""
    kinds = Counter(language for _, language, _ in blocks() if not language.startswith("{"))
    assert set(kinds) == {"python", "console", "coq", "text", "bibtex"}
    sessions = sum(language == "python" and ">>>" in text for _, language, text in blocks())
    assert sessions + len(LISTINGS) == kinds["python"] and sessions > 140
    for page, language, text in blocks():
        if language == "text":
            assert page in NOT_CODE and re.match(NOT_CODE[page], text), f"{page}: {text[:80]}"
        if language == "console":
            assert text.startswith("$ "), f"{page}: {text[:80]}"
    assert kinds["coq"] == len(of_page("coq.md", "coq"))
    assert of_page("README.md", "bibtex") == of_page("index.md", "bibtex") and kinds["bibtex"] == 2


@pytest.mark.parametrize(("name", "text"), LISTINGS, ids=[name for name, _ in LISTINGS])
def test_listings_are_tested_code(name: str, text: str) -> None:
    """A listing is a part of a script or a module that other tests run, or it runs here."""
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))]
    parts = text.strip("\n").split("\n\n\n")  # definitions, not all that are in the script
    if any(all(part in source for part in parts) for source in sources):
        return
    if name in NOT_RUN:
        ast.parse(text)
    elif name == "zoo.md":
        assert text.endswith(
            "net = p.compile(output)\n"
        )  # test_every_token_model_of_the_zoo_shows_its_own_program
    elif "to_transformer_lens" in text:
        pytest.importorskip("transformer_lens")  # make test-lens
        exec(text, {"zoo": zoo, "ids": torch.tensor([[0, 1, 2, 0, 1]])})
    elif "nnsight" in text:
        _traced_by_nnsight(text)
    elif "_smooth(" in text:
        known = {"_smooth": reference._smooth, "mp": mpmath.mp}
        exec(text, known)
        assert [case.label for case in known["new_cases"]] == ["softcap", "softcap(30)"]
    else:
        assert name == "architecture.md" and text.startswith("def softcap")
        names = dict(vars(library))
        exec(text, names)
        head = attnc.head(names["softcap"](2.0), domain=(-8, 8), eps=1e-6, dtype="float64")
        assert head.certificate.status == "proved" and head.certificate.bound <= 1e-6


def _traced_by_nnsight(text: str) -> None:
    nnsight = pytest.importorskip("nnsight")  # make test-lens
    import copy
    import runpy
    import tempfile

    literal = attnc.head("tanh", domain=(-1, 1), eps=1e-3).as_self_attention(2)
    names = {"nnsight": nnsight, "copy": copy, "literal": literal, "x": torch.zeros(2)}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "listing.py"  # nnsight reads the source of its blocks
        file.write_text(text, encoding="utf-8")
        runpy.run_path(str(file), init_globals=names)


def folded(text: str) -> str:
    """Coq without its numbers, the signs of floats and line breaks: a value near 0 has either sign, on another processor."""
    return " ".join(re.sub(r"\(-0x[\da-f.]+p[+-]\d+\)|0x[\da-f.]+p[+-]\d+|\d+", "#", text).split())


def test_the_coq_of_the_page_is_written_by_the_exporter(tmp_path: Path) -> None:
    head = attnc.head("relu", domain=(-8, 8), eps=1e-6, dtype="float64")
    attnc.export(head, tmp_path / "relu.v")
    written = folded((tmp_path / "relu.v").read_text())
    shown = of_page("coq.md", "coq")
    assert len(shown) > 5
    for text in shown:
        assert folded(text) in written, text


def compare(shown: str, found: str) -> None:
    """Lines must agree, up to digits of errors that differ between machines (conftest.py)."""
    from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OPTIONFLAGS_BY_NAME, OutputChecker

    flags = ELLIPSIS | NORMALIZE_WHITESPACE | OPTIONFLAGS_BY_NAME["SAME_SIZE"]
    lines, wanted = ([line for line in text.splitlines() if line.strip()] for text in (found, shown))
    assert len(lines) == len(wanted), found
    for want, got in zip(wanted, lines, strict=True):
        assert OutputChecker().check_output(want, got, flags), (
            f"the page shows\n{want}\nand this was printed\n{got}"
        )


def certificates() -> list[tuple[str, str]]:
    """The models of docs/zoo.md and the certificates that it shows."""
    page = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")
    sections = re.split(r"^###? ", page, flags=re.MULTILINE)[1:]
    named = [(section.split("\n", 1)[0], BLOCK.findall(section)) for section in sections]
    return [(name, text) for name, found in named for kind, text in found if kind == "text"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param(*one, id=one[0], marks=[pytest.mark.slow] * (one[0] == "matrix-inverse"))
        for one in certificates()
    ],
)
def test_the_certificates_of_the_zoo(name: str, shown: str) -> None:
    compare(shown, str(zoo.load(name).certificate))


def test_every_token_model_of_the_zoo_shows_its_own_program() -> None:
    sections = re.split(r"^## ", (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[
        1:
    ]
    shown = {
        s.split("\n", 1)[0]: [text for kind, text in BLOCK.findall(s) if kind == "python"] for s in sections
    }
    for name in zoo.names("tokens"):
        p, output = zoo.program(name)
        (listing,) = shown[name]
        known: dict[str, Any] = {}
        exec(listing.replace("net = p.compile(output)\n", ""), known)
        assert program_to_json(known["p"].program(known["output"])) == program_to_json(p.program(output)), (
            name
        )


def test_every_model_of_the_zoo_shows_its_certificate() -> None:
    assert sorted(name for name, _ in certificates()) == sorted(
        [*zoo.names("tokens"), *zoo.names("continuous")]
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tables_have_rows(path: Path) -> None:
    """A benchmark that stored nothing must not leave an empty table."""
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^\|.*\|\n\|[-| :]+\|\n(?!\|)", text, re.MULTILINE) == []
