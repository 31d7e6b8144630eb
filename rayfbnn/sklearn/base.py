"""What both estimators share: parameters, conversions, fitting, temporary stores, and their draws."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from rayfbnn import api
from rayfbnn.answers.judging.chain_average import MIN_CHAINS
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.answers.predict import weighed_by_evidence
from rayfbnn.answers.predictor import Predictor, thin
from rayfbnn.data.raw_table import check_paired, column_name, without_labels
from rayfbnn.draws.view import committed_or_early, early_warning
from rayfbnn.errors import ConfigError, RayFBNNError, StoreCorruptError
from rayfbnn.output.whole_file import output_errors
from rayfbnn.sklearn.configuring import configuration, configuration_to_resume
from rayfbnn.sklearn.removal import identity, remove, watch
from rayfbnn.spec.messages import WEIGHTS_REFUSED
from rayfbnn.store.storage.places import is_address, place_of
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.judging.fit import FitVerdict
    from rayfbnn.run.running import RunSummary
    from rayfbnn.spec import RunSpec


_TEMPORARY = "the folder for temporary files (TMPDIR)"


class TemporaryStore:
    """A place for a store that is removed together with this object, or when its process ends in any way.

    A pickle contains all files of the store, because a path would not be valid elsewhere. An unpickled object
    keeps them in memory, and writes them to its own place when its path is asked for.
    """

    def __init__(self) -> None:
        self._archive: bytes | None = None
        self._path: Path | None = None
        self._make_folder()

    @property
    def path(self) -> Path:
        """Path of the store, in a folder that contains nothing else."""
        return self._path or self._unpack()

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield the path of a store to be read. A store that is in memory is on the disk only meanwhile."""
        if self._path is not None:
            yield self._path
            return
        copy = TemporaryStore.__new__(TemporaryStore)
        copy.__setstate__(self.__getstate__())
        try:
            yield copy.path
        finally:
            copy._remove()

    def check(self) -> None:
        """Raise a StoreError if something has removed the store, or a part that every reader needs."""
        if self._path is not None:
            Store.open(self._path)

    def _make_folder(self) -> Path:
        with output_errors(_TEMPORARY):
            folder = tempfile.mkdtemp(prefix="rayfbnn-")
        # Unlike weakref.finalize, this works at the end of a process of multiprocessing too. A fork, and
        # what removes the object there, leaves the folder to its parent.
        self._remove = Finalize(self, remove, (folder, identity(os.lstat(folder))), exitpriority=-100)
        watch(folder)
        self._path = Path(folder) / "run.zarr"
        return self._path

    def _unpack(self) -> Path:
        assert self._archive is not None
        path = self._make_folder()
        with output_errors(path), tarfile.open(fileobj=io.BytesIO(self._archive)) as files:
            files.extractall(path.parent, filter="data")
        self._archive = None
        return path

    def __getstate__(self) -> bytes:
        if self._archive is not None:
            return self._archive
        self.check()
        archive = io.BytesIO()
        try:
            with tarfile.open(fileobj=archive, mode="w") as files:
                files.add(self.path, arcname=self.path.name)
        except FileNotFoundError as exc:  # something is removing it
            raise StoreCorruptError(f"{exc.filename}: missing") from exc
        return archive.getvalue()

    def __setstate__(self, archive: bytes) -> None:
        self._archive, self._path = archive, None


_MAX_MCSE = 0.02  # Monte Carlo error of predictive means, in predictive standard deviations
_MAX_SEED = 2**32


class BayesianNetwork(BaseEstimator):
    """A Bayesian neural network as an estimator of scikit-learn, for any kind of targets.

    The estimators explain the parameters.
    """

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
        import pandas as pd

        refuse_parameters(refused)
        inputs = inputs_table(self, X, is_training=True, requires_y=y is None)
        targets = paired_targets(X, y)
        with as_value_errors():
            targets = self._read_targets(targets, taken=list(inputs.columns))
            self._sample(pd.concat([inputs, pd.DataFrame(targets)], axis=1), list(targets))
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
        warn_unless_ok(self.verdict_, type(self).__name__, iterations=iterations, obstacle=obstacle)
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
    (run,), _ = weighed_by_evidence([every])  # the verdict names the phases
    # Weighed phases of ladders have no Monte Carlo error that could be estimated.
    max_mcse = _MAX_MCSE if run.early_phase is None and run is every else 0
    return Predictor(run, thin(run, draws=None, max_mcse=max_mcse), dtype="float64")


def warn_unless_ok(verdict: Verdict, estimator: str, *, iterations: int, obstacle: str = "") -> None:
    """Issue a ConvergenceWarning with advice if the predictions are not usable.

    estimator   the estimator's name, for the message
    iterations  length of the run's last phase
    obstacle    the reason that more iterations would not help; "" if they may
    """
    if not verdict.ok:
        way = what_to_do(verdict, iterations)
        if obstacle:
            way = f"More iterations would not help, because {obstacle}; verdict_.advice says what to do."
        warnings.warn(f"{estimator}: {verdict.warning}. {way}", ConvergenceWarning, stacklevel=5)


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


def inputs_table(estimator: Any, X: Any, *, is_training: bool, requires_y: bool = False) -> pd.DataFrame:
    """Return the inputs as a table after scikit-learn's checks, which raise ValueError.

    In training the estimator gets n_features_in_ and, if all columns have names, feature_names_in_. Later X
    is compared with them. A DataFrame with columns of text, truth values or categories stays unchanged, and
    rayfbnn encodes it. Anything else becomes columns of numbers, named x1, x2, ... unless they have names.

    requires_y  whether scikit-learn raises its error about a missing y
    """
    import pandas as pd

    X, _ = (X, None) if isinstance(X, Mapping) else without_labels(X)
    y = None if requires_y else "no_validation"
    frame = _frame_with_text(X)
    if frame is not None:
        validate_data(estimator, X, y, reset=is_training, skip_check_array=True)
        return frame
    values = validate_data(
        estimator,
        X,
        y,
        reset=is_training,
        dtype=np.float64,
        ensure_all_finite="allow-nan" if estimator.missing == "indicator" else True,
        ensure_min_samples=2 if is_training else 1,
    )
    numbered = [f"x{number + 1}" for number in range(values.shape[1])]
    return pd.DataFrame(values, columns=list(getattr(estimator, "feature_names_in_", numbered)))


def paired_targets(X: Any, y: Any) -> Any:
    """Return y without row labels; raise ValueError if they differ from those of X, or the lengths differ."""
    targets, labels = without_labels(y)
    check_consistent_length(X, targets)
    with as_value_errors():
        check_paired(without_labels(X)[1], labels, "X", "y")
    return targets


def _frame_with_text(X: Any) -> pd.DataFrame | None:
    """Return X with its names as text if it is a DataFrame with columns that are not numeric, or None."""
    import pandas as pd

    if not isinstance(X, pd.DataFrame):
        return None
    are_numbers = [
        pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype) for dtype in X.dtypes
    ]
    if all(are_numbers) or len(X) == 0:
        return None
    frame = X.copy(deep=False)
    frame.columns = pd.Index(list(map(column_name, frame.columns)))
    return frame


def target_names(y: Any, n_targets: int, taken: Sequence[str]) -> list[str]:
    """Return a name for each target: the names in y, or else y or y1, y2, ...

    Names that are already taken get an underscore.
    """
    names = [f"y{number + 1}" for number in range(n_targets)] if n_targets > 1 else ["y"]
    named = list(getattr(y, "columns", [])) or [getattr(y, "name", None)]
    if len(named) == n_targets and all(isinstance(name, str) and name.strip() for name in named):
        names = list(map(column_name, named))
    unique: list[str] = []
    for name in names:
        while name in taken or name in unique:
            name += "_"
        unique.append(name)
    return unique


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Turn errors about invalid input into ValueError, which scikit-learn expects."""
    try:
        yield
    except RayFBNNError as exc:
        if exc.exit_code != 2:
            raise
        raise ValueError(str(exc)) from exc


def refuse_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise ValueError with the reason for `sample_weight`, and TypeError for unknown parameters."""
    if parameters.get("sample_weight") is not None:
        raise ValueError(f"sample_weight: {WEIGHTS_REFUSED}")
    unknown = [name for name in parameters if name != "sample_weight"]
    if unknown:
        raise TypeError(f"fit() got an unexpected keyword argument '{unknown[0]}'")
