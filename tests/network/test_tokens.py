"""Token networks as modules: batches, padding, files, and what ends a certificate."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import attnc
from attnc import tokens, zoo
from attnc.check.tokens import prove_tokens
from attnc.errors import FileError, InputError, UnsupportedError
from attnc.network.token_sequences import sample_of, sequences_of
from attnc.network.tokens import digests_of
from attnc.program.tokens import TokenProgram
from attnc.records.certificate import Status


@pytest.fixture
def net() -> tokens.TokenNetwork:
    return zoo.load("most-frequent", vocabulary=3, length=5)


def test_batches_and_padding(net: tokens.TokenNetwork) -> None:
    sequences = ["a", "bb", "abc", "cabc", "bbbca"]
    ids = torch.full((5, 5), 2)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = net.encode(sequence)
    lengths = torch.tensor([len(s) for s in sequences])
    found = net(ids, lengths).argmax(-1)
    for row, sequence in enumerate(sequences):
        assert [net.outputs[i] for i in found[row, : len(sequence)]] == net.run(sequence)
    assert not net(ids, lengths).isnan().any()
    assert torch.equal(net(ids, lengths.tolist()), net(ids, lengths))
    for wrong in ([1, 2], [1.0] * 5, [True] * 5):
        with pytest.raises(InputError, match="lengths"):
            net(ids, wrong)
    assert net(ids[0]).shape == (5, 3) and net(ids[:0]).shape == (0, 5, 3)


def test_padding_does_not_influence_other_positions(net: tokens.TokenNetwork) -> None:
    """Whatever the rows of padding hold: here the position embedding and the first layer make them infinite and NaN."""
    ids, lengths = net.encode("abcaa")[None], torch.tensor([3])
    expected = net(net.encode("abc"))
    with torch.no_grad():
        net.positions[4:] = 3e38
    found = net(ids, lengths)[0]
    assert torch.equal(found[:3], expected) and not found[3:].any()
    assert torch.equal(net.stream(ids, lengths)[0, :4], net.stream(ids[0, :3]))
    assert not net.stream(ids, lengths)[0, 4:].any()
    pattern = net.attention(ids, lengths)
    for name, weights in net.attention(ids[0, :3]).items():
        assert torch.equal(pattern[name][0, :4, :4], weights) and not pattern[name][0, :4, 4:].any()


def test_padding_is_0_before_every_layer(net: tokens.TokenNetwork) -> None:
    """A layer that makes its padding queries overflow: the next layer does not see it."""
    expected = net(net.encode("abc"))
    padding = torch.arange(6)[None, :, None] > 3
    for layer in net.layers:
        layer.register_forward_hook(lambda module, args, x: x.masked_fill(padding, torch.nan))
    found = net(net.encode("abcaa")[None], torch.tensor([3]))[0]
    assert torch.equal(found[:3], expected) and not found[3:].any()


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.layers.append(attnc.head("cos", domain=(-8, 8), eps=1e-3)),
        lambda net: net.layers.append(torch.nn.Identity()),
        lambda net: setattr(net, "layers", torch.nn.Sequential(*net.layers)),
        lambda net: setattr(net, "other", zoo.load("histogram", vocabulary=2, length=2)),
    ],
)
def test_other_parts_are_noticed(
    net: tokens.TokenNetwork, change: Callable[[tokens.TokenNetwork], object]
) -> None:
    change(net)
    assert net.why_not_certified() is not None
    assert attnc.verify(net).status is Status.UNKNOWN
    with pytest.raises(InputError):
        net.run("ab")


@pytest.mark.parametrize(
    "ids",
    [
        torch.zeros(1, 6, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long), torch.tensor([[0, 3]]),
        torch.tensor([[-1]]), torch.zeros(1, 2), torch.zeros(1, 1, 1, dtype=torch.long), [0, 1], "ab",
    ],
)  # fmt: skip
def test_bad_ids(net: tokens.TokenNetwork, ids: object) -> None:
    with pytest.raises(InputError):
        net(ids)


@pytest.mark.parametrize(
    "lengths", [torch.tensor([0]), torch.tensor([3]), torch.tensor([1, 1]), 2, torch.tensor([1.0])]
)
def test_bad_lengths(net: tokens.TokenNetwork, lengths: object) -> None:
    with pytest.raises(InputError):
        net(torch.zeros(1, 2, dtype=torch.long), lengths)


def test_bad_sequences(net: tokens.TokenNetwork) -> None:
    for sequence in ("", "abcabc", "abd", [0, 1], 5, None, [["a"]], torch.tensor([0, 1])):
        with pytest.raises(InputError):
            net.run(sequence)


def test_saved_and_loaded(net: tokens.TokenNetwork, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    net.save(path)
    again = attnc.load(path)
    assert isinstance(again, tokens.TokenNetwork)
    assert again.certificate == net.certificate and again.why_not_certified() is None
    assert again.run("cabb") == net.run("cabb") and again.coordinates == net.coordinates
    assert attnc.verify(path) and attnc.verify(again)


def test_damaged_files_are_refused(net: tokens.TokenNetwork, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    net.save(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'\\"length\\": 5', b'\\"length\\": 4'))
    with pytest.raises(attnc.AttncError):
        attnc.load(path)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError):
        attnc.verify(path)
    flipped = bytearray(data)
    flipped[-4:] = b"\x00\x00\x00\x40"
    path.write_bytes(bytes(flipped))
    assert attnc.verify(path).status is Status.UNKNOWN
    loaded = attnc.load(path)
    assert isinstance(loaded, tokens.TokenNetwork) and loaded.why_not_certified() is not None


def test_changes_end_the_certificate(net: tokens.TokenNetwork) -> None:
    with torch.no_grad():
        net.layers[-1].output[0] = 0
    assert net.why_not_certified() is not None
    assert attnc.verify(net).status is Status.UNKNOWN


def test_hooks_and_casts_end_the_certificate(net: tokens.TokenNetwork) -> None:
    handle = net.layers[0].register_forward_hook(lambda *_: None)
    assert net.why_not_certified() is not None and attnc.verify(net).status is Status.UNKNOWN
    handle.remove()
    assert net.why_not_certified() is None
    net.double()
    assert net.why_not_certified() is not None
    net.float()
    assert net.why_not_certified() is None
    net.half()
    assert net.why_not_certified() is not None


def test_tensors_of_several_dtypes_end_the_certificate() -> None:
    """Embeddings of float32 and float64 add up to float64, in which keys that lose by 128 have the weight 3e-56. Here the
    unembedding makes that a wrong token, though everything that float32 executes is proved."""
    p = tokens.program("ab", max_len=3, causal=True)
    previous = p.get(p.indices == p.indices.q - 1, p.tokens, default="a", name="previous")
    net = p.compile(previous)
    a, b = (net.coordinates.index(f"previous={token}") for token in "ab")
    unembedding = np.zeros((len(net.coordinates), 2))
    unembedding[a, 0], unembedding[b, 1] = 2.0**-110, 2.0**100
    numbers, facts = replace(net.numbers(), unembedding=unembedding), dict(net.certificate.facts)
    facts["margin"] = prove_tokens(net.program, numbers).margin
    sealed = replace(net.certificate, facts=facts, digests=dict(digests_of(numbers, net.program)))
    net = tokens.TokenNetwork(numbers, net.program, sealed)
    assert attnc.verify(net) and net.run("bab") == p.interpret(previous, "bab")
    net.double().tokens = torch.nn.Parameter(net.tokens.float(), requires_grad=False)
    assert net.run("bab") != p.interpret(previous, "bab")
    assert not attnc.verify(net) and "they must share one" in (net.why_not_certified() or "")
    narrow = net.tokens
    del net.tokens
    net.register_buffer("tokens", narrow.detach())  # no parameter
    with pytest.raises(InputError, match="they must share one"):
        net.numbers()


def test_another_program_ends_the_certificate(net: tokens.TokenNetwork) -> None:
    net.program = zoo.load("histogram", vocabulary=3, length=5).program
    assert net.why_not_certified() is not None
    assert attnc.verify(net).status is Status.UNKNOWN


def test_a_changed_program_ends_the_certificate() -> None:
    """The domain of the output is replaced in the program's cache: its fields are the same, the network returns other values."""
    p = tokens.program("ab", 3)
    for values in (("y", "x"), (0, 1)):
        output = p.tokens.map(lambda t: {"a": "x", "b": "y"}[t]) if values == ("y", "x") else p.tokens == "a"
        net = p.compile(output)
        assert net.why_not_certified() is None and attnc.verify(net)
        vars(net.program)["domains"] = (*net.program.domains[:-1], values)
        assert net.why_not_certified() is not None and attnc.verify(net).status is Status.UNKNOWN
    net = p.compile(p.tokens)
    vars(net.program)["sequence"] = lambda given: ["a"] * len(given)  # in the place of the method
    assert net.run("bb") == ["a", "a"]
    assert net.why_not_certified() is not None and attnc.verify(net).status is Status.UNKNOWN
    net = p.compile(p.tokens)
    program = type("Other", (TokenProgram,), {})
    net.program = program(*(getattr(net.program, f.name) for f in fields(net.program)))
    assert net.why_not_certified() is not None and attnc.verify(net).status is Status.UNKNOWN


def test_attention_is_exact() -> None:
    net = zoo.load("induction")
    weights = net.attention(net.encode("abcab"))
    assert list(weights) == ["0.0 previous", "1.0 induction"]
    assert weights["1.0 induction"][5].tolist() == [
        0,
        0,
        0,
        1,
        0,
        0,
    ]  # at the second b: the c after the first
    assert weights["0.0 previous"].tolist()[1:] == torch.eye(6)[[0, 1, 2, 3, 4]].tolist()
    assert net.stream(net.encode("ab")).shape == (3, len(net.coordinates))


def test_sdpa_computes_the_same_tokens(net: tokens.TokenNetwork) -> None:
    """Not certified, but worth knowing: scaled_dot_product_attention with scale 1 gives the same stream."""
    ids = torch.randint(0, 3, (64, 5), generator=torch.Generator().manual_seed(0))
    x = net._embedded(ids)
    for layer in net.layers:
        q, k, v = (x[:, None] @ getattr(layer, name) for name in ("query", "key", "value"))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
        x = x + (attended @ layer.output).sum(1)
    assert torch.equal((x[:, 1:] @ net.unembedding).argmax(-1), net(ids).argmax(-1))


def test_flushing_subnormal_numbers_changes_nothing(net: tokens.TokenNetwork) -> None:
    ids = torch.randint(0, 3, (64, 5), generator=torch.Generator().manual_seed(1))
    expected = net(ids)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        assert torch.equal(net(ids), expected)
    finally:
        torch.set_flush_denormal(False)


def test_text(net: tokens.TokenNetwork) -> None:
    text = net.describe()
    assert "head 2.0" in text and "occurrences" in text and "heads=[1, 1, 1]" in repr(net)
    assert "every sequence of length 1 to 5 over 3 tokens (363 sequences)" in str(net.certificate)


def test_steps_at_bos_are_described() -> None:
    assert "At BOS every step is 1" in zoo.load("sort", vocabulary=2, length=3).describe()
    assert "At BOS" not in zoo.load("induction").describe()


def test_stream_after_each_layer() -> None:
    net = zoo.load("sort")
    ids, kept = net.encode("dbca")[None], list[torch.Tensor]()
    handles = [layer.register_forward_hook(lambda m, args, out: kept.append(out)) for layer in net.layers]
    last = net.stream(ids)
    for handle in handles:
        handle.remove()
    assert len(kept) == 4 and torch.equal(kept[-1], last)
    for k, after in enumerate(kept):
        assert torch.equal(net.stream(ids, layer=k), after)
    embedding = net.stream(ids, layer=-1)
    assert torch.equal(embedding[0], net.tokens[[4, 3, 1, 2, 0]] + net.positions[:5])
    for layer in (4, -2, 1.0, True):
        with pytest.raises(InputError):
            net.stream(ids, layer=layer)  # type: ignore[arg-type]


def test_steps_are_1_at_bos() -> None:
    for name in ("sort", "dyck-2"):
        net = zoo.load(name)
        stream = net.stream(torch.zeros(1, 3, dtype=torch.long))[0, 0]
        steps = [i for i, c in enumerate(net.coordinates) if " >= " in c]
        assert len(steps) > 5 and bool((stream[steps] == 1).all())


@pytest.mark.parametrize("name", zoo.names("tokens"))
def test_layout_covers_all_coordinates_once(name: str) -> None:
    net = zoo.load(name)
    assert [i for at in net.layout.values() for i in range(at.start, at.stop)] == list(
        range(len(net.coordinates))
    )
    for group, at in net.layout.items():
        assert all(c == group or c.startswith(f"{group}=") for c in net.coordinates[at])


def test_effects_are_shares_of_changed_outputs() -> None:
    net = zoo.load("induction", vocabulary=2, length=3)
    effects = net.effects()
    assert list(effects) == list(net.attention(net.encode("ab"))) and net.why_not_certified() is None
    sequences = [
        "a",
        "b",
        *(x + y for x in "ab" for y in "ab"),
        *(x + y + z for x in "ab" for y in "ab" for z in "ab"),
    ]
    found = [output for s in sequences for output in net.run(s)]
    assert effects["1.0 induction"] == sum(x != "-" for x in found) / len(found)
    assert net.effects(["1.0 induction"]) == {"1.0 induction": effects["1.0 induction"]}
    assert net.effects(["induction"])["induction"] == effects["1.0 induction"]
    with pytest.raises(InputError, match=r"0\.0 previous, 1\.0 induction"):
        net.effects(["copy"])


def test_effects_of_a_sample_and_of_all_sequences() -> None:
    """16 of the 340 sequences of up to 4 brackets have the depth 2: the step of depth 3 matters to them alone, through BOS."""
    net = zoo.load("dyck-2", length=4)
    names = ["2.3 depth >= 3", "2.4 depth >= 4"]
    assert net.effects(names, most=2) == dict.fromkeys(names, 0.0)
    sequences = ["".join(s) for n in range(1, 5) for s in itertools.product("()[]", repeat=n)]
    deep = [s for s in sequences if net.run(s)[0] and s[:2] in ("((", "([", "[(", "[[")]
    every = sum(map(len, sequences))
    assert (
        net.effects(names, most=340) == net.effects(names) == {names[0]: 4 * len(deep) / every, names[1]: 0.0}
    )


@pytest.mark.parametrize(("name", "vocabulary", "length"), [("induction", 3, 8), ("sort", 3, 7)])
def test_a_sample_estimates_the_effects_on_all_outputs(name: str, vocabulary: int, length: int) -> None:
    """Lengths are drawn as often as they occur. With as many sequences of every length, shares would be too small."""
    net = zoo.load(name, vocabulary=vocabulary, length=length)
    every, most = net.effects(most=20_000), 1000
    found = net.effects(most=most)
    assert max(abs(found[name] - every[name]) for name in every) < 3 * 0.5 / most**0.5


def test_samples_of_sequences_are_drawn_with_equal_probability() -> None:
    net = zoo.load("histogram", vocabulary=4, length=9)
    sizes = {ids.shape[1]: len(ids) for ids in sample_of(net, 4096)}
    assert sum(sizes.values()) == 4096 and abs(sizes[9] / 4096 - 0.75) < 0.02 and sizes[8] < 0.22 * 4096
    longest = [len(ids) for ids in sequences_of(net, 4096)]
    assert len(longest) == 9 and len(set(longest)) == 1, "comparisons see every length"
    p = tokens.program("abcdefghijklmnopqrstuvwxyz", max_len=512, causal=True)
    shapes = [tuple(ids.shape) for ids in sample_of(p.compile(p.count(p.tokens == "a")), 10)]
    assert all(n >= 509 for _, n in shapes) and sum(c for c, _ in shapes) == 10


def test_a_broken_network_says_so_where_it_is_shown() -> None:
    net = zoo.load("induction")
    assert net.heads == (("previous",), ("induction",)) and "not certified" not in repr(net)
    net.layers[0].output.data[0] = 0
    reason = "changed since it was certified: layers.0.output"
    assert repr(net).endswith(f"not certified: {reason})") and reason in str(net.certificate)
    verdict = attnc.verify(net)
    assert not verdict and verdict.reason == reason


def test_patterns_are_modules() -> None:
    """Hooks on `pattern` see and replace the weights; the certificate then does not apply, nor with another module there."""
    net, kept = zoo.load("induction"), list[torch.Tensor]()
    ids, expected = net.encode("abcab"), net.attention(net.encode("abcab"))["1.0 induction"]
    handle = net.layers[1].pattern.register_forward_hook(lambda m, args, out: kept.append(out))
    net(ids)
    assert torch.equal(kept[0][0, 0], expected) and net.why_not_certified() is not None
    handle.remove()
    assert net.why_not_certified() is None and set(net.state_dict()) == set(
        zoo.load("induction").state_dict()
    )
    handle = net.layers[0].pattern.register_forward_hook(lambda m, args, out: 0 * out)
    assert net.run("abcab") == ["-"] * 5
    handle.remove()
    for other in (torch.nn.Softmax(-1), attnc.head("cos", domain=(-8, 8), eps=1e-3)):
        changed = zoo.load("induction")
        changed.layers[0].pattern = other
        assert changed.why_not_certified() is not None
        assert attnc.verify(changed).status is Status.UNKNOWN
    net.layers[0].other = net.layers[0].pattern
    assert net.why_not_certified() is not None


def test_calls_of_other_models() -> None:
    with pytest.raises(UnsupportedError, match="to_transformer_lens"):
        zoo.load("histogram").as_self_attention()
    with pytest.raises(UnsupportedError, match="as_self_attention"):
        zoo.load("convolution").to_transformer_lens()
    for name in ("to_transformer_lens", "as_self_attention"):
        with pytest.raises(UnsupportedError):
            getattr(zoo.load("ridge-by-newton"), name)()


def test_run_takes_tokens_not_ids() -> None:
    with pytest.raises(InputError, match="Tensor"):
        zoo.load("parity").run(torch.tensor([0, 1]))


def test_a_compiled_module_is_not_proved(net: tokens.TokenNetwork) -> None:
    verdict = attnc.verify(torch.compile(net, backend="eager"))
    assert not verdict and verdict.status is Status.UNKNOWN and "torch.compile" in verdict.reason


@pytest.mark.parametrize("wrong", [[2**70, 4], [2, 2**63], [True, 2], [2.0, 2], [2], [-1, 2], [2, 10]])
def test_lists_of_lengths_that_are_refused(wrong: list[int]) -> None:
    net = zoo.load("induction")
    ids = torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(InputError, match="lengths"):
        net(ids, wrong)
