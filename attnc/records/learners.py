"""The settings of learners and solvers, as their certificates state them."""

from __future__ import annotations

from attnc.domain import Context
from attnc.errors import CertificateError
from attnc.records.certificate import Certificate
from attnc.records.fields import check_types, with_fields

_SHARED: dict[str, type] = {"algorithm": str, "heads": list, "features": int, "intercept": bool}
_SETTINGS: dict[str, dict[str, type]] = {
    "gradient_descent": {"steps": int, "step_size": float, "e": float, "loss": dict},
    "ridge_regression": {"iterations": int, "ridge": float, "start": float, "scales": list},
}
_LOSS: dict[str, type] = {"name": str, "of_residual": bool, "ridge": float, "lasso": float}


def check_settings(certificate: Certificate) -> Context:
    """The contexts of a learner; raises `CertificateError` unless all settings have their types and signs."""
    facts, context = certificate.facts, certificate.holds_for
    if facts["algorithm"] not in _SETTINGS or not isinstance(context, Context):
        raise CertificateError(f"{facts['algorithm']!r} on {context}: expected {', '.join(_SETTINGS)}")
    types = _SHARED | _SETTINGS[facts["algorithm"]]
    check_types(with_fields("the settings", facts, set(types)), types)
    solver, heads = "scales" in types, ["reading"]
    numbers = {name: facts[name] for name, kind in types.items() if kind in (int, float)}
    if solver:
        scales = dict(zip(("scale 0", "scale 1", "scale 2"), facts["scales"], strict=True))
        check_types(scales, dict.fromkeys(scales, float))
        numbers |= scales
    else:
        loss = with_fields("the loss", facts["loss"], {*_LOSS, "function"})
        check_types(loss, _LOSS)
        if min(loss["ridge"], loss["lasso"]) < 0 or type(loss["function"]) not in (str, type(None)):
            raise CertificateError(f"the loss {loss} is not valid")
        heads += ["activation"] * (loss["function"] is not None) + ["threshold"] * (loss["lasso"] > 0)
    if not min(numbers.values()) > 0:
        raise CertificateError(f"expected positive numbers, got {numbers}")
    with_fields("the radius", dict(context.limits), {"x", "y", "p" if solver else "w", "u"})
    if facts["heads"] != heads:
        raise CertificateError(f"the heads are {facts['heads']}: expected {heads}")
    if facts["intercept"] and not (context.limits["x"] >= 1 and facts["features"] > 1):
        raise CertificateError(f"an intercept is a feature of size 1: {facts['features']} on {context}")
    return context
