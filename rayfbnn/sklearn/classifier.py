"""The estimator for targets that are labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from rayfbnn.model.likelihood.registry import DATA_MODELS
from rayfbnn.sklearn.base import BayesianNetwork
from rayfbnn.sklearn.conversions import as_value_errors, inputs_table, paired_targets, target_names

if TYPE_CHECKING:
    from rayfbnn.arrays import Array


class BayesianNetworkClassifier(ClassifierMixin, BayesianNetwork):
    """Classification by the posterior of a Bayesian neural network, sampled by many Markov chains.

    Probabilities are averages over networks and therefore include the uncertainty about the network. There
    may be two or more labels of any kind. The estimator standardises inputs itself.

    A parameter that is None has its value in `spec`, or else the default given here.

    Parameters
    ----------
    hidden_layer_sizes
        Number of units in each hidden layer, such as (8,), the default, or (16, 8); () for a linear model.
    activation
        Activation of all hidden units, "tanh" by default; "relu", "softplus", "sigmoid" and others are in
        docs/model.md.
    input_width
        Prior size of the joint contribution of a case's inputs to a hidden unit. The weights of the inputs
        share a standard deviation centred on input_width / sqrt(n_inputs). Default 2; larger values let
        functions bend more.
    linear_width
        Prior size of the inputs' direct contribution to the prediction, as in logistic regression, in logits.
        Default 1; 0 leaves this part out.
    output_width
        Prior size of the last hidden layer's contribution to the prediction, in logits. Default 1.
    alpha
        How precisely the prior determines the sizes of the hidden layers' weights. With the default, 4, their
        5 and 95 % points differ by a factor of 3.7; smaller values make the factor larger.
    relevance
        How similar the sizes of the inputs' weights are. Each input has its own size and can be irrelevant.
        Smaller values let the sizes differ more, and float("inf") gives all inputs one size. Default
        float("inf") for two classes and 4 for more.
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
        run ends when the predictions are usable, at the latest after 6000 for two classes, 12,000 for more,
        or 1000 for large tables.
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
    classes_
        The labels, in the order of the columns of `predict_proba`.
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
