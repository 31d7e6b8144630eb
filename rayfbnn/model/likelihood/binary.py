"""Binary targets: each output is the log odds that its target is 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.likelihood.data_model import DataModel, error_rate
from rayfbnn.model.likelihood.target_records import GaussianTargets, TargetRange
from rayfbnn.model.marginal.polya_gamma import polya_gamma
from rayfbnn.streams import Purpose, Streams

_LOGIT_SQUARE = 4.0  # outputs of 2 and -2 are probabilities of 0.88 and 0.12


@dataclass(frozen=True)
class BinaryTargets(DataModel):
    """Targets of 0 or 1, P(y = 1) = 1 / (1 + exp(-v)).

    labels  for each target its two labels, or () if it is a number; empty if no target is text
    """

    kind = "binary"
    has_labels = True
    n_labels = 2
    # hybrid-marginal can integrate a common sigma out, but not the sigmas of inputs (docs/decisions/0017).
    usual_relevance = math.inf

    labels: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def from_spec(cls, model: ModelSpec) -> BinaryTargets:
        return cls(model.labels)

    def target_range(self, targets: Array) -> TargetRange:
        return TargetRange((targets == 0) | (targets == 1), "0 or 1")

    def terms_and_gradient(self, outputs: Array, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Return log P(y | v), never positive, and its derivative; Neal (2022) eqs. 11, 39."""
        xp = array_namespace(outputs)
        v = outputs.astype(xp.float64)
        log_one = -xp.logaddexp(0.0, -v)  # log P(y = 1)
        return xp.where(rows > 0.5, log_one, log_one - v), rows - xp.exp(log_one)

    def draw(self, outputs: Array, noise: Array, streams: Streams) -> Array:
        xp = array_namespace(outputs)
        uniform = streams.uniform(Purpose.TARGET_VALUE, outputs.shape[1:])
        return (uniform < xp.exp(-xp.logaddexp(0.0, -outputs))).astype(xp.float64)

    def output_curvature(self, outputs: Array, rows: Array, noise: Array) -> Array:
        """Return p (1 - p)."""
        p = self.probabilities(outputs)
        return p * (1 - p)

    def why_outputs_stay(self, *, is_tempered: bool) -> str | None:
        if not is_tempered:
            return None
        # Powers of a logistic likelihood are mixtures over PG(b, v), but polya_gamma cannot draw from these.
        return 'model.kind = "binary" needs temperature 1; use over = ["precisions"] or hybrid'

    def gaussian_targets(
        self, outputs: Callable[[], Array], rows: Array, noise: Array, weights: Array, streams: Streams
    ) -> GaussianTargets:
        """Draw T = omega ~ PG(1, output), and return (y - 1/2)/omega as the targets (polya_gamma.py)."""
        omega = polya_gamma(outputs(), streams, purpose=Purpose.POLYA_GAMMA)
        return GaussianTargets(weights * omega, (rows - 0.5) / omega)

    def typical_output_square(self, rows: Array, observed: Array | None) -> Array:
        return array_namespace(rows).full(1, _LOGIT_SQUARE)

    @property
    def compiled_name(self) -> str:
        return "binary"

    def output_columns(self, target_names: Sequence[str]) -> list[str]:
        """Return a name for each log odds of 1, or of the second label."""
        ones = self._ones(target_names)
        return [f"log_odds_{name}" if label is None else f"log_odds_{name}_{label}" for name, label in ones]

    def functions(self, outputs: Array, center: Array, scale: Array) -> Array:
        """Return P(y = 1) of each target."""
        return self.probabilities(outputs)

    def function_names(self, target_names: Sequence[str]) -> list[str]:
        ones = self._ones(target_names)
        return [f"p_{name}" if label is None else f"p_{name}={label}" for name, label in ones]

    def probabilities(self, outputs: Array) -> Array:
        """Return P(y = 1) of each target, (..., n_targets) float64."""
        outputs = outputs.astype(np.float64)
        return special_functions(outputs).expit(outputs)

    def expected_errors(self, probabilities: Array) -> Array:
        """Return min(p, 1 - p)."""
        return np.minimum(probabilities, 1 - probabilities)

    def probability_columns(self, target_names: Sequence[str]) -> list[str]:
        ones = self._ones(target_names)
        return [f"{name}_p" if label is None else f"{name}_p_{label}" for name, label in ones]

    def label_columns(self, probabilities: dict[str, Array], target_names: Sequence[str]) -> dict[str, Array]:
        columns = {}
        for name, labels, p in zip(target_names, self.labels, probabilities.values(), strict=False):
            if labels:
                columns[f"{name}_label"] = np.array(labels, dtype=object)[(p > 0.5).astype(np.int64)]
        return columns

    def probability_words(self, target_names: Sequence[str]) -> list[str]:
        ones = self._ones(target_names)
        return [f"P({name} = {1 if label is None else label})" for name, label in ones]

    def _ones(self, target_names: Sequence[str]) -> list[tuple[str, str | None]]:
        """Return each target with its label for 1, or None if it is a number."""
        labels = self.labels or ((),) * len(target_names)
        return [(name, pair[1] if pair else None) for name, pair in zip(target_names, labels, strict=True)]

    def labelled_cases(self, targets: Array) -> list[tuple[Array, Array | None]]:
        return [(column == 1, column == 0) for column in targets.T]  # both are False for a missing target

    def errors(
        self, columns: dict[str, Array], targets: Array, target_names: Sequence[str]
    ) -> dict[str, Array]:
        """Return the share of targets that differ from the more probable label."""
        p = np.stack(list(columns.values()), axis=1)
        return {"error_rate": error_rate((p > 0.5) != (targets > 0.5), targets)}
