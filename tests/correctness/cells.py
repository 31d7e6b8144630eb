"""The cells of the tests of exactness: one row for each combination of features.

A row names an architecture, the levels of its priors, a data model and the operations of an iteration. The
tables below define these names. `test_cells.py` runs the cells, and `page.py` writes them into the document.
A new feature adds an entry to one table and a few rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import (
    Heatbath,
    Hybrid,
    HybridMarginal,
    HybridMax,
    Metropolis,
    Metropolis1,
    Negate,
    RadialHeatbath,
    RandomGrid,
    Repeat,
    Rescale,
    SampleNoise,
    SampleSigmas,
    Slice1,
    TemperedTransition,
)
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.connections import Connections, ConnectionTable, Generated
from rayfbnn.model.likelihood.registry import data_model_from_spec

N_CASES = 7  # not a multiple of 3, so that blocks of cases are uneven


@dataclass(frozen=True)
class Architecture:
    """A network without its priors: its layers, its groups, and its special features."""

    groups: str
    hidden: tuple[LayerSpec, ...] = (LayerSpec(2, "tanh"),)
    n_inputs: int = 2
    adjustments: dict[str, float] = field(default_factory=dict)
    omitted: dict[str, tuple[int, ...]] = field(default_factory=dict)
    connections: dict[str, Connections] = field(default_factory=dict)
    added_input: int | None = None


@dataclass(frozen=True)
class Levels:
    """The priors of weights, of biases and offsets, and of configured connections."""

    weights: str
    biases: str

    def of(self, group: str, *, is_configured: bool) -> PriorSpec:
        if group[0] in "bt":
            return PriorSpec.parse(self.biases, key=group, two_levels=True)
        prior = PriorSpec.parse(self.weights, key=group)
        if not is_configured:
            return prior
        return PriorSpec(prior.width, (prior.alphas[0], np.inf, prior.alphas[2]))  # no units, no scaling


@dataclass(frozen=True)
class Data:
    """A data model, the number of its targets, and which of its data are missing or censored."""

    model: ModelSpec
    n_targets: int = 1
    observe: Callable[[Array], Array] = lambda data: data


def _noise(text: str) -> PriorSpec:
    return PriorSpec.parse(text, key="noise")


def _hidden(data: Array) -> Array:
    """Hide the same cells in all chains, some of the first target and some of the last."""
    data = data.copy()
    data[:, [0, 3], 0] = np.nan
    data[:, [2, 3], -1] = np.nan
    return data


CENSORED_AT = 1.2


def _censored(times: Array) -> Array:
    """Censor times at CENSORED_AT: later events are known only not to have happened until then."""
    return np.where(times > CENSORED_AT, -CENSORED_AT, times)


def _first_cases_censored(times: Array) -> Array:
    return np.concatenate([_censored(times[:, :4]), times[:, 4:]], axis=1)


ONE = "ih0 bh0 ho0 bo"
TWO = "ih0 bh0 h0h1 bh1 ho1 bo"

ARCHITECTURES: dict[str, Architecture] = {
    "linear": Architecture("ti io bo", ()),
    "one layer": Architecture(ONE),
    "offsets": Architecture("ti ih0 bh0 th0 ho0 io bo"),
    "two layers": Architecture(TWO, (LayerSpec(2, "tanh"), LayerSpec(3, "softplus"))),
    "every connection": Architecture(
        "ti ih0 bh0 th0 ih1 h0h1 bh1 th1 ho0 ho1 io bo", (LayerSpec(2, "tanh"), LayerSpec(3, "tanh"))
    ),
    "past a layer": Architecture(
        "ih0 bh0 h0h1 h0h2 h1h2 bh2 ho2 bo",
        (LayerSpec(2, "tanh"), LayerSpec(2, "tanh"), LayerSpec(3, "tanh")),
    ),
    "softplus0": Architecture(ONE, (LayerSpec(3, "softplus0"),)),
    "sigmoid": Architecture(ONE, (LayerSpec(3, "sigmoid"),)),
    "relu": Architecture(ONE, (LayerSpec(3, "relu"),)),
    "identity": Architecture(TWO, (LayerSpec(2, "identity"), LayerSpec(2, "tanh"))),
    "sin": Architecture(ONE, (LayerSpec(3, "sin"),)),
    "softmax": Architecture(ONE, (LayerSpec(3, "softmax"),)),
    "softmax i // 2": Architecture(TWO, (LayerSpec(4, "softmax", "i // 2"), LayerSpec(2, "tanh"))),
    "normalize i % 2": Architecture(TWO, (LayerSpec(2, "tanh"), LayerSpec(4, "normalize", "i % 2"))),
    "product": Architecture(
        "ih0 bh0 ih1 bh1 ho1 bo", (LayerSpec(2, "tanh"), LayerSpec(2, "identity", product=0))
    ),
    "product with one unit": Architecture(
        "ih0 ih1 bh1 ho0 ho1 bo", (LayerSpec(1, "sigmoid"), LayerSpec(3, "tanh", product=0))
    ),
    "adjustments": Architecture(ONE, (LayerSpec(3, "tanh"),), adjustments={"ah0": 4.0, "ao": 6.0}),
    "adjustments past a layer": Architecture(
        "ih0 bh0 ih1 h0h1 bh1 ho0 ho1 io bo",
        (LayerSpec(2, "tanh"), LayerSpec(3, "tanh")),
        adjustments={"ah1": 5.0},
    ),
    "inputs left out": Architecture("ti ih0 bh0 ho0 io bo", n_inputs=3, omitted={"ih0": (1,), "io": (0, 2)}),
    "input added to outputs": Architecture(
        "ih0 bh0 ho0 io bo", n_inputs=3, omitted={"ih0": (2,), "io": (2,)}, added_input=2
    ),
    "shared weights": Architecture(
        ONE,
        (LayerSpec(3, "tanh"),),
        connections={
            "ih0": ConnectionTable((0, 1, 1, 2, 2), (0, 0, 1, 1, 2), (0, 1, 0, 1, 1)),
            "bh0": ConnectionTable((0, 1, 2, 2), (0, 1, 1, 0)),
        },
    ),
    "convolution": Architecture(
        "ih0 bh0 h0h1 bh1 ho1 bo",
        (LayerSpec(8, "tanh"), LayerSpec(4, "tanh")),
        n_inputs=4,
        connections={
            "ih0": Generated("convolution", (1, 4), filters=2, window=(1, 3), padding=(0, 1)),
            "bh0": Generated("channels", (1, 4), channels=2),
            "h0h1": Generated("pooling", (1, 4), channels=2, window=(1, 2), stride=(1, 2)),
        },
    ),
}

# Shapes of at least 3 give every precision a mean and most parameters a variance.
LEVELS: dict[str, Levels] = {
    "fixed": Levels("1", "0.7"),
    "group": Levels("1:4", "0.7:4"),
    "unit": Levels("1::5", "0.7:4"),
    "parameter": Levels("1:::5", "0.7::5"),
    "group, unit": Levels("1:4:5", "0.7:4"),
    "group, parameter": Levels("1:4::5", "0.7:4:6"),
    "unit, parameter": Levels("1::5:6", "0.7::6"),
    "every level": Levels("1:4:5:6", "0.7:4:6"),
    "scaled": Levels("x1.5:4", "0.7:4"),
    "scaled, every level": Levels("x1:4:5:6", "0.7:4:6"),
    "vague": Levels("0.5:1", "0.5:1"),
}

DATA: dict[str, Data] = {
    "real": Data(ModelSpec("real", _noise("0.5:3"))),
    "real, each target": Data(ModelSpec("real", _noise("0.5:4:5")), 2),
    "real, noise fixed": Data(ModelSpec("real", _noise("0.5")), 2),
    "t": Data(ModelSpec("real", _noise("0.5:4::6"))),
    "t, each target": Data(ModelSpec("real", _noise("0.5:4:5:6")), 2),
    "binary": Data(ModelSpec("binary"), 2),
    "class": Data(ModelSpec("class", classes=3)),
    "count": Data(ModelSpec("count"), 2),
    "count, dispersion": Data(ModelSpec("count", dispersion=_noise("0.7:4")), 2),
    "count, dispersion of each": Data(ModelSpec("count", dispersion=_noise("0.7:4:5")), 2),
    "survival": Data(ModelSpec("survival")),
    "survival, pieces": Data(ModelSpec("survival", times=(0.3, 1.0, 2.0))),
    "survival, log time": Data(ModelSpec("survival", times=(0.3, 1.0, 2.0), log_time=True)),
    "heteroscedastic": Data(ModelSpec("heteroscedastic")),
    "heteroscedastic, floor": Data(ModelSpec("heteroscedastic", noise_floor=0.3), 2),
    "real, missing": Data(ModelSpec("real", _noise("0.5:4:5")), 2, _hidden),
    "t, missing": Data(ModelSpec("real", _noise("0.5:4:5:6")), 2, _hidden),
    "binary, missing": Data(ModelSpec("binary"), 2, _hidden),
    "class, missing": Data(ModelSpec("class", classes=3), 1, _hidden),
    "count, missing": Data(ModelSpec("count"), 2, _hidden),
    "count, dispersion, missing": Data(ModelSpec("count", dispersion=_noise("0.7:4")), 2, _hidden),
    "heteroscedastic, missing": Data(ModelSpec("heteroscedastic"), 2, _hidden),
    "survival, censored": Data(ModelSpec("survival"), 1, _first_cases_censored),
    "survival, pieces, censored": Data(ModelSpec("survival", times=(0.3, 1.0)), 1, _first_cases_censored),
}

# With these steps a third to two thirds are accepted and momentum lasts, so that wrong decisions show.
OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "hybrid": (SampleSigmas(), Heatbath(), Hybrid(steps=4, stepsize=1.2)),
    "langevin": (SampleSigmas(), Repeat(3, (Heatbath(decay=0.5), Hybrid(steps=1, stepsize=1.2), Negate()))),
    "windows": (SampleSigmas(), Heatbath(), Hybrid(steps=5, stepsize=1.4, window=3)),
    "partitions": (SampleSigmas(), Heatbath(), Hybrid(steps=4, stepsize=1.2, partitions=3)),
    "cyclic": (
        SampleSigmas(),
        Heatbath(decay=0.95),
        Hybrid(steps=4, stepsize=1.4, window=2, partitions=4, order="cyclic"),
        Negate(),
    ),
    "in parts": (
        SampleSigmas(),
        Heatbath(decay=0.95),
        Hybrid(steps=4, stepsize=1.4, window=2, partitions=3, order="cyclic"),
        Negate(),
    ),
    "in parts, full gradients": (
        RandomGrid(stepsize=1.5),
        SampleNoise(),
        Rescale(along="incoming"),
        Heatbath(decay=0.5),
        HybridMarginal(("precisions",), steps=3, stepsize=1.2),
        Negate(),
    ),
    "persistent": (SampleSigmas(), Heatbath(decay=0.95), Hybrid(steps=2, stepsize=1.3), Negate()),
    "everything": (
        SampleSigmas(),
        Heatbath(decay=0.95),
        Hybrid(steps=4, stepsize=1.4, window=2, partitions=3),
        Negate(),
    ),
    "jump": (
        SampleSigmas(),
        Heatbath(decay=0.5),
        Hybrid(steps=6, stepsize=1.2, window=2, jump=2, partitions=2),
        Negate(),
    ),
    "jitter": (SampleSigmas(), Heatbath(), Hybrid(steps=4, stepsize=1.0, stepsize_jitter=8.0)),
    "fourth-order": (SampleSigmas(), Heatbath(), Hybrid(steps=2, stepsize=2.2, integrator="fourth-order")),
    "marginal, outputs": (
        SampleSigmas(),
        Heatbath(decay=0.9),
        HybridMarginal(("outputs",), steps=4, stepsize=2.0, window=2),
        Negate(),
    ),
    "marginal, both": (
        SampleSigmas(),
        Heatbath(decay=0.9),
        HybridMarginal(("outputs", "precisions"), steps=4, stepsize=2.0, stepsize_jitter=-0.3),
        Negate(),
    ),
    "marginal, precisions": (
        SampleNoise(),
        Heatbath(decay=0.9),
        HybridMarginal(("precisions",), steps=4, stepsize=1.2, window=2, jump=2),
        Negate(),
    ),
    "hybrid-max": (SampleSigmas(), Heatbath(), HybridMax(max_steps=6, max_ok=2, stepsize=1.3)),
    "metropolis": (SampleSigmas(), Repeat(3, (Metropolis(stepsize=0.6, stepsize_jitter=-0.5),))),
    "metropolis-1": (SampleSigmas(), Metropolis1(stepsize=2.0)),
    "metropolis-1, random": (SampleSigmas(), Repeat(6, (Metropolis1(stepsize=2.0, random=True),))),
    "slice-1": (SampleSigmas(), Slice1(stepsize=1.0, max_steps=4)),
    "random-grid": (
        RandomGrid(stepsize=1.5),
        SampleNoise(),
        Heatbath(decay=0.5),
        Hybrid(steps=3, stepsize=1.2),
        Negate(),
    ),
    "radial-heatbath": (
        SampleSigmas(),
        RadialHeatbath(),
        Hybrid(steps=3, stepsize=1.3, partitions=3),
        Negate(),
    ),
    "tempered-transition": (
        SampleSigmas(),
        TemperedTransition((1.0, 0.7, 0.4), (SampleSigmas(), Heatbath(), Hybrid(steps=3, stepsize=1.0))),
    ),
}


@dataclass(frozen=True)
class Cell:
    """One combination of the names above.

    stepsize    factor on the operations' stepsizes, if these would accept too little or too much
    n_chains    number of chains in the long test; smaller if updates are slow
    every_time  whether the quick tests run it
    """

    architecture: str
    levels: str
    data: str
    operations: str
    stepsize: float = 1.0
    n_chains: int = 20_000
    every_time: bool = False

    def __str__(self) -> str:
        return " | ".join([self.architecture, self.levels, self.data, self.operations])

    def iteration(self) -> tuple[Operation, ...]:
        return tuple(_scaled(operation, self.stepsize) for operation in OPERATIONS[self.operations])

    @property
    def n_parts(self) -> int:
        """Number of parts into which the cases are divided."""
        return 3 if self.operations.startswith("in parts") else 1

    def network(self) -> NetworkSpec:
        shape, data = ARCHITECTURES[self.architecture], DATA[self.data]
        model, groups = data_model_from_spec(data.model), shape.groups.split()
        return NetworkSpec(
            len(model.added_inputs) + shape.n_inputs,
            model.n_outputs(data.n_targets),
            shape.hidden,
            {name: LEVELS[self.levels].of(name, is_configured=name in shape.connections) for name in groups},
            adjustments=shape.adjustments,
            omitted=shape.omitted,
            connections=shape.connections,
            added_input=shape.added_input,
        )


def _scaled(operation: Operation, factor: float) -> Operation:
    if isinstance(operation, Repeat | TemperedTransition):
        return replace(operation, operations=tuple(_scaled(inner, factor) for inner in operation.operations))
    if isinstance(operation, RandomGrid) or not hasattr(operation, "stepsize"):
        return operation
    return replace(operation, stepsize=factor * operation.stepsize)


CELLS: tuple[Cell, ...] = (
    Cell("linear", "group", "real", "hybrid", 0.7),
    Cell("linear", "every level", "t, each target", "everything"),
    Cell("linear", "parameter", "count", "slice-1", n_chains=4_000),
    Cell("linear", "fixed", "survival, pieces, censored", "metropolis"),
    Cell("one layer", "group", "real", "everything", every_time=True),
    Cell("one layer", "fixed", "real", "langevin"),
    Cell("one layer", "unit", "real, each target", "windows", 0.8),
    Cell("one layer", "parameter", "real, noise fixed", "fourth-order", 2.0),
    Cell("one layer", "group, parameter", "t", "jump", 1.4),
    Cell("one layer", "unit, parameter", "t, each target", "hybrid-max"),
    Cell("one layer", "scaled", "binary", "partitions", 1.4),
    Cell("one layer", "vague", "class", "metropolis-1"),
    Cell("one layer", "every level", "class", "random-grid"),
    Cell("one layer", "scaled, every level", "t, each target", "random-grid"),
    Cell("one layer", "group", "count", "everything", every_time=True),
    Cell("one layer", "group", "count, dispersion", "everything", every_time=True),
    Cell("one layer", "group", "count, dispersion of each", "random-grid"),
    Cell("one layer", "group, unit", "survival", "hybrid"),
    Cell("one layer", "group", "survival, pieces", "partitions"),
    Cell("one layer", "unit", "survival, log time", "everything", every_time=True),
    Cell("one layer", "group", "survival, pieces, censored", "windows", every_time=True),
    Cell("one layer", "group", "heteroscedastic", "hybrid", 0.45),
    Cell("one layer", "group, parameter", "heteroscedastic, floor", "everything", 0.45, every_time=True),
    Cell("one layer", "group", "real, missing", "partitions", every_time=True),
    Cell("one layer", "every level", "t, missing", "everything", every_time=True),
    Cell("one layer", "group", "real", "cyclic"),
    Cell("one layer", "unit", "t, missing", "cyclic"),
    Cell("one layer", "scaled", "class", "cyclic", 1.4),
    Cell("one layer", "group", "count", "cyclic"),
    Cell("one layer", "group", "survival, pieces, censored", "cyclic"),
    Cell("one layer", "group", "real, each target", "in parts"),
    Cell("one layer", "group, parameter", "t, missing", "in parts"),
    Cell("one layer", "scaled", "class", "in parts", 1.4),
    Cell("one layer", "group", "binary, missing", "in parts"),
    Cell("one layer", "group", "count, missing", "in parts"),
    Cell("one layer", "group", "count, dispersion, missing", "in parts"),
    Cell("one layer", "group", "count, dispersion of each", "in parts, full gradients"),
    Cell("one layer", "group", "survival, pieces, censored", "in parts"),
    Cell("one layer", "group", "heteroscedastic, missing", "in parts", 0.45),
    Cell("one layer", "group", "t, missing", "in parts, full gradients"),
    Cell("one layer", "scaled", "real, missing", "in parts, full gradients"),
    Cell("one layer", "group", "class, missing", "slice-1", n_chains=4_000),
    Cell("one layer", "fixed", "binary", "radial-heatbath"),
    Cell("one layer", "every level", "t, each target", "tempered-transition"),
    Cell("one layer", "group", "survival, pieces, censored", "tempered-transition"),
    Cell("one layer", "group", "count, dispersion of each", "tempered-transition"),
    Cell("offsets", "group", "real, each target", "jitter", 0.5),
    Cell("offsets", "every level", "t, each target", "everything"),
    Cell("offsets", "group, parameter", "binary, missing", "persistent"),
    Cell("offsets", "unit", "count, missing", "metropolis-1, random"),
    Cell("two layers", "scaled", "class", "everything"),
    Cell("two layers", "group, unit", "count", "jump"),
    Cell("two layers", "fixed", "survival", "fourth-order", 1.4),
    Cell("every connection", "every level", "real, each target", "everything", 0.5),
    Cell("every connection", "scaled, every level", "binary", "hybrid-max", 0.8),
    Cell("every connection", "group", "survival, pieces", "persistent", 0.45),
    Cell("past a layer", "group", "real", "everything", every_time=True),
    Cell("past a layer", "every level", "class", "windows", 0.7),
    Cell("past a layer", "parameter", "heteroscedastic", "radial-heatbath", 0.3),
    Cell("softplus0", "group", "real", "hybrid"),
    Cell("sigmoid", "unit", "binary", "langevin"),
    Cell("relu", "group", "t", "everything"),
    Cell("relu", "fixed", "count", "metropolis-1"),
    Cell("identity", "group, unit", "real", "jump", 1.3),
    Cell("sin", "group", "real", "partitions"),
    Cell("sin", "parameter", "binary", "slice-1", n_chains=4_000),
    Cell("softmax", "group", "real", "windows", 0.8),
    Cell("softmax", "every level", "count", "everything"),
    Cell("softmax i // 2", "group, unit", "class", "everything", every_time=True),
    Cell("softmax i // 2", "group", "heteroscedastic, missing", "hybrid", 0.5),
    Cell("normalize i % 2", "group", "t, each target", "everything", 0.4),
    Cell("normalize i % 2", "parameter", "survival, censored", "random-grid", 0.25),
    Cell("one layer", "group", "t, missing", "random-grid"),
    Cell("product", "group", "real", "everything"),
    Cell("product", "unit, parameter", "class", "hybrid-max"),
    Cell("product with one unit", "group", "binary", "fourth-order", 2.5),
    Cell("product with one unit", "every level", "survival, log time", "persistent"),
    Cell("adjustments", "group", "real, each target", "everything"),
    Cell("adjustments", "every level", "count, missing", "hybrid", 0.7, every_time=True),
    Cell("adjustments", "group", "count", "tempered-transition"),
    Cell("adjustments", "parameter", "class", "random-grid"),
    Cell("adjustments past a layer", "group, unit", "t, missing", "windows", 0.8),
    Cell("adjustments past a layer", "scaled", "binary", "metropolis"),
    Cell("inputs left out", "group, unit", "real, missing", "everything", 0.8),
    Cell("inputs left out", "every level", "survival, pieces", "jitter", 0.6),
    Cell("input added to outputs", "group", "count, missing", "everything", 0.35),
    Cell("linear", "group", "t", "marginal, outputs", 3.0),
    Cell("one layer", "group", "real", "marginal, both", every_time=True),
    Cell("one layer", "every level", "t, each target", "marginal, both", 1.6),
    Cell("one layer", "fixed", "real, noise fixed", "marginal, outputs", 1.6),
    Cell("offsets", "parameter", "real, noise fixed", "marginal, outputs", 2.2),
    Cell("one layer", "vague", "class", "marginal, precisions"),
    Cell("offsets", "group, parameter", "t, missing", "marginal, outputs", 2.2),
    Cell("every connection", "group", "real, each target", "marginal, both", 1.6),
    Cell("every connection", "parameter", "real, missing", "marginal, outputs", 1.6),
    Cell("past a layer", "group, unit", "real", "marginal, outputs", 1.6),
    Cell("product", "group", "real", "marginal, both"),
    Cell("softmax i // 2", "group", "real, missing", "marginal, outputs"),
    Cell("adjustments", "group", "real, missing", "marginal, both", 1.5),
    Cell("adjustments past a layer", "group", "real", "marginal, both", 1.5),
    Cell("adjustments", "group", "t", "marginal, precisions", 1.5),
    Cell("inputs left out", "group", "real, each target", "marginal, both", 1.5),
    Cell("shared weights", "group", "real", "everything"),
    Cell("shared weights", "every level", "class", "radial-heatbath"),
    Cell("shared weights", "parameter", "heteroscedastic, floor", "slice-1", n_chains=4_000),
    Cell("convolution", "group", "binary, missing", "everything"),
    Cell("convolution", "group, parameter", "count", "hybrid", 0.7, every_time=True),
    Cell("convolution", "fixed", "t", "langevin"),
)
