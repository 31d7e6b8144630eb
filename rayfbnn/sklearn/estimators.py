"""The estimators for numeric targets and for targets that are labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from rayfbnn.errors import ConfigError
from rayfbnn.model.likelihood.registry import DATA_MODELS
from rayfbnn.sklearn.base import BayesianNetwork, as_value_errors, inputs_table, paired_targets, target_names

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.arrays import Array
    from rayfbnn.spec import RunSpec


class BayesianNetworkRegressor(RegressorMixin, BayesianNetwork):
    """Regression by the posterior of a Bayesian neural network, sampled by many Markov chains.

    Predictions have standard deviations and quantiles, which include the noise and the uncertainty about the
    network. Several targets share the hidden layers. The estimator standardises inputs and targets itself.

    A parameter that is None has its value in `spec`, or else the default given here.

    Parameters
    ----------
    hidden_layer_sizes
        Number of units in each hidden layer, such as (32,); () for a linear model. Default (8,), or (16, 16)
        for 250 cases or more with real targets.
    activation
        Activation of all hidden units, "tanh" by default; "relu", "softplus", "sigmoid" and others are in
        docs/model.md.
    input_width
        Prior size of the joint contribution of a case's inputs to a hidden unit. The weights of the inputs
        share a standard deviation centred on input_width / sqrt(n_inputs). Default 0.5; larger values let
        functions bend more.
    linear_width
        Prior size of the inputs' direct contribution to the prediction, as in linear regression, in standard
        deviations of the target. Default 1; 0 leaves this part out.
    output_width
        Prior size of the last hidden layer's contribution to the prediction, in standard deviations of the
        target. Default 4.
    alpha
        How precisely the prior determines the sizes of the hidden layers' weights. With the default, 4, their
        5 and 95 % points differ by a factor of 3.7; smaller values make the factor larger.
    relevance
        How similar the sizes of the inputs' weights are. Each input has its own size and can be irrelevant.
        Default 4; smaller values let the sizes differ more, and float("inf") gives all inputs one size.
    noise
        Prior of the noise's standard deviation in FBM's notation, in standard deviations of the target. The
        default "0.2:0.5" is centred on 0.2 and vague; with several targets, each has its own.
    priors
        Priors of individual groups of weights in FBM's notation, which replace the default ones, such as
        {"ih0": "0.5:4:2", "io": "-"}; "-" leaves a group out (docs/model.md).
    missing
        "indicator" accepts NaN and None in X, replaces them by the median, and adds an input that marks them.
        By default they raise ValueError.
    handle_unknown
        What to do with text in X that no training case had in its column: "error" raises ValueError, and
        "ignore" predicts with 0 for all inputs of the column, with a warning that counts such cases.
    iterations
        Number of iterations of the last phase. Each iteration keeps one draw of every chain. By default the
        run ends when the predictions are usable, at the latest after 10,000, or 2000 for two layers of 16
        units, or 1000 for large tables.
    chains
        Number of Markov chains. Default 8; fewer than 4 cannot be judged.
    until
        "ok" extends the run, round by round, until its predictions are usable or max_time is over.
    max_time
        Time limit of a run with `until` or without `iterations`, in seconds or as text such as "30m".
    random_state
        An integer from 0 to 2**32 - 1 is the seed of the run and makes it repeatable. A RandomState, or
        NumPy's global one for None, draws the seed.
    n_jobs
        Number of processes that sample in parallel; -1 uses every core. None or 1 samples in the current
        process without Ray, also inside the processes of GridSearchCV and similar tools.
    store
        Path of the store to create for the draws; nothing may exist there yet. By default the store is
        temporary and is removed together with the estimator.
    warm_start
        Whether `fit` continues the run of an earlier fit, or of the store at `store`, up to `iterations` in
        total. Data and all other parameters must be the same.
    spec
        A configuration for everything that has no parameter here: a TOML file, nested dictionaries, or a
        RunSpec. Its training file and targets are ignored.
    verbose
        1 shows the progress on standard error; 0, the default, is silent.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if X was a DataFrame with named columns.
    store_
        Path of the store, for `rayfbnn.diagnose`, `rayfbnn.to_datatree` and every other verb.
    summary_
        Counts of the run: draws, divergences and acceptance (RunSummary).
    verdict_
        Verdict of `rayfbnn.diagnose` on predictions at training cases, with reasons and advice (Verdict);
        None if max_time was over before the first draw.
    fit_verdict_
        Verdict on whether the predictive distributions describe the training targets, each predicted without
        itself (FitVerdict); None without `verdict_`.
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
        noise: str | float | None = None,
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
        self.__dict__.update({name: value for name, value in locals().items() if name != "self"})

    def predict(
        self, X: Any, return_std: bool = False, quantiles: Sequence[float] | None = None
    ) -> Array | tuple[Array, ...]:
        """Predict the mean of each case's targets, in the units of y.

        Parameters
        ----------
        X
            The cases, (n_cases, n_features).
        return_std
            Whether to also return the standard deviation of a new target, including noise.
        quantiles
            Probabilities strictly between 0 and 1, such as (0.1, 0.9). If given, these quantiles of a new
            target, including noise, are also returned.

        Returns
        -------
        mean
            The means, (n_cases,), or (n_cases, n_targets) if y had two axes; for t noise on a log scale
            (`data.transform` in `spec`), where means do not exist, the medians.
        std
            The standard deviations, in the same shape, if return_std is True; infinite for t noise of at most
            two degrees of freedom.
        values
            The quantiles, (n_quantiles, n_cases) or (n_quantiles, n_cases, n_targets), if requested.
        """
        predictor = self._loaded()
        inputs = inputs_table(self, X, is_training=False)
        with as_value_errors():
            results = [predictor.mean(inputs)]
            if return_std:
                results.append(self._standard_deviations(inputs))
            if quantiles is not None:
                results.append(predictor.quantiles(inputs, list(quantiles)))
        shaped = tuple(map(self._shaped, results))
        return shaped[0] if len(shaped) == 1 else shaped

    def _standard_deviations(self, inputs: pd.DataFrame) -> Array:
        """Return the standard deviation of each new target, (n_cases, n_targets)."""
        predictor = self._loaded()
        table = predictor.predict(inputs).table
        for name in predictor.target_names:
            if f"{name}_sd" not in table:
                raise ConfigError(
                    f"return_std: {name} has no standard deviation, because it has t noise on a log scale;"
                    " ask for quantiles"
                )
        return table[[f"{name}_sd" for name in predictor.target_names]].to_numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination, R squared, of the predictive means."""
        return float(super().score(X, paired_targets(X, y), sample_weight))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw targets from the predictive distribution, including noise.

        In each sample all cases share one draw of the posterior, which makes samples joint over cases.

        Parameters
        ----------
        X
            The cases, (n_cases, n_features).
        n_samples
            Number of samples.
        random_state
            Seed or RandomState of the samples; equal seeds give equal samples.

        Returns
        -------
        y
            The targets, (n_cases, n_samples), or (n_cases, n_targets, n_samples) if y had two axes.
        """
        predictor = self._loaded()
        seed = int(check_random_state(random_state).randint(2**31))
        inputs = inputs_table(self, X, is_training=False)
        with as_value_errors():
            samples = predictor.sample(inputs, n_samples, seed=seed)
        return np.moveaxis(self._shaped(samples), 0, -1)

    def _shaped(self, values: Array) -> Array:
        """Return values (..., n_targets) without the last axis if y had one axis."""
        return values[..., 0] if self._y_has_one_axis else values

    @property
    def _kinds(self) -> tuple[str, ...]:
        models = DATA_MODELS.items()
        return tuple(kind for kind, model in models if not model.has_labels and not model.are_times)

    def _read_targets(self, y: Any, *, taken: Sequence[str]) -> dict[str, Any]:
        values = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
        self._y_has_one_axis = values.ndim == 1
        values = values.reshape(len(values), -1)
        return dict(zip(target_names(y, values.shape[1], taken), values.T, strict=True))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class BayesianNetworkClassifier(ClassifierMixin, BayesianNetwork):
    """Classification by the posterior of a Bayesian neural network, sampled by many Markov chains.

    Probabilities are averages over networks and therefore include the uncertainty about the network. There
    may be two or more labels of any kind. The estimator standardises inputs itself.

    A parameter that is None has its value in `spec`, or else the default given here.

    Parameters
    ----------
    hidden_layer_sizes
        Number of units in each hidden layer, such as (8,), the default, or (16, 8); () for a linear model.
    input_width
        Prior size of the joint contribution of a case's inputs to a hidden unit. The weights of the inputs
        share a standard deviation centred on input_width / sqrt(n_inputs). Default 2; larger values let
        functions bend more.
    linear_width
        Prior size of the inputs' direct contribution to the prediction, as in logistic regression, in logits.
        Default 1; 0 leaves this part out.
    output_width
        Prior size of the last hidden layer's contribution to the prediction, in logits. Default 1.
    relevance
        How similar the sizes of the inputs' weights are. Each input has its own size and can be irrelevant.
        Smaller values let the sizes differ more, and float("inf") gives all inputs one size. Default
        float("inf") for two classes and 4 for more.
    iterations
        Number of iterations of the last phase. Each iteration keeps one draw of every chain. By default the
        run ends when the predictions are usable, at the latest after 6000 for two classes, 12,000 for more,
        or 1000 for large tables.
    activation, alpha, priors, missing, handle_unknown, chains, until, max_time
        See `BayesianNetworkRegressor`.
    random_state, n_jobs, store, warm_start, spec, verbose
        See `BayesianNetworkRegressor`.

    Attributes
    ----------
    classes_
        The labels, in the order of the columns of `predict_proba`.
    n_features_in_, feature_names_in_, store_, summary_, verdict_, fit_verdict_
        See `BayesianNetworkRegressor`.
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
        self.__dict__.update({name: value for name, value in locals().items() if name != "self"})

    def predict(self, X: Any) -> Array:
        """Return the most probable label of each case, (n_cases,)."""
        numbers = self.predict_proba(X).argmax(axis=1)
        return self.classes_[numbers]

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each label, (n_cases, n_classes), in the order of `classes_`.

        It is the mean over draws of the posterior and therefore includes the uncertainty about the network.
        """
        predictor = self._loaded()
        inputs = inputs_table(self, X, is_training=False)
        with as_value_errors():
            p = predictor.mean(inputs)
        return np.hstack([1 - p, p]) if p.shape[1] == 1 else p

    def predict_log_proba(self, X: Any) -> Array:
        """Return the natural logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of cases whose most probable label is right."""
        return float(super().score(X, paired_targets(X, y), sample_weight))

    @property
    def _kinds(self) -> tuple[str, ...]:
        possible = (None, len(self.classes_))
        models = DATA_MODELS.items()
        return tuple(kind for kind, model in models if model.has_labels and model.n_labels in possible)

    def _read_targets(self, y: Any, *, taken: Sequence[str]) -> dict[str, Any]:
        """Return the labels as categories in the order of `classes_`; the store then keeps their texts."""
        import pandas as pd

        check_array(y, dtype=None, ensure_2d=False, input_name="y")
        check_classification_targets(y)
        self.classes_, numbers = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: at least two classes are needed, got one class, {self.classes_[0]}")
        texts = [str(label).strip() for label in self.classes_]
        if len({*texts, ""}) <= len(texts):
            texts = [str(number) for number in range(len(texts))]
        labels = pd.Categorical.from_codes(numbers, categories=pd.Index(texts))
        return {target_names(y, 1, taken)[0]: labels}
