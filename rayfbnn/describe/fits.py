"""Describes all settings of an approximation, including defaults."""

from __future__ import annotations

from rayfbnn.spec import RunSpec

_NAMES = {
    "laplace": "MacKay's Gaussian approximation about modes",
    "bbb": "Bayes by Backprop, a factorised Gaussian of least divergence",
    "map": "descent to a maximum of the posterior density: single networks without uncertainty",
    "vep": "variational expectation propagation with probabilistic backpropagation",
}


def describe_fit(spec: RunSpec) -> list[str]:
    """Return a line for the method of a fit, one for its starts, and one for each setting."""
    keys = spec.fit
    assert keys is not None and spec.method is not None
    settings = keys.model_dump()
    lines = [
        f"Method: {spec.method}, {_NAMES[spec.method]}",
        "  this is an approximation: its draws are not from the posterior",
        f"  {keys.starts} starts of at most {keys.n_steps} steps, then {keys.draws} independent draws each",
    ]
    for name, value in settings.items():
        if name not in ("starts", "draws"):
            written = "all" if value is None else str(value).lower() if isinstance(value, bool) else value
            lines.append(f"  {name:<12}{written}")
    return lines
