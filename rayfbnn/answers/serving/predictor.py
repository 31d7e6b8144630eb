"""A predictor that keeps its draws in memory, to answer in milliseconds without reading a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.predict import Prediction, predict_from_draws
from rayfbnn.answers.predictive import predictive_mean, predictive_quantiles, predictive_sample
from rayfbnn.answers.serving.monte_carlo import Thinning, thin
from rayfbnn.arrays import Array
from rayfbnn.data import Source, read_cases
from rayfbnn.draws.held import hold
from rayfbnn.errors import ConfigError, at_most_ten

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws
    from rayfbnn.spec import RunSpec


class Predictor:
    """Draws of a run, held in memory to make predictions.

    Attributes
    ----------
    mcse
        Largest Monte Carlo standard error of a predictive mean at some training cases, as a share of the
        predictive standard deviation; NaN if there are fewer than four draws of each chain.
    early_phase
        Number of the phase that the draws are from, counted from 1, if the run had kept no draws yet; None if
        they are from the posterior.
    """

    def __init__(
        self,
        run: Draws,
        thinning: Thinning,
        *,
        max_memory: float,
        dtype: str | None = None,
        spec: RunSpec | None = None,
    ) -> None:
        """Read the chosen draws of a run.

        dtype  type of the arithmetic; None for that of the run
        spec   the configuration for reading cases; None for that of the run
        """
        self.mcse = thinning.mcse
        self.early_phase = run.early_phase
        self._held = hold(run, thinning.numbers, dtype=dtype)
        self._max_memory = max_memory
        self._spec = self._held.spec if spec is None else spec

    @staticmethod
    def from_draws(
        run: Draws,
        *,
        draws: int | None = None,
        max_mcse: float = 0.05,
        max_memory: float = 256e6,
        dtype: str | None = None,
    ) -> Predictor:
        """Return a predictor with a chosen number of draws; see `rayfbnn.load`."""
        thinning = thin(run, draws=draws, max_mcse=max_mcse)
        return Predictor(run, thinning, max_memory=max_memory, dtype=dtype)

    @property
    def n_draws(self) -> int:
        """Number of draws of all chains together."""
        return self._held.total

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that cases must have, in the order of an array."""
        encoding = self._held.spec.encoding
        return self._held.data.input_names if encoding is None else encoding.source_names

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the targets."""
        return self._held.data.target_names

    def predict(self, data: Source, *, max_memory: float | None = None) -> Prediction:
        """Predict the targets of new cases, as `rayfbnn.predict` does from the same draws.

        Parameters
        ----------
        data
            The cases: an array (n_cases, n_columns) or one case (n_columns,) with the columns of `columns` in
            their order, or anything that `rayfbnn.predict` accepts, such as a DataFrame or a file. Values are
            as in the training cases.
        max_memory
            Approximate number of bytes to use at once; by default the number given to `load`. Cases are
            processed in parts that fit.

        Returns
        -------
        Prediction
            A table with a row for each case: mean, median, sd and quantiles of its targets, noise included,
            or probabilities; and a summary of the errors, if the cases have targets.
        """
        memory_bytes = self._max_memory if max_memory is None else max_memory
        if not memory_bytes > 0:
            raise ConfigError(
                f"max_memory: must be a number of bytes above 0, such as 256e6, got {max_memory}"
            )
        inputs, targets = _cases(data, self._held, self._spec)
        return predict_from_draws([self._held], inputs, targets, memory_bytes=memory_bytes)

    def mean(self, data: Source) -> Array:
        """Return the predictive mean of each target, (n_cases, n_targets), without the rest of `predict`.

        For labels these are probabilities, (n_cases, n_labels); for targets with two labels, of the second.

        Parameters
        ----------
        data
            The cases, as for `predict`.
        """
        inputs, _ = _cases(data, self._held, self._spec)
        return predictive_mean(self._held, inputs, memory_bytes=self._max_memory)

    def quantiles(self, data: Source, probabilities: Sequence[float]) -> Array:
        """Return quantiles of the predictive distribution, (n_probabilities, n_cases, n_targets).

        Parameters
        ----------
        data
            The cases, as for `predict`.
        probabilities
            Numbers strictly between 0 and 1. Others raise ConfigError, and so do targets that are labels.
        """
        inputs, _ = _cases(data, self._held, self._spec)
        return predictive_quantiles(self._held, inputs, probabilities, memory_bytes=self._max_memory)

    def sample(self, data: Source, n_samples: int, *, seed: int) -> Array:
        """Draw targets of new cases from the predictive distribution, (n_samples, n_cases, n_targets).

        In each sample all cases share one draw of the posterior, taken at random, so samples are joint over
        cases. Labels are given as their numbers, from 0; survival times are never censored.

        Parameters
        ----------
        data
            The cases, as for `predict`.
        n_samples
            Number of samples.
        seed
            Seed of the random numbers, from 0 to 2**32 - 1; equal seeds give equal samples.
        """
        inputs, _ = _cases(data, self._held, self._spec)
        return predictive_sample(self._held, inputs, n_samples, seed=seed)

    def __repr__(self) -> str:
        names = ", ".join(at_most_ten(self.target_names))
        early = "" if self.early_phase is None else f", NOT FROM THE POSTERIOR: phase {self.early_phase}"
        return f"Predictor({names}: {self.n_draws} draws, Monte Carlo error {self.mcse:.2g} sd{early})"


def _cases(data: Source, held: Draws, spec: RunSpec) -> tuple[Array, Array | None]:
    """Return inputs, (n_cases, n_inputs), and targets if the data have them.

    Arrays of numbers that the network takes unchanged are not converted to a table, because the conversion
    takes longer than predicting a row.
    """
    if isinstance(data, np.ndarray | list):
        values = np.atleast_2d(np.asarray(data))
        if values.dtype.kind in "fiu" and _is_plain(spec) and np.isfinite(values).all():
            inputs = values.astype(np.float64)
            if inputs.ndim == 2 and inputs.shape[1] == held.data.n_inputs:
                held.data.check_range(inputs, None, dtype=spec.dtype, source="data", is_training=False)
            return inputs, None
        data = values
    return read_cases(data, spec, held.data)


def _is_plain(spec: RunSpec) -> bool:
    """Return True if the network takes every column unchanged."""
    columns = () if spec.encoding is None else spec.encoding.inputs
    return all(column.kind == "number" and not column.n_missing for column in columns)
