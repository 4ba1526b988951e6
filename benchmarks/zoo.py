"""docs/zoo.md: the models of the zoo, their heads and pictures; and the tables of docs/tokens.md from results/tokens.json.

python benchmarks/zoo.py      two minutes
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from pages import one_thread, put, write  # noqa: E402

one_thread()

import attnc  # noqa: E402
from attnc import zoo  # noqa: E402
from attnc.network.token_text import AT_BOS, WORDS, blocks, what_it_does  # noqa: E402
from attnc.plot import canvas, token_attention, zoo_model  # noqa: E402
from attnc.records.fields import round_up  # noqa: E402
from attnc.tokens import TokenNetwork  # noqa: E402
from attnc.zoo import token_tasks  # noqa: E402
from tests.zoo.references import REFERENCES, batches, wrong  # noqa: E402

ALL = 400_000  # sequences: all of each model
PAGE, TOKENS, IMG = ROOT / "docs" / "zoo.md", ROOT / "docs" / "tokens.md", ROOT / "docs" / "img"
RESULTS, TRACR = (ROOT / "benchmarks" / "results" / name for name in ("tokens.json", "tracr.json"))
INTRO = """# The zoo

Twenty attention-only models whose mechanism is known. Thirteen are compiled from [token programs](tokens.md) and **proved**: for
every sequence up to its length, the output token is the program's. Seven take [numbers](#models-of-numbers).

Each entry has the mechanism in words, a program that you can paste and change, a table of its layers and heads, the names of the
coordinates of its stream, a picture of its attention on an example, its certificate, and its exports.

```python
>>> from attnc import zoo
>>> net = zoo.load("induction")                    # vocabulary= and length= change its size, dtype= its arithmetic
>>> "".join(net.run("abcab")), net.certificate.proved
('---bc', True)
>>> p, output = zoo.program("induction")           # the program, to change it
>>> p.interpret(output, "abcab")
['-', '-', '-', 'b', 'c']
>>> p, output = zoo.about("add-mod-7").build(range(97), 2)      # the same program over other tokens
>>> p.compile(output).run([90, 12])[-1] == (90 + 12) % 97
True

```

Building a model takes about a second or less, but *sort-numbers* takes about 2 s and *matrix-inverse* 10 s of one core, more if
others use it.

```console
$ attnc zoo list
$ attnc zoo show induction --plot induction.png
$ attnc zoo save induction -o induction.safetensors && attnc verify induction.safetensors
```

The *effect* of a head is measured: the share of outputs that change if what it writes is set to 0, `net.effects()`. It is over
all sequences, or over 4,096 drawn from them with equal probability (standard error about 0.8 percentage points or less). A head
with the effect **none** changes no output of any sequence, `net.effects(most=400_000)`: it computes what the table says, and
nothing needs it. That is part of the answer key too.

`python benchmarks/zoo.py` writes this page. V is the number of tokens, n the largest length, d_model the number of coordinates.
In the pictures of token models, rows are queries and columns are keys. The first row and column are BOS, a position that the
network adds; a query attends to it if no key is selected. At most eight heads are drawn.
"""


def heads_table(net: TokenNetwork) -> str:
    """One row for each head with its effect; steps of a layer share one."""
    rows, effects = ["| layer | heads | what they do | effect |", "|---|---|---|---|"], net.effects()
    idle = [name for name, share in effects.items() if not share]
    effects |= net.effects(idle, most=ALL) if idle else {}
    for i, layer in enumerate(net.numbers().layers):
        steps: dict[str, float] = {}
        for h, role in enumerate(layer.roles):
            share = effects[f"{i}.{h} {role.name}"]
            if role.kind == "step":
                steps[role.name] = share
            else:
                rows.append(
                    f"| {i} | {role.kind} *{role.name}* | {what_it_does(role, net.layout)} | {percent(share)} |"
                )
        if steps:
            names = [f"*{name}*" for name in steps]
            shown = ", ".join(names[:2]) + (", …" if len(steps) > 2 else "")
            title = f"{len(steps)} step{'s' * (len(steps) > 1)}: {shown}"
            rows.append(f"| {i} | {title} | {WORDS['step']} | {effect_of_steps(steps)} |")
    return "\n".join(rows)


def effect_of_steps(steps: dict[str, float]) -> str:
    """The least and the largest effect of the steps of a layer; those without any are named."""
    idle = [f"*{name}*" for name, share in steps.items() if share == 0]
    known = sorted(share for share in steps.values() if share > 0)
    shares = [percent(known[0]), percent(known[-1])]
    found = shares[0] if shares[0] == shares[1] else " to ".join(shares)
    return f"{found}; **none**: {', '.join(idle)}" if idle else found


def percent(share: float) -> str:
    """A share with two digits; a head that changes nothing is marked."""
    return f"{float(f'{100 * share:.2g}'):g} %" if share else "**none**"


def listing(task: token_tasks.TokenTask) -> str:
    """The program as a reader can run it: the body of its function, with its vocabulary and length."""
    body = inspect.cleandoc(inspect.getsource(task.build).split('"""', 2)[2])
    lines = body.replace("return p, ", "output = ").splitlines()
    imports = ["import random", ""] if "random." in body else []
    vocabulary = task.symbols[: task.vocabulary]
    begin = [
        "from attnc import tokens",
        "",
        f"vocab, max_len = {json.dumps(vocabulary) if isinstance(vocabulary, str) else vocabulary}, {task.length}",
    ]
    return "\n".join([*imports, *begin, *lines, "net = p.compile(output)"])


def blocks_of(net: TokenNetwork) -> str:
    """The coordinates, one entry for each block; what steps are at BOS."""
    named = ", ".join(re.sub(r"^(.*?)( × \d+)?$", r"`\1`\2", name) for name in blocks(net.numbers()))
    steps = any(role.kind == "step" for layer in net.layers for role in layer.roles)
    return f"{named}. {AT_BOS}" if steps else f"{named}."


def section(name: str) -> str:
    """A model: program, mechanism, heads, coordinates, picture, certificate."""
    task, net = zoo.about(name), zoo.load(name)
    picture = IMG / f"zoo_{name}.png"
    token_attention(net, sequence=task.tokens, path=picture)
    given = "".join(map(str, task.tokens)) if isinstance(task.tokens[0], str) else list(task.tokens)
    return "\n\n".join(
        (
            f"## {name}",
            f"Computes {task.computes}. V = {task.vocabulary}, n = {task.length}, d_model = {len(net.coordinates)}.",
            f"**Mechanism.** {task.mechanism}",
            f"```python\n{listing(task)}\n```",
            heads_table(net),
            f"Coordinates: {blocks_of(net)}",
            f"![attention of {name} on {given}](img/{picture.name})",
            f"For `{given}` the outputs are `{net.run(task.tokens)}`.",
            f"```text\n{net.certificate}\n```",
            "Exports: " + EXPORTS["tokens"].format(name=name) + ".",
        )
    )


def overview() -> str:
    rows = ["| model | computes | V, n | heads in each layer | d_model |", "|---|---|---|---|---|"]
    for name in zoo.names("tokens"):
        task, net = zoo.about(name), zoo.load(name)
        heads = ", ".join(str(n) for n in net.certificate.facts["layers"])
        link = f"[{name}](#{name})"
        rows.append(
            f"| {link} | {task.computes} | {task.vocabulary}, {task.length} | {heads} | {len(net.coordinates)} |"
        )
    return "\n".join(rows)


NUMBERS = (
    "The zoo also has models whose inputs are numbers. Their certificates bound the error instead. The tables show the literal "
    "form of each, `net.as_self_attention()`: every layer is softmax attention with its own matrices, or a linear map. "
    "[gallery.md](gallery.md), [networks.md](networks.md) and [learning.md](learning.md) explain the constructions."
)
STEPS = {  # layers of learners, by their last word
    "A": "examples and queries read w·x from the weight token",
    "B": "examples apply the activation to w·x, by attention over anchors",
    "C": "the weight token gathers the mean of residual times x from the examples and their twins",
    "gather": "copies all numbers to every token",
    "anchors": "every token attends to the anchors near the input and averages their values",
}
SOLVER = """| layer | heads | what they do |
|---|---|---|
| reading | 2 | every example reads P_j·x from each row token j |
| gathering | 2 for each row | row token j gathers (PA)_j from the examples and their twins |
| product | 2 for each row | row token j gathers (PAP)_j from the row tokens; then P ← 2P − PAP |
| output | 2 | the weight token gathers Xᵀy/n from the examples, and w from the row tokens |

Row tokens hold the rows of P, examples hold x, y and, after reading, P·x; every example has a twin with the opposite sign."""
EXPORTS = {
    "tokens": '`net.save(…)`, `net.to_transformer_lens()`, `attnc.export(net, "{name}.onnx")`',
    "literal": '`model.save(…)`, `model.as_self_attention().to_transformer_lens()`, `attnc.export(model, "{name}.onnx")`',
    "solver": '`model.save(…)`, `attnc.export(model, "{name}.onnx")`; there is no literal form of solvers',
}


def literal_table(literal: Any) -> str:
    """The attention layers of a literal form, those of its first step, and the coordinates of its stream."""
    rows, last = ["| layer | heads | what they do |", "|---|---|---|"], ""
    for line in literal.describe().splitlines():
        found = re.match(r"\d+  attention  (.*?)  +(\d+) head", line)
        if found:
            last, kind = found[1], found[1].split()[-1]
            rows.append(f"| {kind} | {found[2]} | {STEPS[kind]} |")
    blocks = [part.rsplit(" ", 1) for part in str(literal.layout_before(last)).split(", ")]
    sizes = [(name, int(at.split(":")[1]) - int(at.split(":")[0])) for name, at in blocks]
    named = ", ".join(f"`{name}`" + (f" × {size}" if size > 1 else "") for name, size in sizes)
    repeated = " Each step has these layers." if last.startswith("step") else ""
    return "\n".join(rows) + f"\n\nCoordinates: {named}.{repeated}"


def numbers_overview() -> str:
    rows = ["| model | computes | status | bound | built in about |", "|---|---|---|---|---|"]
    for name in zoo.names("continuous"):
        model, known = zoo.about(name), zoo.load(name).certificate
        bound = round_up(known.bound, 3)
        rows.append(
            f"| [{name}](#{name}) | {model.computes} | {known.status} | {bound} | {model.seconds} s |"
        )
    return "\n".join(rows)


def continuous(name: str) -> str:
    """A model with numbers as inputs: mechanism, layers, picture, certificate, exports."""
    about, model = zoo.about(name), zoo.load(name)
    picture = IMG / f"zoo_{name}.png"
    zoo_model(model, name=name, path=picture)
    solver = isinstance(model, attnc.incontext.Solver)
    return "\n\n".join(
        (
            f"### {name}",
            f"Computes {about.computes}.",
            f"**Mechanism.** {about.mechanism}",
            SOLVER if solver else literal_table(model.as_self_attention()),
            f"![attention of {name} on an example](img/{picture.name})",
            f"```text\n{model.certificate}\n```",
            "Exports: " + EXPORTS["solver" if solver else "literal"].format(name=name) + ".",
        )
    )


def results(stored: dict[str, Any]) -> str:
    """The tables of docs/tokens.md."""
    rows = [
        "| model | V, n | sequences | wrong (float32) | wrong (float64) | numbers that are not 0 |",
        "|---|---|---|---|---|---|",
    ]
    by = {(r["task"], r["dtype"]): r for r in stored["sequences"]}
    for name in zoo.names("tokens"):
        a, b = by[name, "float32"], by[name, "float64"]
        rows.append(
            f"| {name} | {a['vocabulary']}, {a['length']} | {a['sequences']:,} | {a['wrong']} | {b['wrong']} | {a['nonzero']:,} |"
        )
    at = ["| model | V, n | dtype | status | pairs of states | checked in |", "|---|---|---|---|---|---|"]
    for r in stored["length"]:
        sizes = f"{r['vocabulary']}, {r['length']}"
        at.append(
            f"| {r['task']} | {sizes} | {r['dtype']} | {r['status']} | {r['pairs']:,} | {r['checked']:.2f} s |"
        )
    mutants = stored["mutants"]
    total = {
        key: sum(m[key] for m in mutants)
        for key in ("mutants", "really wrong", "accepted", "wrong and accepted")
    }
    return "\n\n".join(
        (
            "All sequences of 1 to n tokens, compared with references in numpy that share nothing with the programs:",
            "\n".join(rows),
            "Certificates for more sequences than can be run:",
            "\n".join(at),
            f"{total['mutants']:,} random changes of the stored weights of small models (V = 3, n = 4 and similar): "
            f"{total['really wrong']} are wrong for some sequence, and the checker accepts {total['wrong and accepted']} of "
            f"these. It accepts {total['accepted']} of the others.",
            "`python benchmarks/tokens.py` measures this, on one core.",
        )
    )


def lens(stored: list[dict[str, Any]]) -> str:
    """What TransformerLens computes on all sequences."""
    bad, worst = sum(r["wrong"] for r in stored), max(r["difference"] for r in stored)
    total = sum(r["sequences"] for r in stored)
    return (
        f"All {len({r['task'] for r in stored})} token models of the zoo ran in TransformerLens on all sequences of their "
        f"lengths, in float32 and float64 ({total:,} runs): {bad} wrong, largest difference of a logit {worst:g} on the machine "
        "of the table. Elsewhere products may be added in another order, and logits differ by their rounding (3.05e-05 in "
        "float32 for histogram on one machine); no token differs. "
        "`python benchmarks/tokens.py --only lens` measures this."
    )


def tracr(stored: dict[str, Any]) -> str:
    """What was run of tracr, and the same tasks here."""
    rows = [
        "| program | V, n | sequences | tracr: layers | numbers | wrong | attnc: heads in each layer | numbers | wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in stored["programs"]:
        name, size, length = r["program"], r["vocabulary"], r["length"]
        fixed = zoo.about(name).fixed_vocabulary
        net = zoo.load(name, vocabulary=None if fixed else size, length=length)
        bad = sum(wrong(net, REFERENCES[name], X) for X in batches(size, length))
        numbers, heads = sum(t.numel() for t in net.state_dict().values()), net.certificate.facts["layers"]
        layers = f"{r['layers']} of attention, {r['layers']} MLPs"
        rows.append(
            f"| {name} | {size}, {length} | {r['sequences']:,} | {layers} | {r['numbers']:,} | {r['wrong']} | "
            f"{', '.join(map(str, heads))} | {numbers:,} | {bad} |"
        )
    how = (
        f"Programs of tracr's own library (`shift_by`, `make_reverse`, `make_hist`, `make_sort`, `make_shuffle_dyck`), commit "
        f"{stored['commit']}, jax {stored['jax']}, on all sequences of 1 to n tokens, against tracr's interpreter; numbers count "
        "as right if they round to the right one. In copy-previous RASP's value at the first position is None; tracr's "
        "model returns a token there. `benchmarks/tracr_peer.py` measures this; numbers count all stored weights, zeros included."
    )
    return "\n".join(rows) + "\n\n" + how


def main() -> None:
    canvas.DOTS_PER_INCH = 80
    parts = [INTRO, overview(), *(section(name) for name in zoo.names("tokens"))]
    parts += [
        "## Models of numbers",
        NUMBERS,
        numbers_overview(),
        *(continuous(name) for name in zoo.names("continuous")),
    ]
    write(PAGE, "\n\n".join(part.strip() for part in parts) + "\n")
    stored = json.loads(RESULTS.read_text())
    put(TOKENS, "tokens", results(stored))
    if "lens" in stored:
        put(TOKENS, "lens", lens(stored["lens"]))
    if TRACR.exists():
        put(TOKENS, "tracr", tracr(json.loads(TRACR.read_text())))


if __name__ == "__main__":
    main()
    print(f"wrote {PAGE.name}, {len(list(IMG.glob('zoo_*.png')))} pictures; models: {len(token_tasks.TASKS)}")
