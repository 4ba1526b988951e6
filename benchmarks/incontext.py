"""Learning in context: agreement with exact gradient descent, and time per step against numpy's own.

python benchmarks/incontext.py             JSON and the tables of docs/learning.md
python benchmarks/incontext.py --quick     a smoke test; writes to out/ only
python benchmarks/incontext.py --render    tables from the stored numbers
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

LOSSES = ("squared", "ridge(0.1)", "lasso(0.05)", "logistic", "poisson", "huber(1.35)", "quantile(0.3)")
LENGTHS = (10, 100, 1000, 10_000, 100_000)
REAL = ("diabetes, ridge(0.01)", "diabetes, lasso(0.01)", "breast cancer, logistic, λ = 0.01")


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    results = (
        ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results"
    ) / "incontext.json"
    if not options.render:
        write(results, as_json(run(options.quick)))
    stored = json.loads(results.read_text())
    if options.quick:
        print(agreement_table(stored), length_table(stored), sep="\n")
        return
    put(ROOT / "docs" / "learning.md", "agreement", agreement_table(stored))
    put(ROOT / "docs" / "learning.md", "length", length_table(stored))
    put(ROOT / "docs" / "learning.md", "real", real_table(stored))
    draw()


def run(quick: bool) -> dict[str, Any]:
    losses, lengths = (LOSSES[:2], LENGTHS[:3]) if quick else (LOSSES, LENGTHS)
    agreement = [agree(loss, dtype) for loss in losses for dtype in ("float64", "float32")]
    length = [lasting(loss, n) for loss in ("ridge(0.1)", "logistic") for n in lengths]
    data = [real(name, seed) for name in REAL for seed in range(1 if quick else 5)]
    progress("")
    return {"agreement": agreement, "length": length, "real": data, "versions": versions("scikit-learn")}


def agree(loss: str, dtype: str) -> dict[str, Any]:
    """n = 200, d = 10, 100 steps of standardised data: the distance to exact gradient descent, and its bound."""
    import numpy as np
    import torch

    from attnc.incontext import Radius, gradient_descent

    progress(f"{loss}, {dtype}")
    x, y = context(loss, 200, 10)
    steep = {"poisson": 410.0, "quantile(0.3)": 2.5, "logistic": 0.25}.get(loss, 1.0)
    eta = 1 / (steep * float(np.linalg.eigvalsh(x.T @ x / 200)[-1]) + 0.1)
    radius = Radius(4, 12, 3, 6 if loss == "poisson" else 12)
    began = time.perf_counter()
    learner = gradient_descent(
        loss, features=10, steps=100, step_size=eta, radius=radius, dtype=getattr(torch, dtype)
    )
    built = time.perf_counter() - began
    given = [torch.from_numpy(a).to(getattr(torch, dtype)) for a in (x, y)]
    found = learner.coefficients(*given).double().numpy()
    meant = descend(loss, *(g.double().numpy() for g in given), 100, eta)
    error = float(np.sqrt(np.square(found - meant).sum()))
    bound = learner.error_bound(200, learner.curvature(given[0]))
    return {
        "loss": loss,
        "dtype": dtype,
        "error": error,
        "bound": min(bound, 1e300),
        "build_seconds": round(built, 2),
    }


def lasting(loss: str, n: int) -> dict[str, Any]:
    """d = 10: milliseconds of a step, beside numpy's, in one run; the best of five."""
    import numpy as np
    import torch

    from attnc.incontext import Radius, gradient_descent

    progress(f"{loss}, n = {n}")
    x, y = context(loss, n, 10)
    eta = 1 / (float(np.linalg.eigvalsh(x.T @ x / n)[-1]) + 0.1)
    learner = gradient_descent(
        loss, features=10, steps=20, step_size=eta, radius=Radius(4, 12, 3, 12), dtype=torch.float64
    )
    given = [torch.from_numpy(a) for a in (x, y)]
    own, numpy_own = [], []
    for _ in range(5):
        began = time.perf_counter()
        learner.coefficients(*given, strict=False)
        own.append((time.perf_counter() - began) / 20)
        began = time.perf_counter()
        descend(loss, x, y, 20, eta, np.float64)
        numpy_own.append((time.perf_counter() - began) / 20)
    return {"loss": loss, "n": n, "ms": 1e3 * min(own), "numpy_ms": 1e3 * min(numpy_own)}


def draw() -> None:
    """The picture of docs/learning.md."""
    import torch

    from attnc import plot
    from attnc.incontext import Radius, gradient_descent

    draws = torch.Generator().manual_seed(0)
    x = torch.randn(24, 3, generator=draws, dtype=torch.float64).clamp(-3, 3)
    y = (torch.rand(24, generator=draws, dtype=torch.float64) < torch.sigmoid(2 * x[:, 0] - x[:, 1])).double()
    learner = gradient_descent(
        "logistic", features=3, steps=60, step_size=1.0, radius=Radius(3, 1, 6, 16), dtype=torch.float64
    )
    plot.learning(learner, x=x, y=y, path=ROOT / "docs" / "img" / "learning.png")


def real(name: str, seed: int) -> dict[str, Any]:
    """A split of a data set of scikit-learn's: the score of the in-context estimator beside scikit-learn's own."""
    from sklearn.datasets import load_breast_cancer, load_diabetes
    from sklearn.linear_model import Lasso, LogisticRegression, Ridge
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from attnc.incontext.estimators import InContextClassifier, InContextRegressor

    progress(f"{name}, split {seed}")
    load = load_breast_cancer if "cancer" in name else load_diabetes
    fit_x, test_x, fit_y, test_y = train_test_split(*load(return_X_y=True), random_state=seed)
    n, scale = len(fit_x), fit_y.std()
    ours, theirs = {
        "diabetes, ridge(0.01)": (InContextRegressor("ridge(0.01)"), Ridge(alpha=0.01 * n)),
        "diabetes, lasso(0.01)": (InContextRegressor("lasso(0.01)"), Lasso(alpha=0.01 * scale)),
        "breast cancer, logistic, λ = 0.01": (
            InContextClassifier(alpha=0.01),
            LogisticRegression(C=1 / (0.01 * n), max_iter=5000),
        ),
    }[name]
    began = time.perf_counter()
    ours.fit(fit_x, fit_y)
    own = float(ours.score(test_x, test_y))
    seconds = time.perf_counter() - began
    other = float(make_pipeline(StandardScaler(), theirs).fit(fit_x, fit_y).score(test_x, test_y))
    return {
        "data": name,
        "split": seed,
        "score": own,
        "sklearn": other,
        "bound": ours.bound_,
        "seconds": round(seconds, 2),
    }


def real_table(stored: dict[str, Any]) -> str:
    lines = [
        "| data | split | in context | scikit-learn | difference | proved bound of w | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in stored["real"]:
        off = row["score"] - row["sklearn"]
        lines.append(
            f"| {row['data']} | {row['split']} | {row['score']:.5f} | {row['sklearn']:.5f} | {off:.1e} | {row['bound']:.1e} | "
            f"{row['seconds']} |"
        )
    return "\n".join([*lines, ""])


def context(loss: str, n: int, d: int) -> tuple[Any, Any]:
    import numpy as np

    draw = np.random.default_rng(0)
    x = draw.normal(size=(n, d))
    x = np.clip((x - x.mean(0)) / x.std(0), -4, 4)
    u = x @ draw.normal(size=d) / 4
    if loss == "logistic":
        return x, (draw.random(n) < 1 / (1 + np.exp(-3 * u))).astype(float)
    if loss == "poisson":
        return x, np.minimum(draw.poisson(np.exp(u)), 12).astype(float)
    return x, np.clip(u + 0.3 * draw.normal(size=n), -12, 12)


def descend(loss: str, x: Any, y: Any, steps: int, eta: float, dtype: Any = None) -> Any:
    """Gradient descent by numpy; in extended precision unless a dtype is given."""
    import numpy as np

    kind = np.longdouble if dtype is None else dtype
    x, y, rate = x.astype(kind), y.astype(kind), kind(eta)
    name, _, rest = loss.partition("(")
    level = kind(float(rest[:-1])) if rest else kind(0)
    w = np.zeros(x.shape[1], dtype=kind)
    for _ in range(steps):
        u = x @ w
        r = {
            "logistic": lambda u=u: 1 / (1 + np.exp(-u)) - y,
            "poisson": lambda u=u: np.exp(u) - y,
            "huber": lambda u=u: np.clip(u - y, -level, level),
            "quantile": lambda u=u: 1 / (1 + np.exp(-(u - y) / kind(0.1))) - level,
        }.get(name, lambda u=u: u - y)()
        w = w - rate * (x.T @ r / len(x) + (level * w if name == "ridge" else 0))
        if name == "lasso":
            w = np.sign(w) * np.maximum(np.abs(w) - rate * level, 0)
    return w


def agreement_table(stored: dict[str, Any]) -> str:
    lines = [
        "| loss | dtype | distance to exact gradient descent | proved bound | built in |",
        "|---|---|---|---|---|",
    ]
    for row in stored["agreement"]:
        bound = "nothing" if row["bound"] >= 1e300 else f"{row['bound']:.2g}"
        lines.append(
            f"| {row['loss']} | {row['dtype']} | {row['error']:.2g} | {bound} | {row['build_seconds']} s |"
        )
    return "\n".join([*lines, ""])


def length_table(stored: dict[str, Any]) -> str:
    lines = ["| loss | n | ms for a step | numpy's | ratio |", "|---|---|---|---|---|"]
    for row in stored["length"]:
        ratio = row["ms"] / row["numpy_ms"]
        lines.append(
            f"| {row['loss']} | {row['n']:,} | {row['ms']:.3g} | {row['numpy_ms']:.3g} | {ratio:.3g} |"
        )
    made = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    return "\n".join([*lines, "", f"One core; {made}.", ""])


if __name__ == "__main__":
    main()
