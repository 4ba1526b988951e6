"""Mistakes of a first hour: every error says what to do."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnc
import attnc.paper.selectors
from attnc.errors import (
    ArgumentError,
    AttncError,
    ConditionWarning,
    DomainWarning,
    ExpressionError,
    FileError,
    InputError,
    NotExactError,
    UnknownNameError,
)


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"is a directory; .*attnc\.from_pretrained"):
        attnc.load(tmp_path)
    torch.save({"w": torch.zeros(3)}, tmp_path / "model.pt")
    with pytest.raises(FileError, match=r"files of torch\.save or joblib are never read"):
        attnc.load(tmp_path / "model.pt")
    with pytest.raises(FileError, match=r"none\.safetensors: No such file or directory$"):
        attnc.load(tmp_path / "none.safetensors")
    head = attnc.head("relu", domain=(-1, 1), eps=1e-2)
    with pytest.raises(FileError, match="does not exist; make it first"):
        head.save(tmp_path / "missing" / "head.safetensors")


def test_functions_of_two_arguments_and_of_numpy() -> None:
    box = attnc.Box(-1, 1, shape=(1, 2))

    def two(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    with pytest.raises(InputError, match="f is called with one tensor"):
        attnc.compile(two, domain=box, eps=1e-2)

    def fails(x: Tensor) -> Tensor:
        raise TypeError("its own")

    with pytest.raises(InputError, match=r"TypeError: its own$"):
        attnc.compile(fails, domain=box, eps=1e-2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numpy_inside_of_a_function() -> None:
    """Its operations cannot be recorded, so its error is measured, and the notes say why."""
    box = attnc.Box(-1, 1, shape=(1, 2))
    net = attnc.compile(lambda x: np.sin(x[..., :1] * x[..., 1:]), domain=box, eps=1e-2, dtype=torch.float64)
    assert net.certificate.status == "measured" and any("outside torch" in note for note in net.notes)


def test_the_box_has_the_wrong_width() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)).eval()
    with pytest.raises(AttncError, match=r"takes 4 features, .*give a box of the shape \(4,\)"):
        attnc.compile(model, domain=attnc.Box(-1, 1, shape=(5,)), eps=1e-2)
    inside = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(4, 1)).eval()  # no box mends this one
    with pytest.raises(AttncError, match="takes 4 features") as raised:
        attnc.compile(inside, domain=attnc.Box(-1, 1, shape=(5,)), eps=1e-2)
    assert "give a box" not in str(raised.value)


def test_a_measured_certificate_does_not_speak_of_every_input() -> None:
    text = str(attnc.head(lambda s: torch.lgamma(s + 4), domain=(-1, 1), eps=1e-2).certificate)
    assert "holds for:   the inputs that were tried in [-1, 1]" in text and "every input" not in text


def test_token_ids_that_are_floats() -> None:
    p = attnc.tokens.program("ab", max_len=3)
    net = p.compile(p.get(p.indices == 0, p.tokens))
    with pytest.raises(InputError, match=r"ids\.long\(\)"):
        net(torch.tensor([0.0, 1.0]))


def test_dtypes_by_name() -> None:
    assert attnc.head("relu", domain=(-1, 1), eps=1e-2, dtype="float64").certificate.dtype == "float64"
    model, box = nn.Sequential(nn.Linear(2, 1)).eval(), attnc.Box(-1, 1, shape=(2,))
    assert attnc.compile(model, domain=box, eps=1e-2, dtype="float64").certificate.dtype == "float64"
    p = attnc.tokens.program("ab", max_len=2)
    assert p.compile(p.tokens, dtype="float64").certificate.dtype == "float64"
    assert attnc.zoo.load("induction", dtype="float64").certificate.dtype == "float64"
    assert attnc.paper.prompted(dtype="float32").dtype == torch.float32
    for wrong in ("float16", torch.float16, 64):
        with pytest.raises(InputError, match=r"dtype=.*float32.*float64"):
            attnc.head("relu", domain=(-1, 1), eps=1e-2, dtype=wrong)  # type: ignore[arg-type]


def test_arguments_that_do_not_exist() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    with pytest.raises(ArgumentError, match=r"'eps'.*approximation="):
        attnc.convert_(model, eps=1e-5)  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match=r"'eps'.*approximation="):
        attnc.convert(model, eps=1e-5)  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match="'domain'"):
        attnc.head("gelu", domian=(-1, 1), eps=1e-3)  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match=r"config=\{'engine': 'softmax'\}"):
        attnc.convert_(model, approximation=1e-3, engine="softmax")  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match=r"config=\{'engine': 'softmax'\}"):
        attnc.convert(model, approximation=1e-3, engine="softmax")
    with pytest.raises(ArgumentError, match="approximation"):
        attnc.convert_(model)  # type: ignore[call-arg]
    assert issubclass(ArgumentError, AttncError) and issubclass(ArgumentError, TypeError)


def test_conditions_of_tokens_that_never_hold() -> None:
    p = attnc.tokens.program("abc", max_len=4)
    with pytest.warns(ConditionWarning, match=r"'a', 'b', 'c'> == 'z'") as caught:
        never = p.tokens == "z"
    assert caught[0].filename == __file__
    assert p.interpret(p.count(never), "abc") == [0, 0, 0]
    with pytest.warns(ConditionWarning, match=r"0, 1, 2, 3>"):
        assert p.interpret(p.count(p.indices == p.tokens.q), "ab") == [0, 0]
    assert p.interpret(p.count(p.tokens == "a"), "ab") == [1, 1]


def test_comparisons_of_a_key_with_itself() -> None:
    """A forgotten .q is noticed where the comparison is constant; others at one position are legitimate."""
    p = attnc.tokens.program("abc", max_len=4)
    t, i = p.tokens, p.indices
    for compare in (lambda: i == i - 1, lambda: t == t, lambda: i.q < i.q + 1, lambda: 2 * i == 2 * i + 1):
        with pytest.warns(ConditionWarning, match=r"i\.q - 1") as caught:
            compare()
        assert [w.filename for w in caught] == [__file__]
    previous = p.get(i == i.q - 1, t, default="-")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert p.interpret(p.count(previous == t), "aab") == [1, 1, 1]
        _ = (i == 2 * i - 1, i < 2 * i, previous != t, p.count(t == t.q) == i, i == p.length - 1)
        one = attnc.tokens.program("a", max_len=1)
        _ = one.tokens == one.tokens


def test_conditions_that_hold_for_hidden_keys_alone() -> None:
    """An off-by-one in a causal program selects nothing, in every sequence."""
    p = attnc.tokens.program("abc", max_len=4, causal=True)
    t, i = p.tokens, p.indices
    for select in (
        lambda: p.get(i == i.q + 1, t, default="-"),
        lambda: p.count(i > i.q),
        lambda: p.count(~(i <= i.q)),
        lambda: p.exists((i > i.q - 2) & (i == i.q + 2) & (t == t.q)),
        lambda: p.count((i >= 2) & (i.q < 2)),
        lambda: p.mean(i.q < i, i),
    ):
        with pytest.warns(
            ConditionWarning, match="causal program: keys after the query are hidden"
        ) as caught:
            select()
        assert [w.filename for w in caught] == [__file__]
    both = attnc.tokens.program("abc", max_len=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p.count(~(i > i.q) & (t == t.q))
        p.count((i > i.q) | (i == i.q))
        p.get(i == 3, t, default="-")
        both.count(both.indices > both.indices.q)


def test_mistakes_in_expressions_say_what_to_write() -> None:
    p, q = (attnc.tokens.program(vocab, max_len=4) for vocab in ("abc", [0, 1]))
    t, i = p.tokens, p.indices
    previous = p.get(i == i.q - 1, t, default="-", name="previous")
    for call, said in (
        (lambda: previous == t.q & i < i.q, "parentheses around each comparison"),
        (lambda: (previous == t.q) & i < i.q, "parentheses around each comparison"),
        (lambda: p.count(previous == t & i), "parentheses around each comparison"),
        (lambda: p.count(~t.q), "takes a condition"),
        (lambda: p.compile(t == t.q), r"p\.count.*p\.exists.*p\.get"),
        (lambda: p.get(True, t.q), r"leave out \.q"),
        (lambda: len(t), r"p\.length"),
        (lambda: "a" in t, r"x == 'a'"),
        (lambda: len(t == t.q), r"p\.count"),
    ):
        with pytest.raises(ExpressionError, match=said) as raised:
            call()
        assert isinstance(raised.value, TypeError) and isinstance(raised.value, AttncError)
    for call, said in (
        (lambda: p.count((t < t.q) | ((t == t.q) & (i < i.q))), r"p\.count\(a\) \+ p\.count\(b\)"),
        (lambda: p.count((t < t.q) | (i < i.q)), r"p\.count\(a\) \+ p\.count\(b\)"),
        (lambda: t in ["a", "b"], r"x\.map\(lambda v: v in values\)"),
        (lambda: q.mean(True, q.tokens, name="m") * q.length, r"mean 'm'.*int\(x \* y\)"),
        (lambda: q.mean(True, q.tokens).map(lambda x: x), r"returns 1/4 for \(1/4\).*int"),
    ):
        with pytest.raises(InputError, match=said):
            call()
    whole = q.map(lambda x, y: int(x * y), q.mean(True, q.tokens), q.length)
    assert q.interpret(whole, [1, 0, 1]) == [2, 2, 2]


def test_messages_name_variables_as_they_are_written_and_advise_once() -> None:
    p = attnc.tokens.program("abc", max_len=4)
    t, i = p.tokens, p.indices
    for get, written, advice in (
        (p.get(i == i.q - 1, t), "get(index == (index - 1).q, token)", "default"),
        (p.get(i < i.q, t, default="-"), "get(index < index.q, token)", "tie='first'"),
    ):
        with pytest.raises(NotExactError) as raised:
            p.compile(get)
        text = str(raised.value)
        assert written in text and text.count(advice) == 1 and "get2" not in text and "linear" not in text
    assert repr(i == i.q + 1) == "<Where: index == (index + 1).q>"
    assert repr(p.count((t == "a") & (t != t.q))).startswith("<count((token == 'a') & (token != token.q)): 0")
    net = p.compile(p.get(i == i.q - 1, t, default="-", name="previous"))
    for call, said in (
        (lambda: net.run(["ab", "ba"]), "one sequence"),
        (lambda: net.run([["a"], ["b"]]), "one sequence"),
        (lambda: net.run("a cab"), "each letter a token"),
        (lambda: net.run([0, 1]), r"net\(ids\)"),
    ):
        with pytest.raises(InputError, match=said):
            call()
    words = attnc.tokens.program(["the", "cat"], max_len=3)
    with pytest.raises(InputError, match=r"'the cat'\.split\(\)"):
        words.compile(words.tokens).run("the cat")
    for call, said in (
        (lambda: net.layout["prev"], r"one, bos, token, index, previous$"),
        (lambda: net.attention(net.encode("ab"))["prev"], r"no head.*0\.0 previous$"),
    ):
        with pytest.raises(UnknownNameError, match=said) as unknown:
            call()
        assert isinstance(unknown.value, KeyError)
    assert len(repr(net.program)) < 100


def test_queries_far_outside_the_examples() -> None:
    pytest.importorskip("sklearn")
    from attnc.incontext import InContextClassifier, InContextRegressor

    x = np.linspace(-1, 1, 12)[:, None]
    for model, y in (
        (InContextRegressor("squared", steps=60), 2 * x[:, 0]),
        (InContextClassifier(steps=60), x[:, 0] > 0),
    ):
        model.set_params(tol=1.0).fit(x, y)
        model.predict(x)
        with pytest.warns(DomainWarning, match="row 1, column 0 is 100"):
            model.predict([[0.5], [100.0]])
        model.predict([[100.0]])  # once
        assert model.certified([[0.5], [100.0]]).tolist() == [True, False]
        with pytest.raises(InputError, match=r"row 0, column 0 is 100, .* up to \d"):
            model.set_params(strict=True).predict([[100.0]])
        model.set_params(strict=False).fit(x, y).predict([[100.0]])


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: attnc.head("gelu", domain=(-1, 1), epsilon=1e-5), "eps"),
        (lambda: attnc.paper.one_head([[1.0]], [0.0], -1, 1, p=9), "anchors"),
        (lambda: attnc.paper.many_heads([[1.0]], [0.0], -1, 1, H=9), "heads"),
        (lambda: attnc.paper.two_layer(torch.sin, attnc.Box(-1, 1, shape=(1, 1)), epsilon=0.1), "eps"),
        (lambda: attnc.paper.selectors.select("sin", anchors=4, interval=(-1, 1)), "domain"),
    ],
)
def test_a_name_of_the_paper_or_of_another_library_is_understood(call: Any, meant: str) -> None:
    with pytest.raises(ArgumentError, match=rf"did you mean '{meant}'"):
        call()


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ArgumentError, match="'domain'"):
        attnc.paper.selectors.select("sin", "sparsemax", anchors=4)


@pytest.mark.parametrize(("given", "meant"), [("hardmax", "hard"), ("sparsmax", "sparsemax")])
def test_a_word_that_is_almost_right(given: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"{given}.*did you mean '{meant}'"):
        attnc.paper.selectors.select("sin", given, anchors=4, domain=(-1, 1))


@pytest.mark.parametrize("f", [lambda x: torch.tensor(math.sin(x)), lambda x: x * x.item()])
def test_a_function_of_one_python_number_is_told_to_use_torch(f: Any) -> None:
    with pytest.raises(InputError, match=r"torch\.sin"):
        attnc.compile(f, domain=attnc.Box(-1, 1, shape=(1, 1)), eps=0.1)


def test_notes_count_in_singular() -> None:
    net = attnc.compile(torch.sin, domain=attnc.Box(-1, 1, shape=(1, 1)), eps=1e-2)
    notes = " ".join(net.notes)
    assert "1 number:" in notes and "1 operation of" in notes and "=" not in notes
