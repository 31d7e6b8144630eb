"""Prepares an estimator to continue the run of an earlier fit (warm_start)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfbnn.sklearn.configuration import base_keys
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store


def configuration_to_resume(
    path: Path, spec: RunSpec, parameters: Mapping[str, Any]
) -> tuple[RunSpec, int | None]:
    """Return the configuration to compare with that of a store, and the length of its last phase.

    spec        the configuration that a new run would have
    parameters  parameters of the estimator, by name

    Settings that the parameters do not give stay as in the store: the phases (their default depends on the
    number of iterations), the seed, and the division of chains into batches. The length is None if it stays.
    """
    stored = Store.open(path).spec
    keys, base = spec.to_dict(), base_keys(parameters["spec"])
    if "phase" not in base:
        keys["phase"] = stored.to_dict()["phase"]
        keys.pop("iterations", None)
    keys["phase"][-1]["iterations"] = stored.phase[-1].iterations
    if parameters["random_state"] is None and "seed" not in base:
        keys["seed"] = stored.seed
    if "chains_per_batch" not in base:
        keys["chains_per_batch"] = stored.chains_per_batch
    iterations = None if parameters["iterations"] is None else int(parameters["iterations"])
    if iterations is not None and parameters["until"] is not None:
        iterations = max(iterations, stored.phase[-1].iterations)
    return RunSpec.from_dict(keys), iterations
