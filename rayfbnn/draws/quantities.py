"""The scalar quantities for judging a run, which are invariant under symmetries of the network."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import output_blocks, sigmas_of_columns
from rayfbnn.draws.subsets import evenly_spaced
from rayfbnn.draws.view import Draws

_DENSITIES = ("log_likelihood", "log_prior")
_MEMORY_BYTES = 64e6


def quantities(run: Draws, *, cases: int = 10, inputs: Array | None = None) -> dict[str, Array]:
    """Return each quantity by name, (n_chains, n_draws) float64: sigmas, densities and functions.

    Weights, and sigmas and adjustments of single hidden units, are not included: units can be exchanged
    without changing the function, so chains need not agree on them. Functions are the networks' outputs on
    the data file's scale ("y1[17]": target y1 at case 17, counted from 0), or probabilities ("p_y1[17]").

    Parameters
    ----------
    cases : int                     functions at this many evenly spaced rows of `inputs`
    inputs : (n_cases, n_inputs)    as in the data file; the training cases unless given
    """
    by_name = sigmas(run) | adjustments(run)
    for name in _DENSITIES:
        by_name[name] = run.stat(name)
    return by_name | functions(run, cases=cases, inputs=inputs)


def sigmas(run: Draws) -> dict[str, Array]:
    """Return the free sigmas that can be interpreted, named as in the store, (n_chains, n_draws) each."""
    layout, data = run.precision_layout, run.data
    columns = {}
    for group, column in layout.common.items():
        is_split = group == "noise" and group in layout.units
        columns["sigma_noise_common" if is_split else f"sigma_{group}"] = column
    omitted = {group.name: group.omitted for group in layout.groups}
    for group, units in layout.units.items():
        inputs = enumerate(run.spec.network_inputs)
        kept = [name for number, name in inputs if number not in omitted[group]]
        names = data.target_names if group == "noise" else kept
        if group == "noise" or group == "io" or group.startswith("ih"):
            base = "sigma_noise" if group == "noise" else f"sigma_{group}_unit"
            columns |= {f"{base}[{name}]": units.start + n for n, name in enumerate(names)}
    columns = {name: column for name, column in columns.items() if layout.is_free[column]}
    values = sigmas_of_columns(run, np.array(list(columns.values()), dtype=int))
    return dict(zip(columns, values, strict=True))


def adjustments(run: Draws) -> dict[str, Array]:
    """Return the adjustment of each output, adjustment_ao[y1], and a geometric mean for each hidden layer.

    They are factors of sigmas, tau**-1/2, (n_chains, n_draws) each. The mean is over the layer's units.
    """
    by_name: dict[str, Array] = {}
    for group in run.precision_layout.adjustments:
        values = sigmas_of_columns(run, np.arange(group.columns.start, group.columns.stop))
        if group.name == "ao":
            names = run.spec.data_model.output_names(run.data.target_names)
            by_name |= {f"adjustment_ao[{name}]": row for name, row in zip(names, values, strict=True)}
        else:
            by_name[f"adjustment_{group.name}"] = np.exp(np.log(values).mean(axis=0))
    return by_name


def functions(run: Draws, *, cases: int, inputs: Array | None = None) -> dict[str, Array]:
    """Return outputs (for binary and class targets probabilities) at evenly spaced cases, by name.

    Each has shape (n_chains, n_draws). Outputs of real and heteroscedastic targets are on the scale of the
    data file.
    """
    data = run.data
    inputs = data.inputs if inputs is None else np.asarray(inputs, dtype=np.float64)
    chosen = evenly_spaced(len(inputs), cases)
    values = functions_at(run, inputs[chosen])
    return {
        f"{label}[{case}]": values[:, :, row, number]
        for number, label in enumerate(run.spec.data_model.function_names(data.target_names))
        for row, case in enumerate(chosen)
    }


def functions_at(run: Draws, inputs: Array) -> Array:
    """Return the functions for judging a run, (n_chains, n_draws, n_cases, n_functions).

    inputs  (n_cases, n_inputs) as in the data file
    """
    data, model = run.data, run.spec.data_model
    standardized = (inputs - data.input_center) / data.input_scale
    n_functions = len(model.function_names(data.target_names))
    values = np.empty((run.n_chains, run.n_draws, len(inputs), n_functions))
    for chains, draws, outputs, _ in output_blocks(run, standardized, memory_bytes=_MEMORY_BYTES):
        values[chains, draws] = model.functions(outputs, data.target_center, data.target_scale)
    return values


def noise_sigmas(run: Draws) -> Array:
    """Read the noise standard deviation of each standardised target, (n_targets, n_chains, n_draws).

    The array has no rows if the targets have no noise parameters.
    """
    columns = run.precision_layout.noise_columns
    if len(columns) == 0:
        return np.empty((0, run.n_chains, run.n_draws))
    return sigmas_of_columns(run, columns)


def is_of_predictions(name: str) -> bool:
    """Return True if predictions depend on a quantity: functions, the log likelihood and the noise."""
    return not name.startswith(("sigma_", "adjustment_", "log_prior")) or name.startswith("sigma_noise")
