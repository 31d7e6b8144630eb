"""The log evidence by annealed importance sampling for `compare`, which keeps it in its folder."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.errors import ConfigError
from rayfbnn.output.whole_file import whole_file

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec

_log = logging.getLogger(__name__)

_FEWEST_EFFECTIVE_RUNS = 10.0
_FILE = "evidence.json"
_TEMPERATURES, _POWER = 1000, 4.0  # the defaults of `evidence`


@dataclass(frozen=True)
class Annealed:
    """An estimate by annealed importance sampling.

    runs           number of runs from the prior to the posterior
    log_evidence   nats, for the targets on the scale of the data file
    standard_error of the log evidence; no better than a guess if effective_runs is small
    effective_runs number of equally weighted runs that would be as good
    """

    runs: int
    log_evidence: float
    standard_error: float
    effective_runs: float


def check_annealing(spec: RunSpec, runs: int) -> None:
    """Raise ConfigError for a number of runs or for a model without an estimate; 0 runs need no check."""
    if runs == 0:
        return
    if runs < 2:
        raise ConfigError(
            f"annealing_runs: a standard error needs at least 2 runs, better 100 or more, got {runs};"
            " use 0 for no estimate"
        )
    if spec.temperature != 1:
        raise ConfigError(
            "annealing_runs: the evidence is defined at temperature 1, got temperature ="
            f" {spec.temperature:g}; leave one of them out"
        )
    if spec.n_parts > 1:
        raise ConfigError(
            f"annealing_runs: the evidence needs all cases in one place, got data.parts = {spec.n_parts};"
            " leave one of them out"
        )


def warn_of_few_runs(runs: int, effective_runs: float, way: str) -> None:
    """Log a warning if an estimate is not to be trusted; `way` says what would be better."""
    if effective_runs < _FEWEST_EFFECTIVE_RUNS:
        _log.warning(
            "the log evidence is not to be trusted: %d runs are worth %.1f equally weighted ones; %s",
            runs,
            effective_runs,
            way,
        )


def annealed(spec: RunSpec, dataset: Dataset, folder: Path, *, runs: int, progress: bool) -> Annealed:
    """Return the estimate in the folder if it is from the same number of runs, or compute it.

    The runs use Gibbs updates and `hybrid` with fixed stepsizes, whatever the phases of the configuration.
    """
    from rayfbnn.run.evidence import evidence
    from rayfbnn.run.progress import show_share
    from rayfbnn.spec.defaults import default_annealing

    file = folder / _FILE
    if (kept := _read(file)) is not None and kept.runs == runs:
        return kept
    with show_share(show=progress) as on_progress:
        estimated = evidence(
            spec,
            dataset,
            runs=runs,
            operations=default_annealing(),
            temperatures=_TEMPERATURES,
            power=_POWER,
            on_progress=on_progress,
        )
    estimate = Annealed(
        runs, estimated.log_marginal_likelihood, estimated.standard_error, estimated.effective_runs
    )
    with whole_file(file) as unfinished:
        unfinished.write(json.dumps(asdict(estimate)).encode())
    return estimate


def _read(file: Path) -> Annealed | None:
    if not file.exists():
        return None
    try:
        return Annealed(**json.loads(file.read_text()))
    except (ValueError, TypeError) as exc:
        raise ConfigError(
            f"{file}: not a file that `compare` wrote; delete it to estimate the evidence again"
        ) from exc
