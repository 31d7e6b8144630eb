"""Ranks the configurations of a study by the probability that they give to the targets of cases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.data import Source
from rayfbnn.errors import ConfigError
from rayfbnn.study.merging import stores_with_draws
from rayfbnn.study.study_status import status_of_study
from rayfbnn.verbs.predicting import predict

if TYPE_CHECKING:
    from rayfbnn.study.files import StudyFiles


@dataclass(frozen=True)
class Rank:
    """The place of a configuration in the ranking.

    Attributes
    ----------
    configuration
        Its number in the study.
    label
        The values that distinguish it from the others.
    log_probability
        Mean over cases of the log probability density of a case's targets.
    difference
        Distance of the mean below that of the best configuration; 0 for the best.
    difference_se
        Standard error of the difference, from the differences of the cases; 0 for the best, NaN for one case.
    n_cases
        Number of cases with targets.
    ok
        Whether the configuration has converged; None before it is complete. If it is not True, the draws may
        come from chains that do not agree.
    """

    configuration: int
    label: str
    log_probability: float
    difference: float
    difference_se: float
    n_cases: int
    ok: bool | None


def rank(study: StudyFiles, data: Source) -> list[Rank]:
    """Return the configurations, the best first; ConfigError if the cases have no targets."""
    by_configuration = []
    for configuration in study.configurations:
        table = predict(stores_with_draws([study], configuration.number), data=data).table
        if "log_probability" not in table:
            raise ConfigError("data: ranking needs cases with targets, and these have none")
        by_configuration.append(table["log_probability"].to_numpy(dtype=np.float64))
    values = np.stack(by_configuration)
    values = values[:, ~np.isnan(values).any(axis=0)]  # only cases with targets have probabilities
    n_cases = values.shape[1]
    if n_cases == 0:
        raise ConfigError("data: ranking needs cases with targets, but all targets are missing")
    best = int(values.mean(axis=1).argmax())
    status = status_of_study(study).configurations
    ranks = []
    for configuration, row in zip(study.configurations, values, strict=True):
        lost = np.zeros(n_cases)
        np.subtract(values[best], row, out=lost, where=values[best] != row)  # both may be -inf
        is_known = n_cases > 1 and np.isfinite(lost).all()
        error = float(lost.std(ddof=1)) / math.sqrt(n_cases) if is_known else math.nan
        ranks.append(
            Rank(
                configuration=configuration.number,
                label=configuration.label,
                log_probability=float(row.mean()),
                difference=float(lost.mean()),
                difference_se=0.0 if configuration.number == best else error,
                n_cases=n_cases,
                ok=status[configuration.number].ok,
            )
        )
    return sorted(ranks, key=lambda one: one.difference)


def ranks_text(ranks: list[Rank]) -> str:
    """Return a line for each configuration, the best first."""
    lines = [f"mean log probability of {ranks[0].n_cases} cases, and how far below the best:"]
    for one in ranks:
        below = "best" if one.difference == 0 else f"-{one.difference:.4g} +- {one.difference_se:.2g}"
        note = "" if one.ok else "  (not complete)" if one.ok is None else "  (not converged)"
        lines.append(f"{one.log_probability:10.4f}  {below:<20}  {one.label}{note}")
    return "\n".join(lines)
