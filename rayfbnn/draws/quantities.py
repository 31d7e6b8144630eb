"""The scalar quantities for judging a run, which are invariant under symmetries of the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any, TypeAlias

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import output_blocks
from rayfbnn.draws.subsets import evenly_spaced
from rayfbnn.draws.view import Draws
from rayfbnn.model.architecture import DISPERSION, NOISE

DENSITIES = ("log_likelihood", "log_prior")
_OF_TARGETS = (NOISE, DISPERSION)  # groups of sigmas that govern targets
_MEMORY_BYTES = 64e6
_GROUP_BYTES = 128e6  # of the quantities that are read together
_LEAST_TOGETHER = 3  # the statistics of one take five arrays of its size anyway, and reading is slow


# The origin of a quantity: columns of the precisions for a sigma, or for the geometric mean of several;
# a statistic of the store; or a row of the inputs and the number of a function of the networks there.
_Origin: TypeAlias = slice | str | tuple[int, int]


@dataclass(frozen=True)
class Quantities:
    """The quantities that runs with the same networks are judged by, in the order of tables.

    origins  the origin of each quantity, by its name
    inputs   (n_cases, n_inputs) as in the data file: the cases where functions are computed
    """

    origins: dict[str, _Origin]
    inputs: Array

    @classmethod
    def of_run(cls, run: Draws, *, cases: int = 10, inputs: Array | None = None) -> Quantities:
        """Return the quantities of a run; see `quantities`."""
        inputs = run.data.inputs if inputs is None else np.asarray(inputs, dtype=np.float64)
        chosen = evenly_spaced(len(inputs), cases)
        origins: dict[str, _Origin] = {**_sigmas(run), **_adjustments(run)}
        origins |= {name: name for name in DENSITIES}
        for number, label in enumerate(run.spec.data_model.function_names(run.data.modelled_names)):
            origins |= {f"{label}[{case}]": (row, number) for row, case in enumerate(chosen)}
        return cls(origins, inputs[chosen])

    def each(
        self, runs: Sequence[Draws], *, memory_bytes: float = _GROUP_BYTES
    ) -> Iterator[tuple[str, Array]]:
        """Yield each quantity by name, with the values of all draws of all runs, (n_values,) float64.

        The draws of a run follow those of the run before it, chain after chain. As many quantities as fit
        into the memory are read together, and at least three. Their values are overwritten when the next ones
        are read. The order is not that of tables: quantities from the same stored arrays follow each other.
        """
        ordered = sorted(self.origins, key=lambda name: _place(self.origins[name]))
        total = sum(run.total for run in runs)
        at_once = max(_LEAST_TOGETHER, int(memory_bytes / (8 * total)))
        values = np.empty((min(at_once, len(ordered)), total))
        for _, alike in groupby(ordered, key=lambda name: type(self.origins[name])):
            names = list(alike)
            for first in range(0, len(names), at_once):
                some = names[first : first + at_once]
                self._read([self.origins[name] for name in some], runs, values)
                yield from zip(some, values, strict=False)

    def _read(self, alike: list[Any], runs: Sequence[Draws], values: Array) -> None:
        """Read quantities of one kind into the first rows of `values`, (n_quantities, n_values)."""
        first = 0
        for run in runs:
            of_run = values[: len(alike), first : first + run.total]
            of_run = of_run.reshape(len(alike), run.n_chains, run.n_draws)
            if isinstance(alike[0], tuple):
                _read_functions(run, alike, self.inputs, of_run)
            elif isinstance(alike[0], str):
                for (chains, draws), (number, name) in product(run.chunks(), enumerate(alike)):
                    of_run[number, chains, draws] = run.stat(name, chains, draws)
            else:
                _read_sigmas(run, alike, of_run)
            first += run.total


def quantities(run: Draws, *, cases: int = 10, inputs: Array | None = None) -> dict[str, Array]:
    """Return each quantity by name, (n_chains, n_draws) float64: sigmas, densities and functions.

    Weights, and sigmas and adjustments of single hidden units, are not included: units can be exchanged
    without changing the function, so chains need not agree on them. Functions are the networks' outputs on
    the data file's scale ("y1[17]": target y1 at case 17, counted from 0), or probabilities ("p_y1[17]").

    This holds all of them; `Quantities.each` reads a few at a time.

    Parameters
    ----------
    cases : int                     functions at this many evenly spaced rows of `inputs`
    inputs : (n_cases, n_inputs)    as in the data file; the training cases unless given
    """
    every = Quantities.of_run(run, cases=cases, inputs=inputs)
    shape = run.n_chains, run.n_draws
    by_name = {name: values.reshape(shape).copy() for name, values in every.each([run])}
    return {name: by_name[name] for name in every.origins}


def sigmas(run: Draws) -> dict[str, Array]:
    """Return the free sigmas that can be interpreted, named as in the store, (n_chains, n_draws) each."""
    return _all_of(run, _sigmas(run))


def adjustments(run: Draws) -> dict[str, Array]:
    """Return the adjustment of each output, adjustment_ao[y1], and a geometric mean for each hidden layer.

    They are factors of sigmas, tau**-1/2, (n_chains, n_draws) each. The mean is over the layer's units.
    """
    return _all_of(run, _adjustments(run))


def noise_sigmas(run: Draws) -> Array:
    """Read the noise standard deviation of each standardised target, (n_targets, n_chains, n_draws).

    For counts with dispersion it is the standard deviation of the relative rate. The array has no rows if the
    targets have neither.
    """
    columns = run.precision_layout.noise_columns
    values = np.empty((len(columns), run.n_chains, run.n_draws))
    _read_sigmas(run, [_of_column(column) for column in columns], values)
    return values


def _sigmas(run: Draws) -> dict[str, slice]:
    layout, data = run.precision_layout, run.data
    columns = {}
    for group, column in layout.common.items():
        is_split = group in _OF_TARGETS and group in layout.units
        columns[f"sigma_{group}_common" if is_split else f"sigma_{group}"] = column
    omitted = {group.name: group.omitted for group in layout.groups}
    for group, units in layout.units.items():
        inputs = enumerate(run.spec.network_inputs)
        kept = [name for number, name in inputs if number not in omitted[group]]
        names = data.target_names if group in _OF_TARGETS else kept
        if group in _OF_TARGETS or group == "io" or group.startswith("ih"):
            base = f"sigma_{group}" if group in _OF_TARGETS else f"sigma_{group}_unit"
            columns |= {f"{base}[{name}]": units.start + n for n, name in enumerate(names)}
    return {name: _of_column(column) for name, column in columns.items() if layout.is_free[column]}


def _adjustments(run: Draws) -> dict[str, slice]:
    by_name: dict[str, slice] = {}
    for group in run.precision_layout.adjustments:
        if group.name == "ao":
            names = run.spec.data_model.output_names(run.data.target_names)
            columns = range(group.columns.start, group.columns.stop)
            pairs = zip(names, columns, strict=True)
            by_name |= {f"adjustment_ao[{name}]": _of_column(column) for name, column in pairs}
        else:
            by_name[f"adjustment_{group.name}"] = group.columns
    return by_name


def _of_column(column: int) -> slice:
    return slice(column, column + 1)


def _place(origin: _Origin) -> tuple[int, int]:
    """Return the place of a quantity among those that are read one after another."""
    if isinstance(origin, tuple):
        return 2, origin[0]  # all functions at a row come from the same networks
    return (1, 0) if isinstance(origin, str) else (0, 0)


def _all_of(run: Draws, by_name: dict[str, slice]) -> dict[str, Array]:
    values = np.empty((len(by_name), run.n_chains, run.n_draws))
    _read_sigmas(run, list(by_name.values()), values)
    return dict(zip(by_name, values, strict=True))


def _read_sigmas(run: Draws, wanted: list[slice], values: Array) -> None:
    for chains, draws in run.chunks() if wanted else ():
        precisions = run.precisions(chains, draws)
        for number, columns in enumerate(wanted):
            # Columns first: their logs are then added one after another.
            of_columns = np.moveaxis(precisions[:, :, columns], 2, 0) ** -0.5
            is_mean = len(of_columns) > 1
            values[number, chains, draws] = (
                np.exp(np.log(of_columns).mean(axis=0)) if is_mean else of_columns[0]
            )


def _read_functions(run: Draws, wanted: list[tuple[int, int]], inputs: Array, values: Array) -> None:
    rows = sorted({row for row, _ in wanted})
    for chains, draws, functions in _function_blocks(run, inputs[rows]):
        for place, (row, number) in enumerate(wanted):
            values[place, chains, draws] = functions[:, :, rows.index(row), number]


def functions_at(run: Draws, inputs: Array) -> Array:
    """Return the functions for judging a run, (n_chains, n_draws, n_cases, n_functions).

    inputs  (n_cases, n_inputs) as in the data file
    """
    n_functions = len(run.spec.data_model.function_names(run.data.modelled_names))
    values = np.empty((run.n_chains, run.n_draws, len(inputs), n_functions))
    for chains, draws, functions in _function_blocks(run, inputs):
        values[chains, draws] = functions
    return values


def _function_blocks(run: Draws, inputs: Array) -> Iterator[tuple[slice, slice, Array]]:
    """Yield the functions of some draws at a time, (n_chains, n_draws, n_cases, n_functions).

    Outputs of real and heteroscedastic targets are on the scale of the data file, or its logarithm for
    targets on a log scale.
    """
    data, model = run.data, run.spec.data_model
    standardized = (inputs - data.input_center) / data.input_scale
    for chains, draws, outputs in output_blocks(run, standardized, memory_bytes=_MEMORY_BYTES):
        yield chains, draws, model.functions(outputs, data.target_center, data.target_scale)


def is_of_predictions(name: str) -> bool:
    """Return True if predictions depend on a quantity: functions, log likelihood, noise and dispersion."""
    is_of_targets = name.startswith(tuple(f"sigma_{group}" for group in _OF_TARGETS))
    return is_of_targets or not name.startswith(("sigma_", "adjustment_", "log_prior"))


def weight_sizes(run: Draws) -> dict[str, Array]:
    """Return the root mean square of each group's parameters by name, (n_chains, n_draws) float64 each.

    The group ih0 is called rms_ih0. Draws are read one chunk at a time.
    """
    slices = run.parameter_layout.slices
    sizes = {f"rms_{group}": np.empty((run.n_chains, run.n_draws)) for group in slices}
    for chains, draws in run.chunks():
        positions = run.positions(chains, draws)
        for values, group in zip(sizes.values(), slices.values(), strict=True):
            values[chains, draws] = np.sqrt(np.square(positions[..., group]).mean(axis=2, dtype=np.float64))
    return sizes
