"""Names in token networks: coordinates, groups of them, and heads."""

from __future__ import annotations

import itertools

import pytest
import torch

from attnc import tokens, zoo
from attnc.errors import InputError


def _boolean_variables() -> dict[str, tuple[tokens.ProgramBuilder, tokens.Variable, list[tokens.Variable]]]:
    """Programs in which heads write variables of True and False, in every way there is: by name, the output and these."""
    found = {}
    for causal in (False, True):
        p = tokens.program("ab", max_len=4, causal=causal)
        has = p.exists(p.tokens == "a", name="has a")
        earlier = p.exists((p.tokens == p.tokens.q) & (p.indices < p.indices.q), name="seen")
        first = p.get(p.indices == 0, p.named("is a", p.tokens == "a"), default=False, name="first is a")
        many = p.named("even", p.count(p.tokens == "b", name="bs") % 2 == 0)
        output = p.map(lambda *given: "".join("01"[x] for x in given), has, earlier, first, many)
        found[f"causal={causal}"] = p, output, [has, earlier, first, many]
    return found


@pytest.mark.parametrize("name", ["causal=False", "causal=True"])
def test_coordinates_of_true_and_false_hold_what_their_names_say(name: str) -> None:
    p, output, variables = _boolean_variables()[name]
    net = p.compile(output)
    assert {"has a=False", "seen=False"} <= set(net.layout) and not {"has a", "seen"} & set(net.layout)
    compared = 0
    for sequence in (s for n in range(1, 5) for s in itertools.product("ab", repeat=n)):
        stream = net.stream(net.encode(sequence))[1:]
        for variable in variables:
            truth = p.interpret(variable, sequence)
            title = p.known.names[variable.node]
            for group, at in net.layout.items():
                if group != title and not group.startswith(f"{title}="):
                    continue
                for k in range(at.start, at.stop):
                    value = net.coordinates[k].removeprefix(title).removeprefix("=") or "True"
                    assert stream[:, k].tolist() == [float(str(x) == value) for x in truth]
                    compared += 1
    assert compared >= 30 * 4


def test_descriptions_name_every_variable() -> None:
    for name in zoo.names("tokens"):
        net = zoo.load(name)
        text = net.describe()
        stems = {group.split(" >= ")[0] for group in net.layout}
        assert all(stem in text for stem in stems) and ", …" not in text
    assert "some mismatch=False" in zoo.load("dyck-2").describe()


def test_heads_by_their_bare_name() -> None:
    net = zoo.load("induction", vocabulary=2, length=3)
    weights, effects = net.attention(net.encode("ab")), net.effects()
    assert torch.equal(weights["induction"], weights["1.0 induction"]) and list(weights)[1] == "1.0 induction"
    assert effects["previous"] == effects["0.0 previous"]
    for name in ("2.0 induction", "", 0):
        with pytest.raises(InputError, match=r"1\.0 induction"):
            weights[name]
