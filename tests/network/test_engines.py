"""The engines of one head: softmax and sdpa within its certificate, the closed form within its own bound."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnc
from attnc import functions
from attnc.errors import InputError
from attnc.network.engines import CERTIFIED, closed_form_of, sdpa, window_now
from attnc.network.network import Network, rebuilt
from attnc.prove.window import window_bound
from attnc.records.numbers import HeadNumbers
from attnc.records.record import Record
from attnc.records.window_numbers import FUNCTIONS, Window
from tests.lower.exact_heads import activation_head

HEADS = [
    ("tanh", (-8, 8), {"eps": 1e-5}),
    ("tanh", (-8, 8), {"eps": 1e-12, "dtype": torch.float64}),
    ("gelu", (-4, 4), {"anchors": 5, "dtype": torch.float64}),
    ("relu", (-1, 2), {"anchors": 12, "design": "graded"}),
]


@pytest.fixture(scope="module", params=HEADS, ids=[f"{h[0]}-{i}" for i, h in enumerate(HEADS)])
def head(request: pytest.FixtureRequest) -> attnc.Head:
    spec, on, options = request.param
    return attnc.head(spec, domain=on, **options)


@pytest.fixture(scope="module")
def net() -> Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).eval()
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-3)


def inputs(head: attnc.Head, *shape: int) -> Tensor:
    domain = head.certificate.holds_for
    u = torch.rand(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return (domain.lo + domain.width * u).clamp(domain.lo, domain.hi).to(head.key.dtype)


def test_engines_agree_within_twice_the_rounding(head: attnc.Head) -> None:
    domain = head.certificate.holds_for
    ends = torch.tensor([domain.lo, domain.hi, domain.middle], dtype=head.key.dtype)
    s = torch.cat([inputs(head, 5000), ends])
    columns, keys = head.run(s, "softmax"), head.run(s, "sdpa")
    assert float((columns.double() - keys.double()).abs().max()) <= 2 * head.certificate.rounding
    f = attnc.functions.get(head.certificate.facts["function"])
    for out in (columns, keys):
        error = (out.double() - f(s.double())).abs().max()
        assert float(error) <= head.certificate.bound


def test_columns_is_the_head_s_own(head: attnc.Head) -> None:
    s = inputs(head, 100)
    assert torch.equal(head.run(s, "softmax"), head(s))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (2, 0, 3), (4, 1, 2, 3)])
def test_any_shape(head: attnc.Head, shape: tuple[int, ...]) -> None:
    s = inputs(head, *shape)
    out = head.run(s, "sdpa")
    assert out.shape == s.shape and out.dtype == s.dtype


def test_inputs_that_are_not_contiguous(head: attnc.Head) -> None:
    s = inputs(head, 6, 10).T[::3]
    assert not s.is_contiguous()
    assert torch.equal(head.run(s, "sdpa"), head.run(s.contiguous(), "sdpa"))


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each call of scaled_dot_product_attention had."""
    seen: list[int] = []
    own = F.scaled_dot_product_attention

    def spy(query: Tensor, *args: object, **options: object) -> Tensor:
        seen.append(query.shape[-2])
        return own(query, *args, **options)

    monkeypatch.setattr("attnc.network.engines.F.scaled_dot_product_attention", spy)
    return seen


@pytest.mark.parametrize("count", [65535, 65536, 65537, 2 * 65536 + 1])
def test_memory_is_bounded_by_chunks_of_queries(count: int, queries: list[int]) -> None:
    head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    s = inputs(head, count)
    out = sdpa(head, s)
    assert max(queries) <= 65536 and sum(queries) == count and len(queries) == -(-count // 65536)
    edges = torch.tensor([0, 65534, min(65535, count - 1), count - 1])
    alone = torch.cat([sdpa(head, s[i : i + 1]) for i in edges])
    assert float((out[edges] - alone).abs().max()) <= 2 * head.certificate.rounding


@pytest.mark.parametrize("count", [0, 63, 64, 65, 128, 129])
def test_chunks_change_nothing(
    count: int, head: attnc.Head, queries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = inputs(head, count)
    whole = sdpa(head, s)
    assert queries == [count]
    monkeypatch.setattr("attnc.network.engines._QUERIES", 64)
    out = sdpa(head, s)
    assert queries[1:] == ([64] * (count // 64) + [count % 64] * (count % 64 > 0) or [0])
    assert torch.allclose(out, whole, rtol=0, atol=2 * head.certificate.rounding)


def test_gradients_flow_through_both() -> None:
    head = attnc.head("tanh", domain=(-8, 8), eps=1e-12, dtype=torch.float64)
    s = inputs(head, 6).requires_grad_()
    for engine in CERTIFIED:
        assert torch.autograd.gradcheck(lambda x, engine=engine: head.run(x, engine), (s,))


def test_tokens_that_attend_to_themselves_are_not_dense() -> None:
    gated = attnc.head("silu", domain=(-8, 8), anchors=2, design="gated")
    with pytest.raises(InputError, match="softmax"):
        gated.run(torch.zeros(3), "sdpa")
    numbers = gated.numbers()
    plain = attnc.Head(
        HeadNumbers(numbers.query, numbers.key, 0 * numbers.value, numbers.output, numbers.dtype), "plain"
    )
    assert plain.run(torch.zeros(3), "sdpa").shape == (3,)
    plain.load_state_dict(gated.state_dict())
    with pytest.raises(InputError):
        plain.run(torch.zeros(3), "sdpa")


def test_more_keys_than_were_analysed_are_not_dense() -> None:
    query, key = np.array([[1.0, 0.0]]), np.zeros((1, 513, 2))
    few, many = (
        attnc.Head(HeadNumbers(query, key[:, :p], key[:, :p], np.ones(1), "float32"), "flat")
        for p in (512, 513)
    )
    assert torch.equal(few.run(torch.ones(3), "sdpa"), torch.zeros(3))
    assert torch.equal(many.run(torch.ones(3), "softmax"), torch.zeros(3))
    with pytest.raises(InputError, match="512"):
        many.run(torch.ones(3), "sdpa")


def test_several_heads_are_not_dense() -> None:
    several = attnc.head("sin", domain=(-3, 3), anchors=6, heads=3)
    with pytest.raises(InputError):
        several.run(torch.zeros(3), "sdpa")


UNKNOWN = ["", "Dense", "flash", None, 0, ["softmax"]]


@pytest.mark.parametrize("engine", UNKNOWN)
def test_an_unknown_engine_is_refused(engine: object, net: Network) -> None:
    with pytest.raises(InputError, match="'softmax'"):
        rebuilt(Record(net.numbers(), net.certificate, net.program), engine)
    with pytest.raises(InputError, match="'softmax'"):
        Network(list(net.stages), net.program, net.certificate, engine)


@pytest.mark.parametrize("engine", UNKNOWN)
def test_a_head_refuses_an_unknown_engine_too(engine: object, net: Network) -> None:
    with pytest.raises(InputError, match="softmax"):
        net.layers[0][0].run(torch.zeros(3), engine)


def lattice_head(dtype: str = "float32") -> attnc.Head:
    return activation_head(functions.get("gelu"), attnc.Interval(-8, 8), 1e-5, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_head_with_a_window_runs_by_its_closed_form(dtype: str) -> None:
    head = lattice_head(dtype)
    s = torch.linspace(-8, 8, 3001, dtype=getattr(torch, dtype))
    out = head.run(s, "closed-form")
    proof = window_bound(closed_form_of(head), functions.get("gelu"), head.domain)
    assert float((out.double() - F.gelu(s.double())).abs().max()) <= proof.bound < 2e-5
    assert out.dtype == s.dtype and not torch.equal(out, head(s))
    with pytest.raises(InputError, match="108"):
        head.run(100 + s, "closed-form", strict=True)


def test_a_head_of_gelu_runs_its_tail_while_it_is_certified() -> None:
    head, tail = lattice_head(), FUNCTIONS["gelu", "float32"]
    assert window_now(head) == tail and window_now(copy.deepcopy(head)) == tail
    with torch.no_grad():
        head.value[0, head.key[0, :, 0].abs().argmin(), 1] += 2.0**-10
    assert isinstance(window_now(head), Window), "its own, of the numbers as they are now"
    assert window_now(lattice_head().double()) != tail, "its certificate is for float32"
    assert isinstance(window_now(lattice_head("float64")), Window)
    unknown = attnc.Head(lattice_head().numbers(), "lattice")
    assert isinstance(window_now(unknown), Window)


def test_the_closed_form_follows_the_numbers_of_a_head() -> None:
    head, s = lattice_head(), torch.linspace(-8, 8, 101)
    before = head.run(s, "closed-form")
    with torch.no_grad():
        head.value[0, head.key.shape[1] // 2, 1] += 1
    moved = head.run(s, "closed-form")
    assert float((moved - before).abs().max()) > 0.1
    torch.testing.assert_close(moved, head(s), rtol=1e-4, atol=1e-4)
    head.load_state_dict(lattice_head().state_dict())
    torch.compiler.reset()
    compiled = torch.compile(lambda s: head.run(s, "closed-form"), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(s), before)


def test_a_head_without_a_window_has_no_closed_form(head: attnc.Head) -> None:
    with pytest.raises(InputError, match="softmax"):
        head.run(inputs(head, 3), "closed-form")
    learning = lattice_head().requires_grad_()
    with pytest.raises(InputError, match="softmax"):
        learning.run(torch.zeros(3), "closed-form")


def test_a_network_does_not_claim_the_closed_form(net: Network) -> None:
    with pytest.raises(InputError, match="closed-form"):
        attnc.compile(nn.Tanh(), domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-3, engine="closed-form")
    twin = copy.deepcopy(net)
    twin.engine = "closed-form"
    assert "closed-form" in twin.why_not_certified()


def test_a_network_runs_by_either(net: Network) -> None:
    other = rebuilt(Record(net.numbers(), net.certificate, net.program), "sdpa")
    assert (net.engine, other.engine) == ("softmax", "sdpa")
    x = torch.rand(500, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert float((net(x) - other(x)).abs().max()) <= 2 * net.certificate.bound
    assert other.why_not_certified() is None
    assert attnc.verify(other).status == "proved"
    twin = copy.deepcopy(net)
    twin.engine = "sdpa"
    assert torch.equal(twin(x), other(x))


def test_compile_takes_an_engine(net: Network, queries: list[int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).eval()
    made = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-3, engine="sdpa")
    queries.clear()
    made(torch.zeros(2, 3))
    assert queries == [12, 12]
    assert made.certificate.bound == net.certificate.bound
    assert made.numbers().digests() == net.numbers().digests()
