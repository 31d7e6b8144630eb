"""The interface of data models, which define the distribution of targets given a network's outputs.

Each data model is a subclass of `DataModel` in a separate file, with a line in registry.py. The base class
has defaults for most methods, and a subclass overrides only those that differ.

Log densities are float64 regardless of the networks' precision. An energy near 1e5 in float32 is only
accurate to 0.01, and decisions depend on differences of order one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.cases import apply_weights, observed_weights, without_missing
from rayfbnn.streams import Streams

QUANTILES = {"median": 0.5, "q01": 0.01, "q10": 0.1, "q90": 0.9, "q99": 0.99}
"""The quantiles of a predictive distribution in a table, by column name."""

QuantileScale: TypeAlias = Literal["linear", "log", "whole"]
"""Where quantiles are searched: among all numbers, logarithms of times, or whole numbers."""

Misfit: TypeAlias = Literal["too narrow", "too wide", "varying", "outliers", "skewed", "shifted"]
"""How targets deviate from their predictive distributions: more or less spread than predicted, a spread that
varies with something, a few targets far away, a skewed distribution, or another shape."""


@dataclass(frozen=True)
class TargetRange:
    """The targets that a data model allows.

    is_possible  bool in the shape of the targets; its values for missing targets do not matter
    expected     the requirement in words, for a message such as "a binary target must be 0 or 1"
    """

    is_possible: Array
    expected: str


@dataclass(frozen=True)
class GaussianTargets:
    """Targets with Gaussian noise that replace the data, given auxiliary variables. Missing ones have T = 0.

    precisions  T (n_chains, n_targets, n_cases, or 1 if all cases are alike)
    targets     y (n_chains or 1, n_targets, n_cases), finite everywhere
    """

    precisions: Array
    targets: Array


class DataModel(ABC):
    """The distribution of the targets given the outputs of a network.

    kind                the name of the data model, which is model.kind in a configuration
    settings            the other keys of [model] that belong to it, each with its name in the message
                        "only ... targets have ..."
    required            the settings that a configuration must give, each with a description of its value
    from_labels         the setting that is derived from the labels of the training cases if it is omitted
    n_labels            number of labels of a target; None without labels, or if a configuration gives it
    has_single_target   whether there must be exactly one target
    is_real             whether targets are real numbers that may be standardised; outputs are then on the
                        scale of the targets
    has_noise           whether noise precisions are sampled
    governed_by         the name of the group of precisions that govern the targets, such as "noise"; None
                        without such precisions
    has_labels          whether targets are labels with probabilities instead of numbers
    are_times           whether targets are times, which are negative if censored
    has_exposure        whether outputs are logarithms of means, to which the log of an exposure may be added
    usual_bias          width of the default prior of the outputs' biases (spec/defaults.py)
    usual_relevance     alpha of the default sigma of each input; infinite if inputs share a sigma
    usual_iterations    default number of iterations of `hybrid` to keep
    usual_marginal_iterations  default number of iterations of `hybrid-marginal` to keep
    starts_with_sigmas_held  whether the default schedule begins with iterations that hold the sigmas of
                        weights fixed
    """

    kind: ClassVar[str]
    settings: ClassVar[dict[str, str]] = {}
    required: ClassVar[dict[str, str]] = {}
    from_labels: ClassVar[str | None] = None
    n_labels: ClassVar[int | None] = None
    has_single_target: ClassVar[bool] = False
    is_real: ClassVar[bool] = False
    has_noise: ClassVar[bool] = False
    governed_by: ClassVar[str | None] = None
    has_labels: ClassVar[bool] = False
    are_times: ClassVar[bool] = False
    has_exposure: ClassVar[bool] = False
    usual_bias: ClassVar[float] = 1.0
    usual_relevance: ClassVar[float] = 4.0
    usual_iterations: ClassVar[int] = 12_000
    usual_marginal_iterations: ClassVar[int] = 10_000
    starts_with_sigmas_held: ClassVar[bool] = True

    @property
    def added_inputs(self) -> tuple[str, ...]:
        """Names of the network's inputs that come before the inputs of the data."""
        return ()

    @property
    def n_cells(self) -> int:
        """Number of cells of a case; each cell is a separate input to the network."""
        return 1

    @classmethod
    @abstractmethod
    def from_spec(cls, model: ModelSpec) -> DataModel:
        """Return the data model with its settings."""

    @property
    def in_words(self) -> str:
        """The data model and its main setting, in the description of a configuration."""
        return self.kind

    @property
    def remarks(self) -> list[str]:
        """Further lines in the description of a configuration."""
        return []

    # The targets, and the network that they need.

    def target_range(self, targets: Array) -> TargetRange | None:
        """Return which targets are possible, with a text for messages; None if any number is possible."""
        return None

    def n_outputs(self, n_targets: int) -> int:
        """Return the number of outputs of the network for `n_targets` targets."""
        return n_targets

    def output_names(self, target_names: Sequence[str]) -> tuple[str, ...]:
        """Return the name of each output of the network."""
        return tuple(target_names)

    def cell_inputs(self, inputs: Array) -> Array:
        """Return the network's inputs at every cell, (n_cases * n_cells, n_inputs), case by case."""
        return inputs

    def reached_cells(self, rows: Array) -> tuple[Array, Array]:
        """Return the numbers of the cells that affect the likelihood, and where the cells of each case begin.

        The starts are (n_cases + 1,). This method is called only if n_cells is larger than one.

        rows  from target_rows, the same for all chains
        """
        raise NotImplementedError

    # The density of the targets.

    def target_rows(self, targets: Array) -> Array:
        """Return targets (..., n_cases, n_targets) in the outputs' layout, (..., n_rows, n_cases) float64.

        Missing targets (NaN) become zeros; `observed` distinguishes them from real zeros.
        """
        xp = array_namespace(targets)
        return xp.ascontiguousarray(without_missing(targets.swapaxes(-1, -2)), dtype=xp.float64)

    def observed(self, targets: Array) -> Array | None:
        """Return the weight of each target from `cases.observed_weights`; None if none is missing."""
        return observed_weights(targets)

    @abstractmethod
    def terms_and_gradient(self, outputs: Array, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Return terms of the log likelihood without normalisers, and d log likelihood / d outputs.

        Parameters
        ----------
        outputs : (n_chains, n_outputs, n_cases)
        rows    : (n_rows, n_cases) or (n_chains, n_rows, n_cases)   from target_rows
        noise   : (n_chains, n_targets)                              from prior.noise_precisions

        Returns
        -------
        terms    (n_chains, n_targets, n_cases) float64
        gradient (n_chains, n_outputs, n_cases) float64
        """

    def log_normalisers(self, noise: Array) -> Array:
        """Return the log normalising constant omitted from the term of each target, (n_chains, n_targets).

        If nothing is omitted, the result is zeros of shape (n_chains, 1).
        """
        return array_namespace(noise).zeros((noise.shape[0], 1))

    def total_log_normaliser(self, noise: Array, counts: Array | int) -> Array:
        """Return the sum of the log normalising constants omitted from the terms of many cases, (n_chains,).

        counts  number of cases, a number or (n_chains,); or of observed targets, (n_chains or 1, n_targets)
        """
        of_one = self.log_normalisers(noise)
        if isinstance(counts, int) or counts.ndim < 2:
            return counts * of_one.sum(axis=1)
        return (counts * of_one).sum(axis=1)

    def log_density(self, outputs: Array, targets: Array, noise: Array) -> Array:
        """Return the joint log density (or probability) of each case's observed targets, (n_chains, n_cases).

        outputs  (n_chains, n_cases, n_outputs), or (n_chains, n_cases, n_cells) if cases have several cells
        targets  (n_cases, n_targets), or with a leading chain axis
        noise    as in terms_and_gradient
        """
        weights = self.observed(targets)
        terms, normalisers = self._terms_and_normalisers(outputs, targets, noise, weights)
        if weights is None:
            return terms.sum(axis=1) + normalisers.sum(axis=1)
        return (terms + normalisers).sum(axis=1)

    def log_density_by_target(self, outputs: Array, targets: Array, noise: Array) -> Array:
        """Return the log density of each target of each case, (n_chains, n_targets, n_cases).

        The arguments are those of log_density. The result is zero for missing targets.
        """
        terms, normalisers = self._terms_and_normalisers(outputs, targets, noise, self.observed(targets))
        return terms + normalisers

    def _terms_and_normalisers(
        self, outputs: Array, targets: Array, noise: Array, weights: Array | None
    ) -> tuple[Array, Array]:
        """Return the terms and the constants that they omit, zero for missing targets.

        The constants are (n_chains, n_targets or 1, n_cases), or (..., 1) if no target is missing.
        """
        normalisers = self.log_normalisers(noise)[:, :, None]
        terms, gradient = self.terms_and_gradient(outputs.swapaxes(1, 2), self.target_rows(targets), noise)
        apply_weights(terms, gradient, weights)
        return terms, normalisers if weights is None else weights * normalisers

    @abstractmethod
    def draw(self, outputs: Array, noise: Array, streams: Streams) -> Array:
        """Draw targets (n_chains, n_targets, n_cases) given float64 outputs (n_chains, n_outputs, n_cases).

        If cases have several cells, the outputs are (n_chains, 1, n_cases * n_cells).
        """

    def density_of_shapes(
        self, outputs: Array, rows: Array, weights: Array | None
    ) -> Callable[[Array], Array]:
        """Return a function of shapes (n_chains, n_targets): the log density of each target at all cases.

        It is (n_chains, n_targets) and lacks a constant. Only counts with dispersion have shapes. outputs and
        rows are as in `terms_and_gradient`, and weights those of `observed`.
        """
        raise NotImplementedError

    # Properties of the density that operations use.

    def largest_terms(self, rows: Array) -> Array | None:
        """Return the largest value of each term over all outputs, (..., n_targets, n_cases).

        None means zero.
        """
        return None

    def log_bound(self, rows: Array, weights: Array | None) -> Array | float:
        """Return the largest value of the sum of all terms, (n_chains or 1,), or zero."""
        bounds = self.largest_terms(rows)
        if bounds is None:
            return 0.0
        if weights is not None:
            bounds = array_namespace(rows).where(weights > 0, bounds, 0.0)  # a bound may be infinite
        return bounds.sum(axis=(-2, -1)).reshape(-1)

    @property
    def why_unbounded(self) -> str | None:
        """Why the density of a target is unbounded and how to change that, or None if it is bounded.

        Exact draws by rejection need a bound.
        """
        return None

    def typical_curvature(self, targets: Array) -> Array | None:
        """Return a guess at -d2/dv2 of one case's log density, (..., n_outputs), from the targets alone.

        The result is None if `largest_curvature` is known.

        targets  (..., n_cases, n_targets), NaN if missing
        """
        return None

    def curvature_given(self, typical: Array, noise: Array) -> Array:
        """Return the typical curvature (n_chains or 1, n_outputs), improved by the precisions of the targets.

        typical  from `typical_curvature`
        """
        return typical

    def largest_curvature(self, noise: Array, n_outputs: int) -> Array:
        """Return the largest -d2/dv2 of one case's log density, (n_chains, n_outputs).

        Neal (2022) eqs. 58, 60-62. The default is 1/4, the value for an output that is a log odds.
        """
        return array_namespace(noise).full((noise.shape[0], n_outputs), 0.25)

    def output_curvature(self, outputs: Array, rows: Array, noise: Array) -> Array | None:
        """Return -d2 log likelihood / d outputs d outputs' of each case, or its expectation; never negative.

        The result is (n_chains, n_outputs, n_cases) if mixed derivatives are zero, and otherwise (n_chains,
        n_outputs, n_outputs, n_cases). It is None if Gaussian approximations do not cover this data model.
        The arguments are those of terms_and_gradient.
        """
        return None

    def why_outputs_stay(self, *, is_tempered: bool) -> str | None:
        """Return why the parameters that feed the outputs cannot be integrated out, and an alternative.

        The result is None if they can be. Targets are then Gaussian given auxiliary variables
        (`gaussian_targets`).

        is_tempered  whether the density is raised to a power other than one
        """
        return f'model.kind = "{self.kind}" has no Gaussian noise; use over = ["precisions"] or hybrid'

    def gaussian_targets(
        self, outputs: Callable[[], Array], rows: Array, noise: Array, weights: Array, streams: Streams
    ) -> GaussianTargets:
        """Draw auxiliary variables that make the targets Gaussian, if `why_outputs_stay` is None.

        outputs  returns the outputs at the training cases, (n_chains, n_outputs, n_cases) float64
        rows     from target_rows, with a chain axis
        weights  power of each target's density, broadcasts to (n_chains, n_targets, n_cases)
        """
        raise NotImplementedError

    def typical_output_square(self, rows: Array, observed: Array | None) -> Array:
        """Return the typical square of an output, from the targets alone, (n_chains or 1,)."""
        xp = array_namespace(rows)
        weights = xp.ones_like(rows) if observed is None else observed
        sums = (weights * rows**2).sum(axis=(-2, -1))
        mean = sums / xp.maximum(weights.sum(axis=(-2, -1)), 1)
        return xp.reshape(xp.where(mean > 0, mean, 1.0), (-1,))

    @property
    def compiled_name(self) -> str | None:
        """The name of its formulas in the compiled kernels; None if the kernels do not cover it."""
        return None

    @property
    def predicted_name(self) -> str | None:
        """The name of its formulas in compiled sums over draws; None if these do not cover it."""
        return self.compiled_name

    @property
    def compiled_setting(self) -> float:
        """A further number in the formulas of the compiled kernels; infinite if they need none."""
        return math.inf

    def bounded(self, noise: Array) -> Array:
        """Return the precisions of targets within the limits that the formulas of compiled code need."""
        return noise

    def compiled_shapes(self, sigmas: Array) -> Array | None:
        """Return what compiled sums need of the shapes of counts, or None without dispersion.

        The result is (n_draws, n_targets, 4), as described in kernels/shared/dispersed.hpp.

        sigmas  (n_draws, n_targets) of the dispersion
        """
        return None

    # Predictions of targets.

    def output_units(self, center: Array, scale: Array) -> tuple[Array, Array]:
        """Return a factor and a constant that turn outputs into the units of the data file.

        Both are (n_outputs,). For outputs that are not in units of targets they are one and zero. center and
        scale are as in `functions`.
        """
        n_outputs = self.n_outputs(len(center))
        return np.ones(n_outputs), np.zeros(n_outputs)

    def output_columns(self, target_names: Sequence[str]) -> list[str]:
        """Return the name of each output's column in a table, in the units of `output_units`."""
        return self.function_names(target_names)

    def functions(self, outputs: Array, center: Array, scale: Array) -> Array:
        """Return the functions of the outputs (..., n_outputs) by which a run is judged.

        By default, they are the outputs, in the units of the data file for real targets.

        center, scale  (n_targets,): a target in the data file is scale times the network's, plus center
        """
        if not self.is_real:
            return outputs
        factor, added = self.output_units(center, scale)
        return outputs * factor + added

    def function_names(self, target_names: Sequence[str]) -> list[str]:
        """Return the name of each of `functions`."""
        return list(self.output_names(target_names))

    def probabilities(self, outputs: Array) -> Array:
        """Return the probability of each label, (..., n_outputs) float64, if targets are labels."""
        raise NotImplementedError

    def expected_errors(self, probabilities: Array) -> Array:
        """Return the probability that the most probable label of each target is wrong, (n_cases, n_targets).

        probabilities  (n_cases, n_outputs), as from `probabilities`, averaged over draws
        """
        raise NotImplementedError

    def probability_columns(self, target_names: Sequence[str]) -> list[str]:
        """Return the name of each of `probabilities` in a table of predictions."""
        return []

    def label_columns(self, probabilities: dict[str, Array], target_names: Sequence[str]) -> dict[str, Array]:
        """Return a dict from column name to the most probable label of each target with text labels.

        probabilities  name from `probability_columns` -> (n_cases,)
        """
        return {}

    def probability_words(self, target_names: Sequence[str]) -> list[str]:
        """Return a description of each of `probabilities` for the legend of a picture."""
        return []

    def labelled_cases(self, targets: Array) -> list[tuple[Array, Array | None]]:
        """Return, for each of `probabilities`, the cases with its label, and those with the opposite label.

        targets  (n_cases, n_targets); the results are (n_cases,) bool, or None if a label has no opposite
        """
        return []

    def moments(self, outputs: Array, noise_sigmas: Array) -> tuple[Array, Array]:
        """Return mean and variance of a target given each draw, (n_cases, n_values, n_draws) each.

        For labels, these are the probability p of each label and p (1 - p). The arguments are as in
        `target_moments`.
        """
        p = np.moveaxis(self.probabilities(np.moveaxis(outputs, 1, -1)), -1, 1)
        return p, p * (1 - p)

    # The predictive distribution is an equally weighted mixture over draws. Its description consists of sums
    # over the draws, which reduce/ adds up in parts.

    quantile_scale: ClassVar[QuantileScale] = "linear"
    """Where `rayfbnn.reduce.search` looks for quantiles of targets that are numbers."""
    has_modes: ClassVar[bool] = False
    """Whether predictions of targets that are numbers include the most probable value."""

    def target_moments(self, outputs: Array, noise_sigmas: Array) -> tuple[Array, Array]:
        """Return mean and variance of the target itself given each draw, as `moments` does.

        They differ from `moments` for times, which are not replaced by their logarithms, and for t noise
        without a variance, which is infinite.

        outputs       (n_cases, n_outputs, n_draws), or for several cells (n_cases, n_cells, n_draws)
        noise_sigmas  (1, n_targets, n_draws), on the network's scale; no targets without noise
        """
        return self.moments(outputs, noise_sigmas)

    def distribution(self, outputs: Array, noise_sigmas: Array, values: Array) -> Array:
        """Return sums over draws of F, f and f' at a value of each target, (3, n_cases, n_targets).

        F is the distribution function given a draw. f and f' are its derivatives by the value, or by its
        logarithm if `quantile_scale` is "log". For whole numbers f is the probability of the value, and f' is
        NaN.

        outputs, noise_sigmas  as in `target_moments`
        values                 (n_cases, n_targets)
        """
        raise NotImplementedError

    def mass(self, outputs: Array, noise_sigmas: Array, values: Array) -> Array:
        """Return sums over draws of the probability of a value of each target, if `has_modes`.

        outputs, noise_sigmas  as in `target_moments`
        values                 (n_cases, n_targets), and so is the result
        """
        raise NotImplementedError

    @property
    def has_exponential_moments(self) -> bool:
        """Whether exp(target) has a mean and a variance given a draw: a target is then Gaussian given it."""
        return False

    has_curves: ClassVar[bool] = False
    """Whether predictions have the further columns of `curves`."""

    def curves(self, outputs: Array, training_targets: Array) -> dict[str, Array]:
        """Return sums over draws of further columns of a table, by name, (n_cases,) each.

        training_targets  (n_training_cases, n_targets)
        """
        return {}

    def exported_settings(self, training_targets: Array) -> dict[str, Any]:
        """Return the settings of the data model for an exported file, as values for JSON.

        training_targets  (n_training_cases, n_targets) as on file
        """
        return {}

    def errors(
        self, columns: dict[str, Array], targets: Array, target_names: Sequence[str]
    ) -> dict[str, Array]:
        """Return measures of error by name, (n_cases,) each, and NaN for a case without observed targets.

        A target without a column for its mean has the squared error of its median.

        columns  columns of the table of predictions, in the units of the data file
        targets  (n_cases, n_targets) as on file, NaN if missing
        """
        is_observed = ~np.isnan(targets)
        n_observed = np.where(is_observed.any(axis=1), is_observed.sum(axis=1), np.nan)
        medians = np.stack([columns[f"{name}_median"] for name in target_names], axis=1)
        means = np.stack([columns[point_column(columns, name)] for name in target_names], axis=1)
        return {
            "squared_error": np.nansum(np.square(means - targets), axis=1) + 0 * n_observed,
            "absolute_error": np.nansum(np.abs(medians - targets), axis=1) + 0 * n_observed,
        }

    def remedies(self, misfit: Misfit, name: str, *, is_positive: bool) -> list[str]:
        """Return what to change if targets deviate from their predictive distributions.

        name         of the target
        is_positive  whether all its training targets are above zero
        """
        if misfit == "too narrow":
            return [
                "look for cases that are repeated or depend on each other, such as several measurements of"
                " one object, because the model takes them for independent; and for inputs that are missing"
            ]
        if misfit == "too wide":
            return ["priors with larger widths, or more hidden units: see docs/priors.md"]
        return [f"look where predictions of {name} fail: rayfbnn report has their residuals by input"]


def point_column(columns: Container[str], target_name: str) -> str:
    """Return the column with a target's prediction as one number: its mean if it has one, or its median."""
    mean = f"{target_name}_mean"
    return mean if mean in columns else f"{target_name}_median"


def error_rate(is_wrong: Array, targets: Array) -> Array:
    """Return the share of wrong predictions among each case's observed targets, (n_cases,); NaN without any.

    is_wrong, targets  (n_cases, n_targets)
    """
    is_observed = ~np.isnan(targets)
    n_observed = np.where(is_observed.any(axis=1), is_observed.sum(axis=1), np.nan)
    return np.asarray((is_wrong & is_observed).sum(axis=1) / n_observed)
