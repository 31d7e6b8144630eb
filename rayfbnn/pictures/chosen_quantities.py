"""The choice of quantities for a picture that has no room for all of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.judging.modes import summarize
from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.draws.view import Draws


def relevance_groups(run: Draws) -> list[str]:
    """Return the groups of weights from the inputs in which each input has its own sigma."""
    groups = run.precision_layout.units
    return [group for group in groups if group == "io" or group.startswith("ih")]


def of_inputs(all_sigmas: dict[str, Array], group: str) -> dict[str, Array]:
    """Return the sigma of each input in the group by the input's name, (n_chains, n_draws) each."""
    start = f"sigma_{group}_unit["
    return {name[len(start) : -1]: values for name, values in all_sigmas.items() if name.startswith(start)}


def largest(values: dict[str, Array], at_most: int) -> dict[str, Array]:
    """Return the values with the largest medians, in their original order."""
    medians = sorted(values, key=lambda name: -float(np.median(values[name])))
    return {name: values[name] for name in values if name in medians[:at_most]}


def log_densities(run: Draws) -> dict[str, Array]:
    """Return log likelihood and log prior by name, (n_chains, n_draws) each."""
    return {name: run.stat(name) for name in ("log_likelihood", "log_prior")}


def least_converged(candidates: dict[str, Array], at_most: int) -> list[str]:
    """Return the names in order, limited to the `at_most` with the largest R-hat."""
    if len(candidates) <= at_most:
        return list(candidates)
    worst = set(summarize(candidates.items()).table["rhat"].sort_values(ascending=False).index[:at_most])
    return [name for name in candidates if name in worst]


def worst_of_each(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the worst values for the functions of each target and the sigmas of units."""
    import pandas as pd

    kinds = pd.Index([re.sub(r"\[(.*)\]$", "", name) for name in table.index])
    counts = kinds.value_counts()
    labels = [f"{kind}, worst of {counts[kind]}" if counts[kind] > 1 else kind for kind in kinds]
    grouped = table.groupby(pd.Index(labels), sort=False)
    return pd.DataFrame(
        {
            "rhat": grouped["rhat"].max(),
            "ess_bulk": grouped["ess_bulk"].min(),
            "ess_tail": grouped["ess_tail"].min(),
        }
    )
