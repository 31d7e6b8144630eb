"""Diagnostics of a run: R-hat, effective sample sizes, acceptance, divergences, and a verdict."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.reduce.draws import Draws, committed
from rayfbnn.reduce.effective import MIN_DRAWS, ess_bulk, ess_tail, mcse_mean, rhat
from rayfbnn.reduce.known import known
from rayfbnn.reduce.quantities import quantities
from rayfbnn.reduce.reasons import listed

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.store.store import Store

MAX_DIVERGED = 0.01  # share of iterations
_NAMED = 3  # chains written out in a reason


@dataclass(frozen=True)
class Diagnosis:
    """The diagnostics of a run, their thresholds, and a reason for each threshold that is missed.

    quantities   one row per quantity: mean, sd, rhat (rank-normalised, split), ess_bulk, ess_tail, mcse of
                 the mean; NaN where the draws are too few to tell
    acceptance   mean share of updates accepted, over the draws looked at and all chains; None if nothing was
                 accepted or rejected (exact draws)
    divergences  number of updates at these draws with an energy that was not finite; each was rejected
    warmup_acceptance, warmup_divergences  the same for all iterations not kept for the posterior
    """

    quantities: pd.DataFrame
    acceptance: float | None
    warmup_acceptance: float | None
    divergences: int
    warmup_divergences: int
    reasons: tuple[str, ...]
    thresholds: dict[str, float]

    @property
    def ok(self) -> bool:
        """True if no check falls short of its threshold."""
        return not self.reasons

    def to_json(self) -> str:
        """Return one JSON object; unknown values are null."""
        rows = {
            name: {key: known(value) for key, value in row.items()}
            for name, row in self.quantities.to_dict("index").items()
        }
        return json.dumps(
            {
                "quantities": rows,
                "acceptance": self.acceptance,
                "warmup_acceptance": self.warmup_acceptance,
                "divergences": self.divergences,
                "warmup_divergences": self.warmup_divergences,
                "ok": self.ok,
                "reasons": list(self.reasons),
                "thresholds": self.thresholds,
            }
        )


def diagnose(
    store: Store,
    *,
    cases: int = 10,
    max_rhat: float = 1.01,
    min_ess: float = 400,
    inputs: Array | None = None,
) -> Diagnosis:
    """Judge a run by its hyperparameters, log densities and functions; never by its weights.

    R-hat and effective sample sizes are those of Vehtari et al. (2021), "Rank-normalization, folding, and
    localization: an improved R-hat". Sigmas that are fixed by the configuration are left out; any other
    quantity that never changes is a reason, as chains that never move agree perfectly.

    Parameters
    ----------
    cases, inputs : functions are judged at `cases` evenly spaced rows of `inputs` (as on file), or of the
        training data
    max_rhat, min_ess : thresholds for every quantity; min_ess is for bulk and tail
    """
    run = committed(store)
    judged = quantities(run, cases=cases, inputs=inputs)
    table = summarize(judged)
    acceptance, divergences, diverged_share = _updates(run)
    reasons = [
        *_unusable(judged, run.n_chains, run.n_draws),
        *_short_of(table, max_rhat=max_rhat, min_ess=min_ess),
    ]
    if diverged_share > MAX_DIVERGED:
        reasons.append(
            f"{divergences} updates diverged, in {diverged_share:.1%} of the iterations"
            f" (at most {MAX_DIVERGED:.0%}): use a smaller stepsize"
        )
    thresholds = {
        "max_rhat": max_rhat,
        "min_ess": min_ess,
        "min_draws": MIN_DRAWS,
        "max_diverged_share": MAX_DIVERGED,
    }
    warmup = run.store.updates().warmup
    return Diagnosis(
        table,
        acceptance,
        warmup.acceptance,
        divergences,
        warmup.divergences,
        tuple(reasons),
        thresholds,
    )


def summarize(judged: dict[str, Array]) -> pd.DataFrame:
    """Return a table with a row of statistics for each quantity (n_chains, n_draws)."""
    import pandas as pd

    return pd.DataFrame.from_dict(
        {name: _statistics(values) for name, values in judged.items()}, orient="index"
    )


def _statistics(values: Array) -> dict[str, float]:
    with np.errstate(invalid="ignore"):  # values may be infinite
        sd = float(values.std(ddof=1)) if values.size > 1 else math.nan
        row = {"mean": float(values.mean()), "sd": sd}
    functions = {"rhat": rhat, "ess_bulk": ess_bulk, "ess_tail": ess_tail, "mcse": mcse_mean}
    is_usable = values.shape[1] >= MIN_DRAWS and bool(np.isfinite(values).all()) and np.ptp(values) > 0
    if not is_usable:
        return row | dict.fromkeys(functions, math.nan)
    return row | {name: float(function(values)) for name, function in functions.items()}


def _unusable(judged: dict[str, Array], n_chains: int, n_draws: int) -> list[str]:
    """Return the reasons for which R-hat and ESS mean nothing, whatever their values."""
    reasons = []
    if n_draws < MIN_DRAWS:
        reasons.append(
            f"{n_draws} draws in each chain, at least {MIN_DRAWS} are needed: resume with more iterations"
        )
    if n_chains < 2:
        reasons.append("one chain, at least 2 are needed for R-hat: sample with more chains")
    not_finite = [name for name, values in judged.items() if not np.isfinite(values).all()]
    if not_finite:
        reasons.append(f"values that are not finite: {listed(not_finite)}")
    if n_draws >= 2:
        frozen = [name for name, values in judged.items() if (np.ptp(values, axis=1) == 0).any()]
        if frozen:
            stuck = np.flatnonzero(np.ptp(judged[frozen[0]], axis=1) == 0)
            chains = (
                f"chains {', '.join(map(str, stuck[:_NAMED]))}{' and more' if len(stuck) > _NAMED else ''}"
            )
            reasons.append(f"never changes in {chains}: {listed(frozen)}: use a smaller stepsize")
    return reasons


def _short_of(table: pd.DataFrame, *, max_rhat: float, min_ess: float) -> list[str]:
    reasons = []
    high = table["rhat"][table["rhat"] > max_rhat].sort_values(ascending=False)
    if len(high):
        named = listed([f"{name} {value:.3f}" for name, value in high.items()])
        reasons.append(f"R-hat above {max_rhat:g}: {named}: the chains do not agree yet")
    for column, what in (("ess_bulk", "bulk"), ("ess_tail", "tail")):
        low = table[column][table[column] < min_ess].sort_values()
        if len(low):
            named = listed([f"{name} {value:.0f}" for name, value in low.items()])
            reasons.append(f"{what} ESS below {min_ess:g}: {named}: resume with more iterations")
    return reasons


def _updates(run: Draws) -> tuple[float | None, int, float]:
    """Return the mean acceptance, the number of diverged updates, and the share of iterations with any."""
    every = slice(0, run.n_draws)
    accepted = np.asarray(run.store.read_stat("accepted", every))
    diverged = np.nan_to_num(np.asarray(run.store.read_stat("diverged", every)))
    finite = accepted[np.isfinite(accepted)]
    return float(finite.mean()) if finite.size else None, int(diverged.sum()), float((diverged > 0).mean())
