"""A predictor whose draws are in memory: it answers in milliseconds, and reads no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Source, read_cases
from rayfbnn.errors import ConfigError
from rayfbnn.reduce.early import early_phase
from rayfbnn.reduce.held import hold
from rayfbnn.reduce.predict import Prediction, predict
from rayfbnn.reduce.serving.monte_carlo import Thinning, thin

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store


class Predictor:
    """Draws of a run, held in memory, and what they predict.

    Attributes
    ----------
    mcse
        Largest Monte Carlo standard error of a predictive mean at some training cases, as a share of the
        predictive standard deviation; NaN if there are fewer than four draws of each chain.
    early_phase
        Number of the phase that the draws are from, counted from 1, of a run that had kept no draws; None if
        they are from the posterior.
    """

    def __init__(self, store: Store, thinning: Thinning, *, max_memory: float) -> None:
        """Read the chosen draws of an open store."""
        self.mcse = thinning.mcse
        self.early_phase = early_phase(store)
        self._held = hold(store, thinning.numbers)
        self._max_memory = max_memory

    @staticmethod
    def from_store(
        store: Store, *, draws: int | None = None, max_mcse: float = 0.05, max_memory: float = 256e6
    ) -> Predictor:
        """Return a predictor with as many draws as asked for; see `rayfbnn.load`."""
        return Predictor(store, thin(store, draws=draws, max_mcse=max_mcse), max_memory=max_memory)

    @property
    def n_draws(self) -> int:
        """Number of draws of all chains together."""
        return self._held.n_chains * self._held.committed_draws

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
            their order, or anything that `rayfbnn.predict` takes, such as a DataFrame or a file. Values are
            as in the training cases.
        max_memory
            About how many bytes may be used at once; that given to `load` if not given. Cases are taken in
            parts as large as it allows.

        Returns
        -------
        Prediction
            A table with a row for each case: mean, median, sd and quantiles of its targets, noise included,
            or probabilities; and the summary of the errors, if the table has the targets.
        """
        memory_bytes = self._max_memory if max_memory is None else max_memory
        if not memory_bytes > 0:
            raise ConfigError(
                f"max_memory: must be a number of bytes above 0, such as 256e6, got {max_memory}"
            )
        inputs, targets = _cases(data, self._held.spec)
        return predict([self._held], inputs, targets, memory_bytes=memory_bytes)

    def __repr__(self) -> str:
        names = ", ".join(self.target_names)
        early = "" if self.early_phase is None else f", NOT FROM THE POSTERIOR: phase {self.early_phase}"
        return f"Predictor({names}: {self.n_draws} draws, Monte Carlo error {self.mcse:.2g} sd{early})"


def _cases(data: Source, spec: RunSpec) -> tuple[Array, Array | None]:
    """Return inputs, (n_cases, n_inputs), and targets if they are there.

    Arrays of numbers that the network is given as they are need not become a table, which takes longer than
    to predict a row.
    """
    if isinstance(data, np.ndarray | list):
        values = np.atleast_2d(np.asarray(data))
        if values.dtype.kind in "fiu" and _is_plain(spec) and np.isfinite(values).all():
            return values.astype(np.float64), None
        data = values
    return read_cases(data, spec)


def _is_plain(spec: RunSpec) -> bool:
    """Return True if every column is given to the network as it is."""
    columns = () if spec.encoding is None else spec.encoding.inputs
    return all(column.kind == "number" and not column.n_missing for column in columns)
