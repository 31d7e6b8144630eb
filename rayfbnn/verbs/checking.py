"""The verbs that check a run: diagnose its chains, check its draws against exact ones, verify its files."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.data import Source, read_cases
from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    check_choice,
    check_counts,
    check_decisive,
    chosen_draws,
    warn_of_equal_weights,
)

if TYPE_CHECKING:
    from rayfbnn.answers.check import CheckResult
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.fit_diagnosis import FitDiagnosis
    from rayfbnn.answers.judging.verdicts import Decisive
    from rayfbnn.store.records import VerifyReport

_log = logging.getLogger(__name__)


def diagnose(
    path: str | Path,
    *,
    data: Source | None = None,
    decisive: Decisive = "all",
    fit: bool = True,
    cases: int = 10,
    max_rhat: float = 1.01,
    min_ess: float = 400.0,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
) -> Diagnosis | FitDiagnosis:
    """Say whether the chains of a run agree, and whether its predictions describe the targets.

    The quantities are sigmas, log densities and the network's outputs at some cases. Single weights are not
    among them, because units may change places without any change of the function. There are two verdicts on
    the chains: on the predictions (outputs, log likelihood, noise), and on the hyperparameters. Predictions
    can be usable although chains disagree, if the error of the average over chains is small.

    The third verdict, on fit, says whether the targets can come from their predictive distributions. Each
    training case is placed within the predictive distribution by all other cases. If the model is true, a
    misfit is found in at most one of twenty runs.

    An approximation is judged by the course of its objective, by the spread of log evidences between starts,
    and by the Pareto k of the importance weights of its draws.

    Parameters
    ----------
    path
        The store of the run.
    data
        Cases to compare the network's outputs at, instead of the training cases: a CSV or Parquet
        file with the columns of the inputs. From Python also a DataFrame or an array. If it has targets, the
        fit is judged at these cases as well.
    decisive
        What decides `ok`: "all" if everything must have converged, or one verdict, "predictions" or "fit".
    fit
        Whether to judge the fit; it takes a second or so.
    cases
        Number of cases, evenly spaced, to compare the network's outputs at.
    max_rhat
        Largest R-hat that is ok, at least 1.
    min_ess
        Smallest effective sample size that is ok, above 0.
    skip, last, chains
        See `predict`.

    Returns
    -------
    Diagnosis
        The table of quantities, the verdicts with advice, and `ok`, with the reasons if it is False. For an
        approximation a FitDiagnosis, with a table of starts.
    """
    from rayfbnn.answers.diagnostics import diagnose_draws
    from rayfbnn.answers.fit_diagnosis import diagnose_fit
    from rayfbnn.answers.judging.fit import verdict_on_fit
    from rayfbnn.answers.judging.words import heat_warning
    from rayfbnn.draws.subsets import chosen, with_members
    from rayfbnn.draws.view import committed
    from rayfbnn.run.progress import show_share

    check_counts(least=1, cases=cases)
    if not 1 <= max_rhat < math.inf:
        raise ConfigError(f"max_rhat: must be a number of at least 1, such as 1.01, got {max_rhat}")
    if not 0 < min_ess < math.inf:
        raise ConfigError(f"min_ess: must be a number above 0, such as 400, got {min_ess}")
    check_decisive(decisive, also=("fit",))
    if decisive == "fit" and not fit:
        raise ConfigError('decisive: "fit" needs the verdict on fit, which `fit` leaves out')
    check_choice(skip, last, chains)
    run = chosen(committed(Store.open(path)), skip=skip, last=last, chains=chains)
    inputs, targets = (None, None) if data is None else read_cases(data, run.spec, run.data)
    if run.kind == "approximate":
        of_fit = verdict_on_fit([with_members(run)], inputs, targets) if fit else None
        return diagnose_fit(run, of_fit, decisive=decisive)
    if warning := heat_warning(run.store):
        _log.warning("%s", warning)
    with show_share("diagnose") as on_progress:
        return diagnose_draws(
            run,
            cases=cases,
            max_rhat=max_rhat,
            min_ess=min_ess,
            inputs=inputs,
            decisive=decisive,
            fit=fit and run.kind != "prior",
            targets=targets,
            on_progress=on_progress,
        )


def check(
    path: str | Path,
    exact: str | Path,
    *,
    false_alarm_rate: float = 1e-3,
    cases: int = 10,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
) -> CheckResult:
    """Test whether the draws of a run can be from the same distribution as exact draws of its posterior.

    Parameters
    ----------
    path
        The store of the run.
    exact
        A store that `reject` made from the same configuration and data.
    false_alarm_rate
        Probability, over all quantities together, of reporting a difference that does not exist.
    cases
        Number of training cases, evenly spaced, to compare the network's outputs at.
    skip, last, chains
        See `predict`.

    Returns
    -------
    CheckResult
        The table of tests, and `ok`, with the quantities that differ if it is False.
    """
    from rayfbnn.answers.check import check_draws
    from rayfbnn.draws.view import committed

    if not 0 < false_alarm_rate < 1:
        raise ConfigError(f"false_alarm_rate: must be between 0 and 1, got {false_alarm_rate}")
    check_counts(least=1, cases=cases)
    store, of_exact = Store.open(path), Store.open(exact)
    run = chosen_draws(store, skip, last, chains)
    warn_of_equal_weights(run)
    return check_draws(run, committed(of_exact), false_alarm_rate=false_alarm_rate, cases=cases)


def verify(path: str | Path, *, repair: bool = False, dry_run: bool = False) -> VerifyReport:
    """Check every file of a store against its checksum and commit record.

    Parameters
    ----------
    path
        The store.
    repair
        Set aside damaged blocks and the blocks after them, which `resume` then computes again. Files are
        moved to `commits/discarded` in the store and never removed. A store of another version of rayfbnn is
        refused, since this version could not compute its draws again.
    dry_run
        Describe the repair, without changing anything.

    Returns
    -------
    VerifyReport
        Number of files checked, every problem that was found (before a repair), and the steps of the repair.
    """
    from rayfbnn.store.verify import verify as verify_files

    if dry_run and not repair:
        raise ConfigError("dry_run: only for a repair; give repair as well")
    if not repair:
        return verify_files(path)
    return Store.open(path, check_records=False).repair(dry_run=dry_run)
