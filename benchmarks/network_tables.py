"""The results of the benchmark of networks as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from formats import Record, plain, rounded_up, seconds, table


def markdown(results: dict[str, Any]) -> str:
    """Every section that is present, in reading order."""
    parts = [_versions(results["versions"])]
    sections = {"mlps": _mlps, "digits": _digits, "layer": _layer, "growth": _growth, "engines": _engines}
    parts += [section(results[name]) for name, section in sections.items() if results.get(name)]
    return "\n\n".join(parts) + "\n"


def prose(text: str) -> str:
    """One paragraph on one line."""
    return " ".join(text.split())


def _versions(versions: dict[str, str]) -> str:
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return prose(
        f"""Made by `python benchmarks/networks.py` with {listed}. Times are wall seconds with CPU seconds in brackets, of
        one run on one thread of a machine that may have had other load: if the two differ, the CPU seconds are more
        reliable. Every number is in `benchmarks/results/networks.json`."""
    )


def _mlps(records: Sequence[Record]) -> str:
    rows = [
        (
            r["activation"],
            r["dtype"],
            plain(r["eps"]),
            rounded_up(r["bound"]),
            rounded_up(r["approximation"]),
            rounded_up(r["rounding"]),
            _anchors(r),
            f"{r['largest']:.1e}",
            _quality(r.get("quality")),
            clock(r, "compile"),
            clock(r, "verify"),
        )
        for r in records
    ]
    head = (
        "activation, dtype, eps, proved bound, approximation, rounding, anchors by layer, largest error found, "
        "u/l, compile s, verify s"
    )
    about = prose(
        f"""An MLP 16-64-64-4 with torch's default initialisation (seed 0) on the box [-1, 1]¹⁶. The search for the largest
        error uses {min(r["points"] for r in records):,} corners and random points of the box and gradient ascent from the
        worst of them, evaluated in 128 bits. The true maximum lies between the largest error found and the bound. *u/l* is
        the bound divided by the largest error found."""
    )
    return "\n\n".join(["### Bound and error", about, table(head, rows), _chain(records)])


def _chain(records: Sequence[Record]) -> str:
    """Why the bound is larger than the error, in numbers."""
    rows = [
        (
            r["activation"],
            r["dtype"],
            *(f"{r[name]:.1e}" for name in ("largest", "one_sign", "all_at_bound")),
            rounded_up(r["bound"]),
        )
        for r in records
    ]
    head = (
        "activation, dtype, largest error found, if no two neurons' errors cancel, "
        "if each neuron errs by its bound, proved bound"
    )
    about = prose(
        """The next table shows why the bound is larger than the error. At the input of the largest error, let e_j be the
        errors of the neurons of the last layer, and w_j the weights of the output. The columns are the error itself;
        Σ|w_j||e_j|; the same sum with the proved bound of each neuron in place of |e_j|; and the bound of the network,
        which is for the output with the largest sum and includes the rounding of the last affine map."""
    )
    float64 = prose(
        """*float64.* For GELU the error is almost all approximation error, and its heads come close to their largest error
        at many inputs. The bound is larger because the composition of errors uses |W|, as if all neurons had their largest
        error, with the worst sign, at once. The head of a ReLU has its largest error at a distance of a millionth from the
        kink, and a several times smaller error from a hundred-thousandth on. So for any input almost no neuron has the
        error that the proof assumes for all of them. tanh is exact with two keys: its error is rounding alone, as in the
        next rows."""
    )
    float32 = prose(
        """*float32.* Rounding is most of the bound. The bound holds for every order of summation and for every exp that
        satisfies the assumptions: each product over n terms adds γ_{n+1}, as if all its roundings had the largest size and
        the same sign, and the next layer multiplies that by |W|. Actual roundings have both signs, and the sum of n of them
        grows about as √n, so the bound is far above the error of one execution. The effect is largest for tanh, whose heads
        have no other error."""
    )
    return "\n\n".join([about, table(head, rows), float64, float32])


def _digits(records: Sequence[Record]) -> str:
    rows = [
        (
            r["model"],
            r["dtype"],
            plain(r["eps"]),
            f"{100 * r['accuracy']:.1f} %",
            _anchors(r),
            rounded_up(r["bound"]),
            f"{r['largest']:.1e}",
            f"{r['margin']:.2f}",
            f"1/{int(r['margin'] / r['bound']):,}",
            f"{r['decided_alike']} of {r['decided']}",
            f"{r['different']} of {r['images']}",
        )
        for r in records
    ]
    head = (
        "model, dtype, eps, test accuracy, anchors, proved bound, largest error found, median margin, "
        "bound / margin, equal where margin > 2 bound, different at all"
    )
    about = prose(
        """`examples/digits.py`: scikit-learn's digits (8 × 8 pixels scaled to [0, 1]; a quarter is the test set), a ReLU
        network 64-128-10 trained in torch and scikit-learn's own `MLPClassifier`, both compiled for *every* image in [0,
        1]⁶⁴. The bound holds for each logit. A margin is the largest logit minus the next. The targets are an accuracy
        above 96 %, a bound below a tenth of the median margin, and equal decisions if the margin exceeds twice the bound."""
    )
    return "\n\n".join(["### Decisions: handwritten digits", about, table(head, rows)])


def _layer(records: Sequence[Record]) -> str:
    rows = [
        (
            r["dtype"],
            plain(r["eps"]),
            _anchors(r),
            rounded_up(r["bound"]),
            rounded_up(r["approximation"]),
            rounded_up(r["rounding"]),
            f"{r['witness']:.1e}",
            clock(r, "compile"),
            f"{100 * (r['parameters'] / r['source_parameters'] - 1):.2g} %",
        )
        for r in records
    ]
    head = "dtype, eps, anchors, proved bound, approximation, rounding, largest error seen, compile s, parameters added"
    d, h = records[0]["features"], records[0]["hidden"]
    about = prose(
        f"""Linear({d}, {h}), GELU, Linear({h}, {d}) with torch's default initialisation (uniform; the standard deviation of
        the first map, 0.021, is near GPT-2's 0.02), on the box [-1, 1]^{d}. Each compile ran in a fresh process. The
        targets are less than 10 s, and less than 0.1 % of parameters added."""
    )
    runs = [row for r in records for row in _runs(r["runs"])]
    parts = ["### A layer of GPT-2's size", about, table(head, rows), _why_float32(records)]
    return "\n\n".join([*parts, _how_run(records[0]), table(RUNS, runs)])


def _why_float32(records: Sequence[Record]) -> str:
    float64, float32 = records
    terms = float32["hidden"] + 1
    return prose(
        f"""In float32 rounding is nearly all of the bound, and no eps much below {plain(float32["eps"])} can be proved. An
        output is a sum of {terms - 1} products and a bias, with up to {terms} roundings, which is γ_{{{terms}}} =
        {terms * 2.0**-24:.1e} of Σ|w_j||x_j|. The box allows pre-activations up to about
        {max(map(abs, float32["intervals"][0])):g}, and the proof must assume that all reach it at once. Then this sum is
        several hundred; for random inputs of the box it is a few. The bound holds for the worst input, the worst order of
        summation and roundings of one sign. In float64 the same term is {rounded_up(float64["rounding"])}. The two values
        of eps are therefore one that shows the accuracy of the heads, and about the smallest one that can be proved in
        float32."""
    )


RUNS = "dtype, engine, memory added MiB, time / original's on one thread, on two"


def _how_run(record: Record) -> str:
    return prose(
        f"""The next table gives memory and time of a forward pass over {record["runs"]["softmax"]["tokens"]} tokens, each
        in a fresh process. Memory is the peak resident memory of the first pass on two threads, minus the memory of the
        process before it (the model, its input, the libraries). The target is less than 2 GiB. Time per token is divided by
        that of the original module, which runs alternately in the same process: median ratio (lowest to highest pair).
        Threads wait passively (`OMP_WAIT_POLICY=PASSIVE`). With the default setting, spinning threads on cores that other
        programs used made two threads up to twenty times slower than one."""
    )


def _runs(runs: dict[str, Record]) -> list[tuple[str, ...]]:
    rows = [(runs["original"]["dtype"], "original", f"{runs['original']['added_mib']:.0f}", "1", "1")]
    for engine in ("softmax", "sdpa"):
        r = runs[engine]
        ratios = [spread(r[f"ratio_{threads}"]) for threads in ("one", "two")]
        rows.append((r["dtype"], engine, f"{r['added_mib']:.0f}", *ratios))
    return rows


def _growth(records: Sequence[Record]) -> str:
    head = "network, activation, parameters, anchors by layer, compile s, of which heads, witness, the rest"
    by = {axis: table(head, [_grown(r) for r in records if r["axis"] == axis]) for axis in ("width", "depth")}
    tanh, gelu = (
        [r for r in records if r["axis"] == "width" and r["activation"] == f] for f in ("tanh", "gelu")
    )
    about = prose(
        f"""float64, eps {plain(records[0]["eps"])}, box [-1, 1]¹⁶, without caching between networks. *Heads* is the time to
        find and prove the anchors, once per layer, whatever its width. *Witness* is the search for the largest error. *The
        rest* is reading the module, computing intervals and errors of every neuron, and hashing. Times are wall seconds
        (CPU seconds); the last two columns are CPU seconds."""
    )
    wide = prose(
        f"""From the first width to the last, the number of parameters grows
        {_growing(tanh, lambda r: r["source_parameters"])}-fold. The heads take
        {_growing(tanh, lambda r: r["heads_cpu"], 1)} times as long for tanh and
        {_growing(gelu, lambda r: r["heads_cpu"], 1)} times for GELU. A wider layer amplifies errors more, so heads that are
        not exact (unlike those of tanh) must be more accurate and need more anchors. The rest consists of passes over the
        matrices and grows with the width ({_growing(tanh, _rest)}-fold for tanh, {_growing(gelu, _rest)}-fold for GELU):
        products of |W| with vectors and with the affine form, the comparison of the module with its program, the search for
        a witness in high precision."""
    )
    deep = prose(
        """For tanh the time per layer is about constant. For GELU a layer takes longer in a deeper network: an error of the
        first layer passes through all layers that follow, the share of each layer is smaller, and more accurate heads take
        longer to find."""
    )
    parts = ["### What compile time depends on", about, "Compile time by width:", by["width"], wide]
    return "\n\n".join([*parts, "Compile time by the number of layers, all of width 64:", by["depth"], deep])


def _growing(records: Sequence[Record], what: Any, digits: int = 0) -> str:
    return f"{what(records[-1]) / what(records[0]):,.{digits}f}"


def _grown(r: Record) -> tuple[str, ...]:
    return (
        "-".join(map(str, r["widths"])),
        r["activation"],
        f"{r['source_parameters']:,}",
        _anchors(r),
        clock(r, "compile"),
        clock(r, "heads"),
        seconds(r["witness_cpu"]),
        seconds(_rest(r)),
    )


def _rest(r: Record) -> float:
    return r["compile_cpu"] - r["heads_cpu"] - r["witness_cpu"]


def _engines(records: Sequence[Record]) -> str:
    rows = []
    for r in records:
        cells = [spread(r["runs"][e][f"ratio_{t}"]) for e in ("softmax", "sdpa") for t in ("one", "two")]
        rows.append((r["activation"], r["dtype"], _anchors(r), *cells))
    head = "activation, dtype, anchors by layer, softmax on one thread, on two, sdpa on one thread, on two"
    about = prose(
        f"""The table is for the MLP 16-64-64-4 on a batch of {records[0]["batch"]:,}. It gives the time divided by that of
        the original module, median (lowest to highest pair). `softmax` evaluates the sum over anchors explicitly along the
        contiguous axis; `sdpa` calls `scaled_dot_product_attention`. In narrow layers matrix products are cheap compared
        with activations, so the time of the heads matters more; the layer of GPT-2's size above is the opposite case."""
    )
    return "\n\n".join(["### Engines", about, table(head, rows)])


def _quality(quality: float | None) -> str:
    return "–" if quality is None else f"{quality:.1f}" if quality < 100 else f"{quality:,.0f}"


def _anchors(r: Record) -> str:
    return " + ".join(map(str, r["anchors"]))


def clock(r: Record, name: str) -> str:
    """Wall seconds, CPU seconds in brackets."""
    return f"{r[f'{name}_seconds']:.2f} ({r[f'{name}_cpu']:.2f})"


def spread(ratio: Sequence[float]) -> str:
    low, middle, high = ratio
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"
