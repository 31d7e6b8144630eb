"""Tests of whether draws of a Markov chain and exact draws come from one distribution."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.special

from rayfbnn.answers.judging.words import as_json, beyond, listed
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import Quantities
from rayfbnn.draws.subsets import check_same_posterior
from rayfbnn.draws.view import Draws
from rayfbnn.errors import StoreMismatchError
from rayfbnn.output.facts import Answer, Badge, Fact, Paragraph, Sentences, TableFact
from rayfbnn.reduce.effective import MIN_DRAWS, ess_bulk, ess_quantile, mcse_mean

if TYPE_CHECKING:
    import pandas as pd


# At these quantiles, the effective size for a distribution function is computed.
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MIN_ESS = 100  # a smaller effective sample size is itself too uncertain for the stated rate to hold


@dataclass(frozen=True)
class CheckResult(Answer):
    """The results of the two tests of each quantity, and the verdict on all of them.

    Attributes
    ----------
    table
        One row for each quantity: mean_mcmc, mean_exact, z, p_mean, ks, p_ks, ess.
    threshold
        The p-value below which a difference is reported: false_alarm_rate / number of tests.
    false_alarm_rate
        Upper limit of the probability of any report if both samples are from one distribution.
    reasons
        One sentence for each kind of difference reported, and for quantities with too few draws.
    """

    table: pd.DataFrame
    threshold: float
    false_alarm_rate: float
    reasons: tuple[str, ...]

    def facts(self) -> list[Fact]:
        """Return the table of tests, the threshold, the reasons, and the verdict."""
        threshold = (
            f"a p-value below {self.threshold:.3g} counts as a difference; by chance alone any occurs with"
            f" probability at most {self.false_alarm_rate:g}"
        )
        return [
            TableFact.from_frame(self.table, "quantity"),
            Paragraph(threshold),
            Sentences(self.reasons),
            Paragraph(Badge("ok" if self.ok else "not ok", self.ok)),
        ]

    @property
    def ok(self) -> bool:
        """True if no quantity differs by more than chance allows."""
        return not self.reasons

    def to_json(self) -> str:
        """Return one JSON object; unknown values are null."""
        document = {
            "quantities": self.table.to_dict("index"),
            "threshold": self.threshold,
            "false_alarm_rate": self.false_alarm_rate,
            "ok": self.ok,
            "reasons": self.reasons,
        }
        return json.dumps(as_json(document))


def check_draws(mcmc: Draws, exact: Draws, *, false_alarm_rate: float = 1e-3, cases: int = 10) -> CheckResult:
    """Compare draws of Markov chains with exact, independent draws of the same posterior.

    Each quantity (log sigmas, log densities, functions at some cases) is tested twice: the difference of
    means in standard errors, z = (m - m') / sqrt(mcse^2 + s'^2/n'), and a Kolmogorov-Smirnov test that counts
    the chains' draws by their effective number. Sigmas are compared by their logarithms, because a sigma
    itself may have no variance. The p-values are compared with false_alarm_rate / (number of tests): by
    Bonferroni's inequality, the stated rate is an upper limit however the quantities depend on each other.

    mcmc, exact : stores of kinds "mcmc" and "exact" with the same data, network and priors
    cases : functions are compared at this many rows of the training data
    """
    if exact.kind != "exact":
        raise StoreMismatchError(
            f"{exact.path}: holds {exact.kind} draws; expected exact draws, made by `reject`"
        )
    if mcmc.kind == "approximate":
        raise StoreMismatchError(
            f"{mcmc.path}: holds draws of an approximation, which are not from the posterior; use `rayfbnn"
            " compare` to measure how far they are from it"
        )
    check_same_posterior([mcmc, exact])
    planned = Quantities.of_run(mcmc, cases=cases)
    compared = ((name, _pair(name, values, mcmc)) for name, values in planned.each([mcmc, exact]))
    result = compare_quantities(compared, false_alarm_rate=false_alarm_rate)
    return replace(result, table=result.table.loc[list(planned.origins)])


def compare_quantities(
    compared: Iterable[tuple[str, tuple[Array, Array]]], *, false_alarm_rate: float
) -> CheckResult:
    """Test each quantity, given by name and (chains' draws, exact draws), the first (n_chains, n_draws)."""
    import pandas as pd

    rows = {name: _tests(ours, theirs.ravel()) for name, (ours, theirs) in compared}
    table = pd.DataFrame.from_dict(rows, orient="index")
    threshold = false_alarm_rate / (2 * len(table))
    return CheckResult(table, threshold, false_alarm_rate, tuple(_reasons(table, threshold)))


def _pair(name: str, values: Array, mcmc: Draws) -> tuple[Array, Array]:
    comparable = np.log(values) if name.startswith(("sigma_", "adjustment_")) else values
    ours, theirs = np.split(comparable, [mcmc.total])
    return ours.reshape(mcmc.n_chains, mcmc.n_draws), theirs


def _tests(ours: Array, theirs: Array) -> dict[str, float]:
    from scipy.stats import ks_2samp  # half a second to import, which other verbs do not need

    row = {"mean_mcmc": float(ours.mean()), "mean_exact": float(theirs.mean())}
    is_usable = ours.shape[1] >= MIN_DRAWS and theirs.size >= MIN_DRAWS
    if not (is_usable and np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return row | dict.fromkeys(("z", "p_mean", "ks", "p_ks", "ess"), math.nan)
    # The smallest effective size of bulk and of several quantiles, at most the number of draws.
    ess = min(ess_bulk(ours), *(ess_quantile(ours, p) for p in _QUANTILES), float(ours.size))
    # The larger of two errors, because draws that happen to be antithetic would give false alarms.
    mcse = max(float(mcse_mean(ours)), float(ours.std(ddof=1)) / math.sqrt(ess))
    z = (row["mean_mcmc"] - row["mean_exact"]) / math.hypot(mcse, theirs.std(ddof=1) / math.sqrt(theirs.size))
    distance = float(ks_2samp(ours.ravel(), theirs, method="asymp").statistic)
    effective = 1 / (1 / ess + 1 / theirs.size)
    return row | {
        "z": z,
        "p_mean": float(2 * scipy.special.ndtr(-abs(z))),
        "ks": distance,
        "p_ks": float(scipy.special.kolmogorov(math.sqrt(effective) * distance)),
        "ess": ess,
    }


def _reasons(table: pd.DataFrame, threshold: float) -> list[str]:
    reasons = []
    unknown = table.index[table["ess"].isna()]
    if len(unknown):
        reasons.append(f"too few draws, or values that are not finite: {listed(list(unknown))}")
    few = table["ess"][table["ess"] < _MIN_ESS].sort_values()
    if len(few):
        named, least = beyond(few, _MIN_ESS, ".0f")
        reasons.append(f"effective draws below {least}: {named}: resume with more iterations")
    for column, what in (("p_mean", "means differ"), ("p_ks", "distributions differ")):
        low = table[column][table[column] < threshold].sort_values()
        if len(low):
            named, least = beyond(low.add_suffix(" p ="), threshold, ".1g", ".1g")
            reasons.append(f"{what}: {named} (threshold {least})")
    return reasons
