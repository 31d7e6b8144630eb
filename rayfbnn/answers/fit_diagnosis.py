"""Diagnostics of an approximation: has it settled, do its starts agree, and is it near the posterior?"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.answers.judging.fit import FitVerdict
from rayfbnn.answers.judging.verdicts import Decisive
from rayfbnn.answers.judging.words import as_json
from rayfbnn.arrays import Array
from rayfbnn.draws.fits import FitSummary, fit_summary
from rayfbnn.draws.view import Draws
from rayfbnn.numerals import compared
from rayfbnn.output.facts import Answer, Badge, Fact, Paragraph, Sentences, TableFact, limits
from rayfbnn.reduce.importance import pareto_k

if TYPE_CHECKING:
    import pandas as pd


_MAX_PARETO_K = 0.7  # Vehtari et al. (2024): with a larger k a mean by importance weights is unreliable
_MAX_DRIFT = 1.0  # nats, over the last tenth of the steps
_MAX_SPREAD = 2.0  # nats, between the log evidences of starts
_DENSITIES = ("log_likelihood", "log_prior", "log_q")
_ERRORS = 4.0  # a drift of more standard errors is not due to chance; 1 in 16,000
_LEAST_BINS = 4  # for an estimate of a drift and its error


@dataclass(frozen=True)
class FitDiagnosis(Answer):
    """The diagnostics of an approximation.

    Attributes
    ----------
    starts
        One row for each start: its weight in predictions, its log evidence (or the lower bound) for the
        targets on the scale of the data file, the change of its objective over the last tenth of the steps
        (drift), and the shape k of the Pareto distribution of its importance weights p(w, tau, D)/q(w, tau).
        Unknown values are NaN.
    reasons
        A sentence for each check that fails.
    thresholds
        The limits of Pareto k, of the drift, and of the spread of log evidences between starts.
    fit
        The verdict on whether the predictive distributions describe the targets; None if not asked for.
    decisive
        Whether the verdict on fit decides `ok`; all other values leave it to the reasons.
    """

    starts: pd.DataFrame
    reasons: tuple[str, ...]
    thresholds: dict[str, float]
    fit: FitVerdict | None = None
    decisive: Decisive = "all"

    @property
    def ok(self) -> bool:
        """True if the approximation has settled, its starts agree, and it is close to the posterior.

        If the verdict on fit decides, True if there is no misfit.
        """
        if self.decisive == "fit":
            return self.fit is not None and self.fit.ok
        return not self.reasons

    def facts(self) -> list[Fact]:
        """Return the table of starts, the thresholds, the reasons, and the verdict on fit."""
        return [
            TableFact.from_frame(self.starts, "start"),
            limits(self.thresholds),
            Sentences(self.reasons),
            *([] if self.fit is None else self.fit.facts()),
            Paragraph(Badge("ok" if self.ok else "not ok", self.ok)),
        ]

    def to_json(self) -> str:
        """Return one JSON object; unknown values are null."""
        document: dict[str, Any] = {
            "starts": self.starts.to_dict("records"),
            "ok": self.ok,
            "reasons": list(self.reasons),
            "thresholds": self.thresholds,
        }
        if self.fit is not None:
            document["fit"] = self.fit.to_dict()
        return json.dumps(as_json(document))


def diagnose_fit(run: Draws, fit: FitVerdict | None = None, *, decisive: Decisive = "all") -> FitDiagnosis:
    """Judge an approximation by the course of its objective, its starts, and its importance weights.

    R-hat says nothing here, because the draws are independent. Starts without weight are in the table but are
    not judged.

    fit, decisive  as in FitDiagnosis
    """
    import pandas as pd

    summary = fit_summary(run.store)
    densities = {name: run.stat(name) for name in _DENSITIES}
    log_ratio = densities["log_likelihood"] + densities["log_prior"] - densities["log_q"]
    drift, error = drifts(summary.objective)
    table = pd.DataFrame(
        {
            "weight": summary.weight,
            "log_evidence": summary.log_evidence,
            "drift": drift,
            "pareto_k": [pareto_k(values) for values in log_ratio],
        }
    )
    is_drifting = (np.abs(drift) > _MAX_DRIFT) & (np.abs(drift) > _ERRORS * error)
    return FitDiagnosis(
        table,
        _reasons(table, summary, is_drifting, densities["log_q"]),
        {"max_pareto_k": _MAX_PARETO_K, "max_drift": _MAX_DRIFT, "max_spread": _MAX_SPREAD},
        fit,
        decisive,
    )


def drifts(objective: Array) -> tuple[Array, Array]:
    """Return the change over the last tenth of the steps taken, and its standard error, (n_starts,) each.

    They are the change of a straight line through the values (n_starts, n_bins), and its standard error given
    the residuals. Both are NaN if there are too few values.
    """
    changes = np.full((2, len(objective)), math.nan)
    for start, values in enumerate(objective):
        values = values[~np.isnan(values)]
        values = values[-max(_LEAST_BINS, len(values) // 10) :]
        n = len(values)
        if n < _LEAST_BINS or not np.isfinite(values).all():
            continue
        place = np.arange(n) - (n - 1) / 2
        slope = place @ values / (place @ place)
        residuals = values - values.mean() - slope * place
        error = math.sqrt(residuals @ residuals / (n - 2) / (place @ place))
        changes[:, start] = (n - 1) * slope, (n - 1) * error
    return changes[0], changes[1]


def _reasons(table: pd.DataFrame, summary: FitSummary, is_drifting: Array, log_q: Array) -> tuple[str, ...]:
    reasons, counts, has_density = [], summary.weight > 0, summary.approximation.has_density
    n = int(counts.sum())
    if has_density and not np.isfinite(log_q[counts]).all():
        reasons.append(
            "draws are not finite: the fit has broken down at some start; give priors that are less vague"
        )
    n_drifting = int((is_drifting & counts).sum())
    if n_drifting:
        reasons.append(
            f"the objective of {n_drifting} of {n} starts still changes by more than {_MAX_DRIFT:g} over the"
            " last tenth of the steps; take more steps"
        )
    evidence = table["log_evidence"].to_numpy()[counts]
    if n > 1 and np.isfinite(evidence).all() and np.ptp(evidence) > _MAX_SPREAD:
        (spread,), most = compared([np.ptp(evidence)], _MAX_SPREAD, ".3g")
        reasons.append(
            f"the log evidences of the starts differ by {spread} (at most {most}), so that they have found"
            " different approximations"
        )
    if not has_density:
        return (*reasons, "single networks have no spread, so that nothing is known of their uncertainty")
    k = table["pareto_k"].to_numpy()[counts]
    if not (k <= _MAX_PARETO_K).all():
        (worst,), most = compared([k.max()], _MAX_PARETO_K, ".3g")
        reasons.append(
            f"Pareto k of the importance weights is {'not known' if np.isnan(k).any() else worst}"
            f" (at most {most}): the approximation"
            " is far from the posterior; `compare` says how far its predictions are"
        )
    return tuple(reasons)
