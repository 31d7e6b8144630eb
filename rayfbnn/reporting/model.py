"""The section on the model: the network and its priors in words, and the schedule."""

from __future__ import annotations

import html
import math

from rayfbnn.describe.configuration import (
    describe,
    dispersion_in_words,
    noise_in_words,
    prior_in_words,
    sigma_range,
)
from rayfbnn.output import tables
from rayfbnn.reporting.reported_run import ReportedRun


def model_section(run: ReportedRun) -> str:
    """Return a sentence on the network, a table of the priors, and the collapsed full description."""
    spec = run.draws.spec
    network = spec.network
    layers = [f"{layer.units} {layer.activation} units" for layer in network.hidden]
    sentence = (
        f"A network of {network.inputs} inputs, {' and then '.join(layers) or 'no hidden units'} and"
        f" {network.outputs} output{'s' if network.outputs > 1 else ''} has {network.n_parameters:,}"
        f" parameters. The data model is {spec.data_model.in_words}."
    )
    rows: list[tuple[tables.Cell, ...]] = []
    for group in network.groups():
        omega = group.prior.mean_precision(group.shape[0])
        rows.append(
            (
                group.name,
                group.size,
                spec.network_keys.priors[group.name],
                _sigma(group.prior.alphas[0], omega) if group.prior.rectified is None else "",
                prior_in_words(group),
            )
        )
    noise = spec.model.noise
    if noise is not None:
        text = spec.model_keys.noise or ""
        sigma = _sigma(noise.alphas[0], noise.mean_precision(1))
        rows.append(("noise", len(spec.data.targets), text, sigma, noise_in_words(noise)))
    dispersion = spec.model.dispersion
    if dispersion is not None:
        text = spec.model_keys.dispersion or ""
        sigma = _sigma(dispersion.alphas[0], dispersion.mean_precision(1))
        rows.append(("dispersion", len(spec.data.targets), text, sigma, dispersion_in_words(dispersion)))
    header = ("group", "parameters", "prior", "common sigma, 5-95 %", "in words")
    whole = html.escape(describe(spec, store=run.draws.store))
    details = f"<details><summary>Full output of rayfbnn show</summary><pre>{whole}</pre></details>"
    return tables.paragraph(sentence) + tables.table(header, rows) + details


def _sigma(alpha: float, mean_precision: float) -> str:
    if math.isinf(alpha):
        return f"{mean_precision**-0.5:.4g}"
    low, high = sigma_range(alpha, mean_precision)
    return f"{low} to {high}"
