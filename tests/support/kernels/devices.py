"""Posteriors on the host with their copies on a device."""

from __future__ import annotations

from typing import Any

from rayfbnn.arrays import Array
from rayfbnn.model.sampled import SampledPosterior
from tests.support.model.covariates import covariates_of
from tests.support.problems import problem


def on_device(values: Array) -> Array:
    import cupy

    return None if values is None else cupy.asarray(values)


def device_copy(host: SampledPosterior, values: Array) -> SampledPosterior:
    import cupy

    return SampledPosterior.from_spec(
        host.network, host.model, covariates_of(host), values, dtype=host.dtype, xp=cupy
    )


def both(model: str, dtype: Any, spec: Any, n_cases: int) -> tuple[SampledPosterior, SampledPosterior]:
    host = problem(model, spec=spec, dtype=dtype, n_cases=n_cases)
    values = host.targets.T
    if model == "class":
        values = values.argmax(axis=1)[:, None].astype(float)
    return host, device_copy(host, values)
