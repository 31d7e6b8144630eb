"""Class targets: one of several labels, with an output for each label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.cases import without_missing
from rayfbnn.model.likelihood.data_model import DataModel, TargetRange, error_rate
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class ClassTargets(DataModel):
    """A label from 0 to n_classes - 1, with P(y = k) proportional to exp(v_k)."""

    kind = "class"
    settings = {"classes": "classes"}
    from_labels = "classes"
    has_single_target = True
    has_labels = True
    compiled_name = "class"
    usual_bias = 2.0  # some classes are rare
    # With the sigmas of weights held fixed, a network with many inputs overfits the training cases. Chains
    # then take long to recover (docs/decisions/0016).
    starts_with_sigmas_held = False

    n_classes: int
    labels: tuple[str, ...] = ()  # empty for 0, 1, ...

    @classmethod
    def from_spec(cls, model: ModelSpec) -> ClassTargets:
        assert model.classes is not None
        return cls(model.classes, model.labels[0] if model.labels else ())

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.labels or tuple(str(label) for label in range(self.n_classes))

    @property
    def in_words(self) -> str:
        return f"class, {self.n_classes} classes"

    def target_range(self, targets: Array) -> TargetRange:
        expected = (
            f"a whole number from 0 to {self.n_classes - 1} (model.classes = {self.n_classes}; training cases"
            f" may be labelled from 1 to {self.n_classes} instead)"
        )
        is_label = (targets == np.floor(targets)) & (targets >= 0) & (targets < self.n_classes)
        return TargetRange(is_label, expected)

    def n_outputs(self, n_targets: int) -> int:
        return self.n_classes

    def output_names(self, target_names: Sequence[str]) -> tuple[str, ...]:
        return self.label_names

    def target_rows(self, targets: Array) -> Array:
        """Return a column of zeros and a one for each label, (..., n_classes, n_cases)."""
        xp = array_namespace(targets)
        rows = without_missing(targets.swapaxes(-1, -2))
        return xp.ascontiguousarray(rows == xp.arange(self.n_classes)[:, None], dtype=xp.float64)

    def terms_and_gradient(self, outputs: Array, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Return log P(y | v), never positive, and its derivative; Neal (2022) eqs. 12, 40."""
        xp = array_namespace(outputs)
        v = outputs.astype(xp.float64)
        log_probability = v - v.max(axis=1, keepdims=True)
        log_probability -= xp.log(xp.exp(log_probability).sum(axis=1, keepdims=True))
        # xp.where instead of a product, because 0 * -inf would be NaN for a class with probability zero
        terms = xp.where(rows > 0.5, log_probability, 0.0).sum(axis=1, keepdims=True)
        return terms, rows - xp.exp(log_probability)

    def output_curvature(self, outputs: Array, rows: Array, noise: Array) -> Array:
        """Return diag p - p p', (n_chains, n_classes, n_classes, n_cases)."""
        xp = array_namespace(outputs)
        p = xp.moveaxis(self.probabilities(xp.moveaxis(outputs, 1, -1)), -1, 1)
        return xp.eye(self.n_classes)[:, :, None] * p[:, :, None] - p[:, :, None] * p[:, None]

    def draw(self, outputs: Array, noise: Array, streams: Streams) -> Array:
        xp = array_namespace(outputs)
        probability = xp.exp(outputs - outputs.max(axis=1, keepdims=True))
        cumulative = probability.cumsum(axis=1)
        uniform = streams.uniform(Purpose.TARGET_VALUE, (1, outputs.shape[2]))
        return (uniform * cumulative[:, -1:] > cumulative).sum(axis=1, keepdims=True).astype(xp.float64)

    def output_columns(self, target_names: Sequence[str]) -> list[str]:
        """Return a name for the log probability of each class, up to a constant common to all classes."""
        return [f"logit_{label}" for label in self.label_names]

    def functions(self, outputs: Array, center: Array, scale: Array) -> Array:
        return self.probabilities(outputs)

    def function_names(self, target_names: Sequence[str]) -> list[str]:
        return [f"p_{label}" for label in self.label_names]

    def probabilities(self, outputs: Array) -> Array:
        """Return the probability of each class, (..., n_classes) float64."""
        outputs = outputs.astype(np.float64)
        return special_functions(outputs).softmax(outputs, axis=-1)

    def expected_errors(self, probabilities: Array) -> Array:
        return np.asarray(1 - probabilities.max(axis=1, keepdims=True))

    def probability_columns(self, target_names: Sequence[str]) -> list[str]:
        return self.function_names(target_names)

    def probability_words(self, target_names: Sequence[str]) -> list[str]:
        return [f"P({label})" for label in self.label_names]

    def label_columns(self, probabilities: dict[str, Array], target_names: Sequence[str]) -> dict[str, Array]:
        if not self.labels:
            return {}
        p = np.stack(list(probabilities.values()), axis=1)
        return {f"{target_names[0]}_label": np.array(self.labels, dtype=object)[p.argmax(axis=1)]}

    def labelled_cases(self, targets: Array) -> list[tuple[Array, Array | None]]:
        return [(targets[:, 0] == label, None) for label in range(self.n_classes)]

    def errors(
        self, columns: dict[str, Array], targets: Array, target_names: Sequence[str]
    ) -> dict[str, Array]:
        p = np.stack(list(columns.values()), axis=1)
        return {"error_rate": error_rate(p.argmax(axis=1)[:, None] != targets, targets)}
