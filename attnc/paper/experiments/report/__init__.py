"""The results of the experiments as a page: the paper's figures beside ours, what is built beside what is trained.

Every number on it comes from the records (or, for the paper's code, from `baselines`), and so does every comparison in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attnc.paper.experiments.record import Record
from attnc.paper.experiments.report.learning import learning_table, start_text
from attnc.paper.experiments.report.page import Page, Picture, Section, Table, Text, page_html, page_markdown
from attnc.paper.experiments.report.slopes import rates_text, slope_table
from attnc.paper.experiments.report.sweeps import Sweep, base_points, kind, sweep, together
from attnc.paper.experiments.report.tables import (
    apart_text,
    built_table,
    built_text,
    count,
    diverged_text,
    heat_table,
    paper_table,
    promise_text,
    times_table,
)
from attnc.paper.experiments.settings import TRAINED

TITLE = "The paper's experiments: trained and built"


def _has_sweep(experiment: str, against: str) -> Callable[[Sequence[Record]], bool]:
    return lambda records: sweep(records, experiment, against) is not None


def _has_curves(records: Sequence[Record]) -> bool:
    points = base_points(records)
    return any(one.curve for method in TRAINED if method in points for one in points[method].records)


def _has_weights(records: Sequence[Record]) -> bool:
    return any(one.setting.experiment == "heat-map" and one.weights for one in records)


FIGURES: dict[str, Callable[[Sequence[Record]], bool]] = {  # name -> whether these records suffice to draw it
    "heads": _has_sweep("truncated", "heads"),
    "range": _has_sweep("truncated", "range"),
    "anchors": _has_sweep("truncated", "anchors"),
    "learning-curves": _has_curves,
    "heat-maps": _has_weights,
    "seq2seq": lambda records: any(
        sweep(records, "seq2seq", against) is not None for against in ("anchors", "heads")
    ),
}


def figures(records: Iterable[Record]) -> tuple[str, ...]:
    """The names of the figures that these records suffice for, in the order of the report.

    >>> figures([])
    ()
    """
    found = tuple(records)
    return tuple(name for name, suffices in FIGURES.items() if suffices(found))


def markdown(records: Iterable[Record], *, note: str = "", drawn: Sequence[str] | None = None) -> str:
    """The report as Markdown. `note` is a paragraph at the top (versions, machine); `drawn` names the figures that exist as
    `figures/<name>.svg`, all that the records suffice for unless it is given.

    >>> print(markdown([]), end="")
    # The paper's experiments: trained and built
    <BLANKLINE>
    No runs.
    """
    return page_markdown(_page(together(records), note, drawn))


def html(records: Iterable[Record], *, note: str = "", drawn: Sequence[str] | None = None) -> str:
    """The same report as one HTML file that loads nothing but its figures.

    >>> html([]).splitlines()[0]
    '<!DOCTYPE html>'
    """
    return page_html(_page(together(records), note, drawn))


def _page(records: Sequence[Record], note: str, drawn: Sequence[str] | None) -> Page:
    known = figures(records) if drawn is None else tuple(drawn)
    made = (
        *(_truncated(records, against, known) for against in ("heads", "range", "anchors")),
        _learning(records, known),
        _heat_maps(records, known),
        _seq2seq(records, known),
    )
    return Page(TITLE, _lead(records, note), tuple(section for section in made if section))


def _lead(records: Sequence[Record], note: str) -> tuple[Text | Table, ...]:
    if not records:
        return (Text("No runs."), Text(note)) if note else (Text("No runs."),)
    sizes = {
        "protocol": "The sizes are the protocol's. The paper's figures are what its public code gives on a CPU: means of "
        "three seeds, in the sequence-to-sequence experiment of one.",
        "quick": "--quick: small sizes, the paper's figures do not apply and are left out.",
        "other": "Sizes other than the protocol's: the paper's figures do not apply and are left out.",
    }[kind(records)]
    seeds = sorted({one.setting.seed for one in records})
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}"
    lead: list[Text | Table] = [
        Text(sizes),
        Text(
            "The paper trains attention to show the rates of its theorems. Here networks trained by its protocol stand beside "
            "networks that are built, on the same data and in the same measure. "
            f"{count(len(records), 'run')}, {which}. Figures are means over the seeds, with the smallest and the largest in "
            "brackets. Trained networks are float32, as the protocol's; what is built, and what starts from it, is float64. "
            "constant is the MSE, on the same samples, of the output that is always the mean of the training targets."
        ),
        Text(f"{diverged_text(records)} {promise_text(records)}".strip()),
        *([rates_text(records)] if _has_slopes(records) else []),
        times_table(records),
    ]
    return (*lead[:2], Text(note), *lead[2:]) if note else tuple(lead)


def _has_slopes(records: Sequence[Record]) -> bool:
    found = (sweep(records, "truncated", against) for against in ("heads", "range", "anchors"))
    return any(one is not None and slope_table(one) is not None for one in found)


_SWEPT = {
    "heads": (
        "Truncated linear functions, against heads",
        "Each token has its own function clip(<w, x> + t, a, b). The trained network has p keys, n of them tokens. many-heads "
        "is built without extra keys: H heads over n tokens. placed writes six anchors into the very model that is trained. "
        "nearest, smooth and graded have one head, so they stand at one size.",
    ),
    "range": (
        "Truncated linear functions, against the width of the range",
        "The same with one head, while b - a grows: the anchors move apart, and fewer tokens are clipped. The MSE grows with "
        "both, the theorem speaks of the first alone, so its slope stands beside that of the largest error of nearest.",
    ),
    "anchors": (
        "Truncated linear functions, against keys",
        "The same with one head, while p grows: extra tokens of the trained network, anchors of the built ones.",
    ),
}


def _truncated(records: Sequence[Record], against: str, known: Sequence[str]) -> Section | None:
    found = sweep(records, "truncated", against)
    if found is None:
        return None
    title, words = _SWEPT[against]
    base = found.base
    fixed = {"n": f"n = {base.n}", "d": f"d = {base.d}", "width": f"width {base.width}"}
    fixed |= {} if against == "anchors" else {"p": f"p = {base.p}"}
    fixed |= {} if against == "heads" else {"heads": f"heads {base.heads}"}
    fixed |= {} if against == "range" else {"b": f"[a, b] = [{base.a:g}, {base.b:g}]"}
    samples = f"{base.samples} samples, {base.epochs} epochs. The MSE is over all {base.width} coordinates."
    caption = (
        f"Test MSE against {against}: every run a dot, mean, smallest and largest over the seeds, with fitted slopes; dotted: "
        "the theorem's bound of the largest error, squared, in the measure of the MSE"
    )
    blocks = [
        Text(words),
        Text(f"{', '.join(fixed.values())}; {samples}"),
        *_picture(against, caption, known),
        *_tables(found, kind(records) == "protocol"),
        *_present(slope_table(found)),
    ]
    return Section(title, tuple(blocks))


def _tables(found: Sweep, protocol: bool) -> list[Table | Text]:
    """What every sweep has: the paper's figures, what was built, and what starting from it does to training."""
    return [
        *_present(paper_table(found, protocol)),
        *_present(apart_text(found)),
        *_present(built_table(found)),
        *_present(built_text(found)),
        *_present(learning_table(found)),
        *_present(start_text(found)),
    ]


def _learning(records: Sequence[Record], known: Sequence[str]) -> Section | None:
    if "learning-curves" not in known or not _has_curves(records):
        return None
    words = (
        "Test MSE epoch by epoch where the three sweeps meet. trained starts from random weights; fine-tuned from a network that "
        "is built and written into the model, with graded anchors, whose numbers are moderate; from-anchors from the same "
        "anchors, with the token map of the protocol's start. Epoch 0 is the start."
    )
    caption = "Test MSE after each epoch: every run a thin line, their mean, and a band from the smallest to the largest"
    title = "Does construction help learning?"
    return Section(title, (Text(words), *_picture("learning-curves", caption, known)))


def _heat_maps(records: Sequence[Record], known: Sequence[str]) -> Section | None:
    found = tuple(one for one in records if one.setting.experiment == "heat-map")
    if not found:
        return None
    words = (
        "One head with as many keys as tokens; the keys are anchors on [a, b]. picked is the share of test tokens whose heaviest "
        "key is the anchor nearest to the target."
    )
    caption = "Attention weights of test samples over the anchors, trained and built"
    return Section(
        "Attention heat maps", (Text(words), *_picture("heat-maps", caption, known), heat_table(found))
    )


def _seq2seq(records: Sequence[Record], known: Sequence[str]) -> Section | None:
    found = [one for against in ("anchors", "heads") if (one := sweep(records, "seq2seq", against))]
    if not found:
        return None
    words = (
        "A random two-layer ReLU network of the whole sequence. tokens and heads are built: two layers of attention, the neurons "
        "as tokens or as heads; softmax is attention followed by softmax. They are built for a proved error; p and the number "
        "of heads do not enter. fine-tuned starts from heads; from-anchors has its anchors and random affine maps. Each seed "
        "draws another target: the MSE is also given as a share of the variance of all numbers of the target (around one mean "
        "for all of them)"
    )
    protocol = kind(records) == "protocol"
    words += (
        ", which is what compares with the paper's code, whose targets are others again." if protocol else "."
    )
    caption = (
        "Test MSE against keys and against heads: every run a dot, mean, smallest and largest over the seeds"
    )
    blocks: list[Text | Table | Picture] = [Text(words), *_picture("seq2seq", caption, known)]
    for one in found:
        base = one.base
        beside = f"heads {base.heads}" if one.against == "anchors" else f"p = {base.p}"
        blocks.append(
            Text(f"Against {one.against}: n = {base.n}, d = {base.d}, width {base.width}, {beside}.")
        )
        blocks += _tables(one, protocol)
    return Section("Sequence to sequence", tuple(blocks))


def _picture(name: str, caption: str, known: Sequence[str]) -> tuple[Picture, ...]:
    return (Picture(name, caption),) if name in known else ()


def _present(block: Table | Text | None) -> tuple[Table | Text, ...]:
    return () if block is None else (block,)
