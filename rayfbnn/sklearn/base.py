"""The common part of regressor and classifier: parameters, fitting, and the draws for predictions."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from rayfbnn import api
from rayfbnn.answers.judging.chain_average import MIN_CHAINS
from rayfbnn.answers.judging.ladder_pooled import pooled_by_evidence
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.answers.predictor import Predictor
from rayfbnn.draws.view import committed_or_early, early_warning
from rayfbnn.errors import ConfigError
from rayfbnn.sklearn.configuring import configuration, configuration_to_resume
from rayfbnn.sklearn.conversions import (
    as_value_errors,
    inputs_table,
    paired_targets,
    refuse_parameters,
    training_table,
)
from rayfbnn.sklearn.stores import TemporaryStore
from rayfbnn.store.storage.places import is_address, place_of
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.judging.fit import FitVerdict
    from rayfbnn.answers.judging.verdicts import Verdict
    from rayfbnn.run.running import RunSummary
    from rayfbnn.spec import RunSpec

_MAX_MCSE = 0.02  # Monte Carlo error of predictive means, in predictive standard deviations
_MAX_SEED = 2**32


class BayesianNetwork(BaseEstimator):
    """A Bayesian neural network as an estimator of scikit-learn, for any kind of targets.

    The estimators explain the parameters.
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | int | None = None,
        activation: str | None = None,
        *,
        input_width: float | None = None,
        linear_width: float | None = None,
        output_width: float | None = None,
        alpha: float | None = None,
        relevance: float | None = None,
        priors: Mapping[str, str | float] | None = None,
        missing: Literal["indicator"] | None = None,
        handle_unknown: Literal["error", "ignore"] = "error",
        iterations: int | None = None,
        chains: int | None = None,
        until: Literal["ok"] | None = None,
        max_time: str | float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        store: str | Path | None = None,
        warm_start: bool = False,
        spec: RunSpec | Mapping[str, Any] | str | Path | None = None,
        verbose: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.input_width = input_width
        self.linear_width = linear_width
        self.output_width = output_width
        self.alpha = alpha
        self.relevance = relevance
        self.priors = priors
        self.missing = missing
        self.handle_unknown = handle_unknown
        self.iterations = iterations
        self.chains = chains
        self.until = until
        self.max_time = max_time
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.store = store
        self.warm_start = warm_start
        self.spec = spec
        self.verbose = verbose

    def fit(self, X: Any, y: Any, **refused: Any) -> Self:
        """Sample the posterior given training cases.

        A ConvergenceWarning gives advice if the chains do not agree well enough for predictions. A ValueError
        names the parameter or the part of the data that is wrong.

        Parameters
        ----------
        X
            The inputs, (n_cases, n_features): an array or a DataFrame. Columns of a DataFrame may also hold
            text, truth values and categories (docs/data.md describes their encoding).
        y
            The targets, (n_cases,), or (n_cases, n_targets) for several numbers.
        **refused
            `sample_weight` raises ValueError with the reason. Other keyword arguments raise TypeError.

        Returns
        -------
        self
        """
        refuse_parameters(refused)
        inputs = inputs_table(self, X, is_training=True, requires_y=y is None)
        targets = paired_targets(X, y)
        with as_value_errors():
            targets = self._read_targets(targets, taken=list(inputs.columns))
            self._sample(training_table(inputs, targets), list(targets))
        return self

    @abstractmethod
    def _read_targets(self, y: Any, *, taken: Sequence[str]) -> dict[str, Any]:
        """Return the columns of the targets by name, and store what prediction needs to know about them.

        taken  names that the targets must not have
        """

    @property
    @abstractmethod
    def _kinds(self) -> tuple[str, ...]:
        """The possible data models, with the usual one first."""

    @property
    def store_(self) -> Path:
        """Path of the store with the draws."""
        check_is_fitted(self)
        return _path(self._place)

    def _sample(self, table: pd.DataFrame, targets: list[str]) -> None:
        """Sample into a new store, or continue an existing one; then load some draws into memory."""
        place = self._place_to_go_on() or self._new_place()
        path = _path(place)
        workers = effective_n_jobs(self.n_jobs)
        spec = configuration(
            self.get_params(deep=False),
            table,
            targets=targets,
            kinds=self._kinds,
            seed=self._seed(),
            workers=workers,
        )
        settings: dict[str, Any] = {
            "data": table,
            "until": self.until,
            "max_time": self.max_time,
            "workers": 0 if workers == 1 else workers,
            "progress": bool(self.verbose),
        }
        self._place: TemporaryStore | Path
        try:
            self.summary_ = self._run(path, spec, settings)
        except KeyboardInterrupt:
            self._place = place  # warm_start=True can then continue there
            self.__dict__.pop("_predictor", None)
            raise
        self._place = place
        self._predictor: Predictor | None = _predictor(path)
        self._judge(path)

    def _run(self, path: Path, spec: RunSpec, settings: dict[str, Any]) -> RunSummary:
        """Sample into a new store, or continue the one at `path`."""
        if self.warm_start and path.exists():
            spec, iterations = configuration_to_resume(path, spec, self.get_params(deep=False))
            if self.until is None:
                settings["max_time"] = None  # it limits only the rounds of a new run
            return api.resume(path, spec=spec, iterations=iterations, **settings)
        return api.sample(spec, path, **settings)

    def _place_to_go_on(self) -> TemporaryStore | Path | None:
        """Return the temporary store of an earlier fit if sampling continues there, or None."""
        if not self.warm_start or self.store is not None or not hasattr(self, "_place"):
            return None
        if hasattr(self, "_predictor") and isinstance(self._place, TemporaryStore):
            self._place.check()
        return self._place

    def _new_place(self) -> TemporaryStore | Path:
        if self.store is not None and is_address(self.store):
            raise ConfigError(
                f"store: must be on a disk, got {place_of(self.store)}; rayfbnn.sample takes buckets"
            )
        return TemporaryStore() if self.store is None else Path(self.store).absolute()

    def _seed(self) -> int:
        """Return the seed of the run. An integer random_state is the seed itself, as in a configuration."""
        if isinstance(self.random_state, int):
            return self.random_state
        return int(check_random_state(self.random_state).randint(_MAX_SEED, dtype="uint32"))

    def _judge(self, path: Path) -> None:
        """Set verdict_ and fit_verdict_, and warn if the predictions cannot be used or do not fit."""
        self.verdict_: Verdict | None = None
        self.fit_verdict_: FitVerdict | None = None
        run = committed_or_early(Store.open(path))
        if run.early_phase is not None:
            warnings.warn(early_warning(run), ConvergenceWarning, stacklevel=4)
            return
        diagnosis = cast("Diagnosis", api.diagnose(path, decisive="predictions"))  # of Markov chains
        self.verdict_, self.fit_verdict_ = diagnosis.predictions, diagnosis.fit
        iterations = run.spec.phase[-1].iterations
        obstacle = "" if diagnosis.ladders is None else diagnosis.ladders.obstacle
        warn_unless_ok(
            self.verdict_, type(self).__name__, iterations=iterations, obstacle=obstacle, stacklevel=4
        )
        fit = self.fit_verdict_
        if fit is not None and fit.grade == "misfit":
            message = f"{type(self).__name__}: {fit.warning}. What to do: {fit.advice[0]};"
            warnings.warn(f"{message} fit_verdict_ has all reasons.", UserWarning, stacklevel=4)

    def _loaded(self) -> Predictor:
        """Return the draws in memory; an unpickled estimator reads them again."""
        check_is_fitted(self)
        if self._predictor is None:
            place = self._place
            with place.unpacked() if isinstance(place, TemporaryStore) else nullcontext(place) as path:
                self._predictor = _predictor(path)
        return self._predictor

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_predictor" in state:
            state["_predictor"] = None
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictor")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.allow_nan = self.missing == "indicator"
        tags.input_tags.categorical = True
        return tags


def _path(place: TemporaryStore | Path) -> Path:
    return place.path if isinstance(place, TemporaryStore) else place


def _predictor(path: Path) -> Predictor:
    """Load draws of a store into memory, only as many as a small Monte Carlo error needs.

    The draws are in float64. In float32 the rounding of a case depends on its place among others, which
    check_estimator does not allow.
    """
    every = committed_or_early(Store.open(path))
    (run,), _ = pooled_by_evidence([every])  # the verdict names the phases
    # Weighed phases of ladders have no Monte Carlo error that could be estimated.
    max_mcse = _MAX_MCSE if run.early_phase is None and run is every else 0
    return Predictor.from_draws(run, max_mcse=max_mcse, dtype="float64")


def warn_unless_ok(
    verdict: Verdict, estimator: str, *, iterations: int, stacklevel: int, obstacle: str = ""
) -> None:
    """Issue a ConvergenceWarning with advice if the predictions are not usable.

    estimator   the estimator's name, for the message
    iterations  length of the run's last phase
    stacklevel  stacklevel of `warnings.warn`, counted from the caller
    obstacle    the reason that more iterations would not help; "" if they may
    """
    if not verdict.ok:
        way = what_to_do(verdict, iterations)
        if obstacle:
            way = f"More iterations would not help, because {obstacle}; verdict_.advice says what to do."
        message = f"{estimator}: {verdict.warning}. {way}"
        warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel + 1)


def what_to_do(verdict: Verdict, iterations: int) -> str:
    """Return the advice of a verdict in terms of an estimator's parameters."""
    if verdict.is_stuck:  # neither more chains nor more draws help
        return "What to do: fit again with other settings; verdict_.advice lists them."
    error = verdict.error
    steps = []
    if error is not None and error.chains < MIN_CHAINS:
        steps.append(f"set chains={MIN_CHAINS} or more, because fewer cannot be judged")
    elif verdict.grade == "not usable" and error is not None and not error.is_moving:
        enough = error.chains_that_would_do
        steps.append("use more chains" if enough is None else f"set chains={enough}")
    longer = verdict.iterations or 2 * iterations
    steps.append(f"set iterations={longer} (with warm_start=True the draws so far are kept)")
    return f"What to do: {'; or '.join(steps)}; verdict_ has the reasons and more advice."
