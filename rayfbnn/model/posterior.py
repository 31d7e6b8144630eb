"""The density of a network's parameters given precisions and training cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import ModuleType
from typing import Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model import prior, stepsize
from rayfbnn.model.architecture import ModelSpec, NetworkSpec
from rayfbnn.model.cases import Blocks, apply_weights, pieces_of, rows_and_mean_squares
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.network import AT_ONCE, Buffers, backward, forward, input_rows, outputs_alone
from rayfbnn.model.wiring import Wiring

Keep: TypeAlias = Callable[[int, Array | None], Array]
"""A choice of columns, given their number, and where each case begins if some cases have several columns."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior density: a `state.Target`. Its arrays stay on the device they were made for.

    inputs  (n_inputs + 1, n_cases) in dtype, the last row ones
    targets (n_outputs, n_cases) float64, or with a leading chain axis. If cases have several cells, inputs
            and targets have a column for each cell
    covariates (n_cases, n_inputs) float64: the given inputs, without inputs that the data model adds. None if
               each case is one column, because `inputs` then contains them
    starts  (n_cases + 1,) where the cells of each case begin; None if each case is one column
    typical_curvature  from the data model, (n_chains or 1, n_outputs), or None
    observed (n_targets, n_cases) float64, 1, or 0 for missing targets, or with a leading chain axis; None if
             no target is missing
    inverse_temperature  power of the likelihood; (n_chains,) if it differs between chains
    """

    network: NetworkSpec
    model: ModelSpec
    data_model: DataModel
    parameter_layout: ParameterLayout
    precision_layout: PrecisionLayout
    wiring: Wiring
    n_cases: int
    n_targets: int
    dtype: Literal["float32", "float64"]
    inputs: Array
    targets: Array
    observed: Array | None
    covariates: Array | None
    starts: Array | None
    typical_curvature: Array | None
    input_mean_squares: Array
    inverse_temperature: float | Array = 1.0
    blocks: dict[int, Blocks] = field(default_factory=dict)
    buffers: Buffers = field(default_factory=Buffers)

    @classmethod
    def from_spec(
        cls,
        network: NetworkSpec,
        model: ModelSpec,
        inputs: Array,
        targets: Array,
        *,
        dtype: Literal["float32", "float64"] = "float64",
        xp: ModuleType = np,
    ) -> Self:
        """Return the posterior given training cases.

        inputs   (n_cases, n_inputs) inputs of the data; this method adds the inputs of the data model
        targets  (n_cases, n_targets), NaN if missing
        """
        pieces = pieces_of(array_namespace(inputs).asarray(inputs, dtype=np.float64))
        return cls.from_pieces(network, model, pieces, targets, dtype=dtype, xp=xp)

    @classmethod
    def from_pieces(
        cls,
        network: NetworkSpec,
        model: ModelSpec,
        pieces: Iterable[Array],
        targets: Array,
        *,
        dtype: Literal["float32", "float64"] = "float64",
        xp: ModuleType = np,
        keep: Keep | None = None,
    ) -> Self:
        """Return the posterior given training cases with inputs in pieces. No piece is kept.

        pieces   (n, n_inputs) float64 each, the cases in order
        targets  (n_cases, n_targets), NaN if missing
        keep     returns the columns to keep in ascending order, given the number of columns and where each
                 case begins (`starts`). The posterior then has the inputs of these columns and the targets of
                 all cases, for use by model/batches.py. Its own density has no meaning
        """
        targets = xp.asarray(targets)
        n_cases = n_columns = targets.shape[0]
        likelihood = data_model_from_spec(model)
        rows, covariates, starts = likelihood.target_rows(targets), None, None
        if likelihood.n_cells > 1:
            covariates = xp.concatenate([xp.asarray(piece) for piece in pieces])
            cells, starts = likelihood.reached_cells(rows)
            rows, n_columns = xp.ascontiguousarray(rows[:, cells]), len(cells)
            pieces = pieces_of(likelihood.cell_inputs(covariates)[cells])
        kept = None if keep is None else keep(n_columns, starts)
        inputs, mean_squares = rows_and_mean_squares(pieces, n_columns, dtype, xp, kept=kept)
        layout = PrecisionLayout.from_specs(network, model, targets.shape[-1])
        return cls(
            network=network,
            model=model,
            data_model=likelihood,
            parameter_layout=ParameterLayout.from_network(network),
            # Copy to the device once instead of at every gradient.
            precision_layout=replace(
                layout,
                parameter_columns=xp.asarray(layout.parameter_columns),
                noise_columns=xp.asarray(layout.noise_columns),
            ),
            wiring=Wiring.from_network(network, xp),
            n_cases=n_cases,
            n_targets=targets.shape[-1],
            dtype=dtype,
            inputs=inputs,
            targets=rows,
            observed=likelihood.observed(targets),
            covariates=covariates if keep is None else None,
            starts=starts,
            typical_curvature=_typical_curvature(likelihood, targets),
            input_mean_squares=mean_squares,
        )

    def with_targets(self, targets: Array) -> Self:
        """Return the posterior given different targets for every chain, (n_chains, n_cases, n_targets)."""
        xp = array_namespace(targets)
        posterior = replace(
            self,
            targets=self.data_model.target_rows(targets),
            observed=self.data_model.observed(targets),
            typical_curvature=_typical_curvature(self.data_model, targets),
            blocks={},
        )
        if self.data_model.n_cells == 1:
            return posterior
        # Keep every cell, because different chains reach different cells.
        starts = self.data_model.n_cells * xp.arange(self.n_cases + 1)
        return replace(posterior, inputs=self._every_cell(), starts=starts)

    def tempered(self, factor: float | Array) -> Self:
        """Return the posterior with its inverse temperature multiplied by `factor`.

        factor  a number or (n_chains,)
        """
        return replace(self, inverse_temperature=self.inverse_temperature * factor)

    @property
    def n_parameters(self) -> int:
        return self.parameter_layout.n_parameters

    @property
    def n_precisions(self) -> int:
        return self.precision_layout.n_precisions

    def potential_and_gradient(
        self,
        position: Array,
        precisions: Array,
        *,
        partition: Array | None = None,
        n_partitions: int = 1,
    ) -> tuple[Array, Array]:
        """Return the energy E = -b log likelihood - log prior, and its gradient.

        This is FBM's energy, with b the inverse temperature. Factors of the prior that depend only on
        precisions are omitted. With `partition` it is the energy of Neal (1996) eq. 3.37: the energy of the
        whole prior plus n_partitions times the data energy of block k, the cases
        floor(N k/K) .. floor(N (k+1)/K) - 1. Values that are not finite are returned unchanged.
        """
        xp = array_namespace(position)
        inputs, targets, weights, counts = self.inputs, self.targets, self.observed, self.counts
        if partition is not None and n_partitions > 1:
            inputs, targets, weights, counts = self.blocks_of(n_partitions).at(partition)
        with np.errstate(all="ignore"):  # a trajectory that blows up is a rejection, not a warning
            noise = self.governing(precisions).noise
            activity = forward(position, inputs, self.wiring, buffers=self.buffers)
            terms, slopes = self.data_model.terms_and_gradient(activity.outputs, targets, noise)
            apply_weights(terms, slopes, weights)
            slopes *= -n_partitions * self.inverse_temperatures(n_axes=3)
            gradient = backward(
                position, activity, slopes.astype(position.dtype), self.wiring, buffers=self.buffers
            )
            tau = self.governing(precisions).parameters
            energy, prior_gradient = prior.energy_of_parameters(position, tau, self.parameter_layout)
            normaliser = self.data_model.total_log_normaliser(noise, counts)
            log_likelihood = terms.sum(axis=(1, 2)) + normaliser
            gradient += xp.asarray(prior_gradient, dtype=position.dtype)
            return energy - n_partitions * self.inverse_temperature * log_likelihood, gradient

    def potential(self, position: Array, precisions: Array) -> Array:
        return self.prior_energy(position, precisions) + self.data_energy(position, precisions)

    def prior_energy(self, position: Array, precisions: Array) -> Array:
        """Return the part of the potential that tempering does not change, (n_chains,) float64."""
        with np.errstate(all="ignore"):
            tau = self.governing(precisions).parameters
            return prior.energy_of_parameters(position, tau, self.parameter_layout)[0]

    def data_energy(self, position: Array, precisions: Array) -> Array:
        """Return the part of the potential that tempering scales, -b log likelihood, (n_chains,) float64."""
        return -self.inverse_temperature * self.log_likelihood(position, precisions)

    def stepsizes(self, precisions: Array) -> Array:
        with np.errstate(all="ignore"):
            governing = self.governing(precisions)
            return stepsize.stepsizes(
                governing.parameters,
                self._output_curvature(governing.noise),
                self.input_mean_squares,
                self.n_cases,
                parameters=self.parameter_layout,
                wiring=self.wiring,
            ).astype(self.dtype)

    def _output_curvature(self, noise: Array) -> Array:
        """Return the mean of -d2L/dv2 over the cases, (n_chains, n_outputs), zero for a missing target."""
        shape = len(noise), self.wiring.units[-1]
        if self.typical_curvature is None:
            curvature = self.data_model.largest_curvature(noise, shape[1])
        else:
            given = self.data_model.curvature_given(self.typical_curvature, noise)
            curvature = array_namespace(noise).broadcast_to(given, shape)
        curvature = self.inverse_temperatures(n_axes=2) * curvature
        if self.observed is None:
            return curvature
        share: Array = self.counts / self.n_cases
        return (curvature.reshape(len(noise), -1, share.shape[1]) * share[:, None]).reshape(curvature.shape)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return self.parameter_layout.group_sizes

    def quantities(self, position: Array, precisions: Array) -> Array:
        """Return the functions of the state that tuning uses to judge trajectories."""
        xp = array_namespace(position)
        columns = stepsize.some_columns(self.inputs.shape[1])
        inputs = xp.ascontiguousarray(self.inputs[:, columns])
        outputs = forward(position, inputs, self.wiring, buffers=Buffers()).outputs
        sigmas = stepsize.sigmas(position, self.parameter_layout, self.precision_layout)
        return xp.concatenate([sigmas, stepsize.scaled_outputs(outputs, self.target_scale)], axis=1)

    def outputs(self, position: Array, inputs: Array) -> Array:
        """Return the outputs (n_chains, n_cases, n_outputs) at inputs (n_cases, n_inputs)."""
        xp = array_namespace(position)
        rows = input_rows(xp.asarray(inputs, dtype=xp.float64), self.dtype)
        return forward(position, rows, self.wiring, buffers=Buffers()).outputs.swapaxes(1, 2)

    def log_likelihood(self, position: Array, precisions: Array) -> Array:
        """Return the log likelihood of the training cases with all constants, (n_chains,) float64."""
        with np.errstate(all="ignore"):
            governing = self.governing(precisions)
            terms = self._terms(self.training_outputs(position), governing.noise)
            return terms.sum(axis=(1, 2)) + governing.normaliser

    def log_prior(self, position: Array, precisions: Array) -> Array:
        """Return the log density of the parameters and of the free precisions tau, (n_chains,)."""
        with np.errstate(all="ignore"):
            return prior.log_density_of_parameters(
                position, precisions, self.parameter_layout, self.precision_layout
            ) + prior.log_density_of_precisions(precisions, self.precision_layout)

    def inverse_temperatures(self, *, n_axes: int) -> float | Array:
        """Return the inverse temperature as a factor for arrays with n_axes axes, the chain axis first."""
        b = self.inverse_temperature
        return b if isinstance(b, float) else b.reshape(-1, *(1,) * (n_axes - 1))

    def _every_cell(self) -> Array:
        """Return the network's inputs at every cell of every case, (n_inputs + 1, n_cases * n_cells)."""
        assert self.covariates is not None
        return input_rows(self.data_model.cell_inputs(self.covariates), self.dtype)

    def governing(self, precisions: Array) -> Governing:
        """Return the precisions that govern each parameter and each target; they must not be changed."""
        return self._governing.get(precisions, partial(Governing.from_precisions, self))

    def training_outputs(self, position: Array) -> Array:
        """Return the outputs at all training inputs, (n_chains, n_outputs, n_cases).

        They must not be changed, and they last only until the next pass through the network.
        """
        if self.inputs.shape[-1] > AT_ONCE:
            return forward(position, self.inputs, self.wiring, buffers=self.buffers).outputs
        return self._outputs.get(
            position, partial(outputs_alone, inputs=self.inputs, wiring=self.wiring, buffers=self.buffers)
        )

    @cached_property
    def _governing(self) -> Remembered[Governing]:
        return Remembered(1)

    @cached_property
    def _outputs(self) -> Remembered[Array]:
        return Remembered(2)  # of the current position and of a proposal

    def blocks_of(self, n_partitions: int) -> Blocks:
        if n_partitions not in self.blocks:
            self.blocks[n_partitions] = Blocks.cut(
                self.inputs, self.targets, n_partitions, observed=self.observed, starts=self.starts
            )
        return self.blocks[n_partitions]

    @cached_property
    def target_scale(self) -> float:
        """The standard deviation of real targets, or 1 for others. On a device the host waits for it."""
        if not self.data_model.is_real:
            return 1.0
        return stepsize.scale_of_targets(self.targets, self.observed)

    @cached_property
    def rows_by_case(self) -> Array:
        """The inputs of each case in a row, (n_columns, n_inputs + 1), for taking batches."""
        return array_namespace(self.inputs).ascontiguousarray(self.inputs.T)

    @cached_property
    def records(self) -> Array:
        """The inputs, target rows and weights of each case side by side, for batches of compiled code.

        (n_cases, n) in the dtype of the inputs, or (n_chains, n_cases, n) if chains have separate targets.
        n is padded with zeros to a multiple of 4. Weights are included only if targets are missing.
        """
        xp = array_namespace(self.inputs)
        rows = [self.inputs[:-1], self.targets] + ([] if self.observed is None else [self.observed])
        leading = max((part.shape[:-2] for part in rows), key=len)
        rows.append(xp.zeros((-sum(part.shape[-2] for part in rows) % 4, self.inputs.shape[1])))
        parts = [xp.broadcast_to(part, (*leading, *part.shape[-2:])) for part in rows]
        by_case = xp.concatenate(parts, axis=-2).swapaxes(-1, -2)
        return xp.ascontiguousarray(by_case, dtype=self.inputs.dtype)

    @cached_property
    def counts(self) -> Array | int:
        """Number of cases; if targets are missing, the number for each target, (n_chains or 1, n_targets)."""
        if self.observed is None:
            return self.n_cases
        counts = self.observed.sum(axis=-1)
        return counts if counts.ndim == 2 else counts[None]

    def _terms(self, outputs: Array, noise: Array) -> Array:
        """Return the terms of the log likelihood without its normaliser; zero for missing targets."""
        terms, slopes = self.data_model.terms_and_gradient(outputs, self.targets, noise)
        apply_weights(terms, slopes, self.observed)
        return terms


@dataclass(frozen=True, eq=False)
class Governing:
    """The precisions that govern each parameter and each target.

    parameters  (n_chains, n_parameters), see `prior.parameter_precisions`
    noise       (n_chains, n_targets), see `prior.noise_precisions`
    """

    parameters: Array
    noise: Array
    posterior: Posterior

    @staticmethod
    def from_precisions(posterior: Posterior, precisions: Array) -> Governing:
        """Return what the precisions (n_chains, n_precisions) govern."""
        layout = posterior.precision_layout
        noise = prior.noise_precisions(precisions, layout)
        return Governing(prior.parameter_precisions(precisions, layout), noise, posterior)

    @cached_property
    def normaliser(self) -> Array:
        """The log normalising constant, which the terms of the cases omit, (n_chains,)."""
        return self.posterior.data_model.total_log_normaliser(self.noise, self.posterior.counts)


def _typical_curvature(model: DataModel, targets: Array) -> Array | None:
    """Return the data model's typical curvature, (n_chains or 1, n_outputs), or None if it has none."""
    curvature = model.typical_curvature(targets)
    return curvature if curvature is None or curvature.ndim == 2 else curvature[None]


_MOST_BYTES = 2**16  # of an array; the function of a larger one takes much longer than the calls around it
T = TypeVar("T")


class Remembered(Generic[T]):
    """The results for the latest small arrays on the host, found by their contents."""

    def __init__(self, n: int) -> None:
        """Remember the results for the last `n` different arrays."""
        self._n = n
        self._results: dict[tuple[int, bytes], T] = {}

    def get(self, array: Array, compute: Callable[[Array], T]) -> T:
        """Return compute(array), computed now or before. The caller must not change it.

        The function must be the same in every call, and all arrays must have one dtype and as many columns.
        """
        if type(array) is not np.ndarray or array.nbytes > _MOST_BYTES:
            return compute(array)
        key = len(array), array.tobytes()
        result = self._results.pop(key, None)
        if result is None:
            result = compute(array)
            if len(self._results) == self._n:
                del self._results[next(iter(self._results))]
        self._results[key] = result
        return result
