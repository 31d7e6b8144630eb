"""The posterior with variables integrated out: parameters that feed the outputs, common precisions of groups.

`complete` draws the integrated variables again; hybrid-marginal in mcmc/hybrid_marginal.py combines the two.
The outputs are linear in the parameters that feed them. Given Gaussian noise, these parameters are the
coefficients of a linear regression on the units of the layers before (output_layer.py, regression.py).
Auxiliary precisions make other noise and other priors Gaussian (`gaussian_targets`, `output_precisions`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.model import prior, regression, stepsize
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.model.likelihood.data_model import GaussianTargets
from rayfbnn.model.network import Buffers, backward, forward
from rayfbnn.model.output_layer import (
    Integrated,
    OutputLayer,
    add_integrated,
    draw_integrated,
    feeds_outputs,
    integrated_groups,
    why_outputs_stay,
    with_columns,
)
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.regression import Regression, Slopes
from rayfbnn.model.updates import gibbs
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams

# Stepsize of the log of a moved precision, in standard deviations given the parameters that it governs. On
# the robot arm, values from 0.06 to 1 make no difference (1450 to 1660 effective draws of ih0's sigma per
# million gradients; 750 if the precision does not move). With 1, the share accepted falls from 0.91 to 0.88.
_MOVED_STEP = 0.25


@dataclass(frozen=True, eq=False)
class WithoutPrecisions:
    """The posterior with common precisions of `groups` integrated out: a state.ConditionalTarget."""

    posterior: Posterior
    groups: tuple[Integrated, ...]

    def given(self, state: ChainState, streams: Streams) -> WithoutPrecisions:
        return self  # no auxiliary variables are needed

    @property
    def n_parameters(self) -> int:
        return self.posterior.n_parameters

    def potential_and_gradient(
        self, position: Array, precisions: Array, *, partition: Array | None = None, n_partitions: int = 1
    ) -> tuple[Array, Array]:
        """Return the posterior's energy, with `add_integrated` as the prior of `groups`, and the gradient."""
        energy, gradient = self.posterior.potential_and_gradient(
            position,
            with_columns(precisions, self.groups, value=0.0),
            partition=partition,
            n_partitions=n_partitions,
        )
        with np.errstate(all="ignore"):
            return energy + add_integrated(position, precisions, self.groups, gradient=gradient), gradient

    def potential(self, position: Array, precisions: Array) -> Array:
        energy = self.posterior.potential(position, with_columns(precisions, self.groups, value=0.0))
        with np.errstate(all="ignore"):
            return energy + add_integrated(position, precisions, self.groups)

    def prior_energy(self, position: Array, precisions: Array) -> Array:
        energy = self.posterior.prior_energy(position, with_columns(precisions, self.groups, value=0.0))
        with np.errstate(all="ignore"):
            return energy + add_integrated(position, precisions, self.groups)

    def stepsizes(self, precisions: Array) -> Array:
        """Return the heuristic stepsizes, with the integrated precisions at their prior means."""
        return self.posterior.stepsizes(with_columns(precisions, self.groups))

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return self.posterior.group_sizes

    def quantities(self, position: Array, precisions: Array) -> Array:
        return self.posterior.quantities(position, precisions)

    def start(self, state: ChainState, streams: Streams) -> ChainState:
        return state  # all of its parameters move

    def complete(self, state: ChainState, moved: ChainState, streams: Streams) -> ChainState:
        return draw_integrated(self.posterior, moved, self.groups, streams)


@dataclass(frozen=True, eq=False)
class OutputMarginal:
    """The posterior without the parameters that feed the outputs: a state.Marginal.

    groups  groups with common precisions that are integrated out as well; none of them feeds the outputs
    moved   groups that feed the outputs. Their common precisions move together with the kept parameters,
            because at a fixed precision the scale of the values that feed the outputs would hardly move
    """

    posterior: Posterior
    layer: OutputLayer
    groups: tuple[Integrated, ...]
    moved: tuple[Integrated, ...]
    buffers: Buffers = field(default_factory=Buffers)

    def given(self, state: ChainState, streams: Streams) -> WithoutOutputs:
        """Return the density given auxiliary precisions, drawn for non-Gaussian noise or priors."""
        xp = array_namespace(state.position)
        data = gaussian_targets(self.posterior, state, streams)
        ruled = with_columns(state.precisions, self.moved, value=1.0)
        drawn = output_precisions(self.posterior, replace(state, precisions=ruled), streams)
        precisions = drawn[:, self.layer.n_kept :].reshape(len(drawn), -1, self.layer.n_outputs)
        precisions = precisions.swapaxes(1, 2)  # (n_chains, n_outputs, n_features)
        n = self.layer.n_systems
        rows = data.targets
        linear_model = Regression(
            noise=xp.ascontiguousarray(data.precisions[:, :n]),
            targets=xp.ascontiguousarray(rows.reshape(rows.shape[0], n, -1, rows.shape[2])),
            prior=xp.ascontiguousarray(precisions[:, :n]),
            is_dual=self.layer.is_dual,
        )
        return WithoutOutputs(self, linear_model)

    @cached_property
    def output_square(self) -> Array:
        return self.posterior.data_model.typical_output_square(
            self.posterior.targets, self.posterior.observed
        )

    @cached_property
    def parameter_layout(self) -> ParameterLayout:
        """The layout of the kept parameters."""
        full, n = self.posterior.parameter_layout, self.layer.n_kept
        groups = tuple(group for group in full.groups if full.slices[group.name].start < n)
        return ParameterLayout(groups, n, {group.name: full.slices[group.name] for group in groups})

    @cached_property
    def precision_layout(self) -> PrecisionLayout:
        """The layout of the precisions that govern the kept parameters."""
        full = self.posterior.precision_layout
        adjusted = {
            name: adjustment
            for name, adjustment in full.adjusted.items()
            if name in self.parameter_layout.slices
        }
        columns = full.parameter_columns[: self.layer.n_kept]
        return replace(full, parameter_columns=columns, adjusted=adjusted)


@dataclass(frozen=True, eq=False)
class WithoutOutputs:
    """The density of kept parameters and logs of moved precisions given `regression`: a ConditionalTarget.

    regression  the regression with the moved precisions set to one
    """

    marginal: OutputMarginal
    regression: Regression

    @property
    def n_kept(self) -> int:
        return self.marginal.layer.n_kept

    @property
    def n_parameters(self) -> int:
        """Number of coordinates: kept parameters and logs of moved precisions."""
        return self.n_kept + len(self.marginal.moved)

    def start(self, state: ChainState, streams: Streams) -> ChainState:
        xp = array_namespace(state.position)
        columns = [group.precision.common for group in self.marginal.moved]
        log_precisions = xp.log(state.precisions[:, columns]).astype(state.position.dtype)
        momentum = streams.normal(Purpose.MOMENTUM, (len(columns),)).astype(state.momentum.dtype)
        return ChainState(
            xp.concatenate([state.position[:, : self.n_kept], log_precisions], axis=1),
            xp.concatenate([state.momentum[:, : self.n_kept], momentum], axis=1),
            state.precisions,
        )

    def potential_and_gradient(
        self, position: Array, precisions: Array, *, partition: Array | None = None, n_partitions: int = 1
    ) -> tuple[Array, Array]:
        """Return -log p(targets | kept parameters) - log prior of these, and the gradient.

        Factors that depend only on precisions are omitted. Partial gradients are not available, because the
        determinant is not a sum over cases.
        """
        assert partition is None and n_partitions == 1
        marginal, layer = self.marginal, self.marginal.layer
        with np.errstate(all="ignore"):  # a trajectory that blows up is a rejection, not a warning
            kept = array_namespace(position).ascontiguousarray(position[:, : self.n_kept])
            activity = forward(kept, marginal.posterior.inputs, layer.wiring, buffers=marginal.buffers)
            phi = layer.phi(activity, n_chains=len(kept), buffers=marginal.buffers)
            energy, slopes = regression.energy_and_slopes(phi, self.regression_at(position))
            assert slopes is not None
            value_gradients = layer.value_gradients(slopes.features, position.dtype)
            gradient = backward(
                kept,
                activity,
                activity.outputs,
                layer.wiring,
                buffers=marginal.buffers,
                value_gradients=value_gradients,
            )
            if layer.wiring.offsets[0] is not None and 0 in value_gradients:
                units = next(link.units for link in layer.links if link.source == 0 and link.n_units > 0)
                gradient[:, layer.wiring.offsets[0]][:, units] += value_gradients[0].sum(axis=2)
            prior_energy, prior_gradient = self._prior(kept, precisions)
            gradient += prior_gradient.astype(position.dtype)
            moved_energy, moved_gradient = self.prior_of_moved(position)
            self.add_slopes_of_moved(slopes, gradient=moved_gradient)
            xp = array_namespace(position)
            gradient = xp.concatenate([gradient, moved_gradient.astype(position.dtype)], axis=1)
            return energy + prior_energy + moved_energy, gradient

    def potential(self, position: Array, precisions: Array) -> Array:
        with np.errstate(all="ignore"):
            kept, phi = self._features(position)
            energy, _ = regression.energy_and_slopes(phi, self.regression_at(position), with_slopes=False)
            return energy + self._prior(kept, precisions)[0] + self.prior_of_moved(position)[0]

    def regression_at(self, position: Array) -> Regression:
        """Return the regression with the moved precisions of a position."""
        marginal = self.marginal
        if not marginal.moved:
            return self.regression
        xp = array_namespace(position)
        precisions = self.regression.prior.copy()
        log_precisions = position[:, self.n_kept :].astype(xp.float64)
        scales = xp.exp(xp.clip(log_precisions, -prior.MAX_LOG_PRECISION, prior.MAX_LOG_PRECISION))
        for number, group in enumerate(marginal.moved):
            precisions[:, :, marginal.layer.features_of(group)] *= scales[:, number, None, None]
        return replace(self.regression, prior=precisions)

    def prior_of_moved(self, position: Array) -> tuple[Array, Array]:
        """Return -log density of x = log tau and the derivative, (n_chains,) and (n_chains, n_moved).

        tau is Gamma with shape alpha/2 and mean omega:

        -(alpha/2) x + (alpha/2) exp(x)/omega
        """
        xp = array_namespace(position)
        x = position[:, self.n_kept :].astype(xp.float64)
        energy, gradient = xp.zeros(len(x)), xp.empty_like(x)
        for number, group in enumerate(self.marginal.moved):
            half = group.precision.prior.alphas[0] / 2
            ratio = xp.exp(x[:, number]) / group.precision.mean
            energy += half * (ratio - x[:, number])
            gradient[:, number] = half * (ratio - 1)
        return energy, gradient

    def add_slopes_of_moved(self, slopes: Slopes, *, gradient: Array) -> None:
        """Add the data's part to the gradient by logs of moved precisions, (n_chains, n_moved)."""
        for number, group in enumerate(self.marginal.moved):
            part = slopes.log_prior[:, :, self.marginal.layer.features_of(group)]
            gradient[:, number] += part.sum(axis=(1, 2))

    def stepsizes(self, precisions: Array) -> Array:
        """Return the posterior's heuristic stepsizes with two changes, and stepsizes of log precisions.

        The result is (n_chains, n_parameters). Integrated and moved precisions are set to their prior means.
        The heuristic takes output parameters to be as large as their sigmas. Their precisions are set to at
        least 1/(typical square of an output), because under a vague prior the data keep the weights smaller
        than the prior does. On the robot arm nine of ten trajectories over outputs and precisions are
        accepted with these stepsizes.

        The log of a moved precision of shape alpha/2 that governs n parameters has a standard deviation of
        sqrt(2/(alpha + n)) given these parameters.
        """
        xp = array_namespace(precisions)
        marginal = self.marginal
        changed = with_columns(precisions, (*marginal.groups, *marginal.moved)).copy()
        for group in marginal.posterior.precision_layout.groups:
            if feeds_outputs(group.name):
                columns = slice(group.common, group.common + 1 if group.units is None else group.units.stop)
                changed[:, columns] = changed[:, columns].clip(1 / marginal.output_square[:, None])
        full = marginal.posterior.stepsizes(changed)
        alphas = [group.precision.prior.alphas[0] + group.size for group in marginal.moved]
        of_moved = _MOVED_STEP * xp.sqrt(2 / xp.asarray(alphas, dtype=full.dtype))
        of_moved = xp.broadcast_to(of_moved, (len(full), len(alphas))).astype(full.dtype)
        return xp.concatenate([full[:, : self.n_kept], of_moved], axis=1)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Number of coordinates in each group of kept parameters; each moved precision is a group."""
        return (*self.marginal.parameter_layout.group_sizes, *(1 for _ in self.marginal.moved))

    def quantities(self, position: Array, precisions: Array) -> Array:
        """Return the posterior's quantities, with outputs at the mean m of the integrated parameters."""
        xp = array_namespace(position)
        marginal = self.marginal
        kept, phi = self._features(position)
        m = regression.means(phi, self.regression_at(position))
        at = phi[:, None][..., stepsize.some_columns(marginal.posterior.inputs.shape[1])]
        outputs = xp.matmul(m.swapaxes(2, 3), at).reshape(len(position), marginal.layer.n_outputs, -1)
        groups = stepsize.sigmas(kept, marginal.parameter_layout, marginal.precision_layout)
        scaled = stepsize.scaled_outputs(outputs, marginal.posterior.target_scale)
        return xp.concatenate([groups, position[:, self.n_kept :], scaled], axis=1)

    def complete(self, state: ChainState, moved: ChainState, streams: Streams) -> ChainState:
        """Draw the output parameters from Normal(m, A^-1), then the precisions given the kept parameters."""
        xp = array_namespace(state.position)
        marginal, n = self.marginal, self.n_kept
        position, momentum = state.position.copy(), state.momentum.copy()
        position[:, :n], momentum[:, :n] = moved.position[:, :n], moved.momentum[:, :n]
        _, phi = self._features(position)
        drawn = regression.draw(phi, self.regression_at(moved.position), streams)
        coefficients = drawn.swapaxes(1, 2)  # (n_chains, n_features, n_systems, n_each)
        position[:, n:] = coefficients.reshape(len(position), -1)
        precisions = state.precisions.copy()
        for number, group in enumerate(marginal.moved):
            precisions[:, group.precision.common] = xp.exp(moved.position[:, n + number].astype(xp.float64))
        return draw_integrated(
            marginal.posterior, ChainState(position, momentum, precisions), marginal.groups, streams
        )

    def _features(self, position: Array) -> tuple[Array, Array]:
        """Return the kept parameters (n_chains, n_kept), and the features at these."""
        marginal, layer = self.marginal, self.marginal.layer
        kept = array_namespace(position).ascontiguousarray(position[:, : self.n_kept])
        activity = forward(kept, marginal.posterior.inputs, layer.wiring, buffers=marginal.buffers)
        return kept, layer.phi(activity, n_chains=len(kept), buffers=marginal.buffers)

    def _prior(self, position: Array, precisions: Array) -> tuple[Array, Array]:
        marginal = self.marginal
        governing = prior.parameter_precisions(
            with_columns(precisions, marginal.groups, value=0.0), marginal.precision_layout
        )
        energy, gradient = prior.energy_of_parameters(position, governing, marginal.parameter_layout)
        return energy + add_integrated(position, precisions, marginal.groups, gradient=gradient), gradient


def marginal(posterior: Posterior, over: tuple[str, ...]) -> WithoutPrecisions | OutputMarginal:
    """Return the posterior with "outputs", "precisions" or both integrated out.

    Raises a ConfigError with the reason if the outputs of the posterior cannot be integrated out.
    """
    network = posterior.network
    names = {group.name for group in network.groups()}
    if "outputs" not in over:
        return WithoutPrecisions(posterior, integrated_groups(posterior, names))
    b = posterior.inverse_temperature
    is_tempered = not (isinstance(b, float) and b == 1)
    if reason := why_outputs_stay(network, posterior.data_model, is_tempered=is_tempered):
        raise ConfigError(f'over: the outputs cannot be integrated out, got "outputs"; {reason}')
    names = names if "precisions" in over else set()
    hidden = integrated_groups(posterior, {name for name in names if not feeds_outputs(name)})
    moved = integrated_groups(posterior, {name for name in names if feeds_outputs(name)})
    return OutputMarginal(posterior, OutputLayer.from_posterior(posterior), hidden, moved)


def gaussian_targets(posterior: Posterior, state: ChainState, streams: Streams) -> GaussianTargets:
    """Draw Gaussian targets given the state. The likelihood is a mixture over these."""
    xp = array_namespace(state.position)
    b = xp.reshape(xp.asarray(posterior.inverse_temperature, dtype=xp.float64), (-1, 1, 1))

    def outputs() -> Array:
        activity = forward(state.position, posterior.inputs, posterior.wiring, buffers=Buffers())
        return activity.outputs.astype(xp.float64)

    return posterior.data_model.gaussian_targets(
        outputs,
        posterior.targets if posterior.targets.ndim == 3 else posterior.targets[None],
        prior.noise_precisions(state.precisions, posterior.precision_layout),
        b if posterior.observed is None else b * posterior.observed,
        streams,
    )


def output_precisions(posterior: Posterior, state: ChainState, streams: Streams) -> Array:
    """Return each parameter's precision, (n_chains, n_parameters).

    For output parameters with a t prior it is drawn.
    """
    xp = array_namespace(state.position)
    layout = posterior.precision_layout
    precisions = prior.parameter_precisions(state.precisions, layout)
    for number, group in enumerate(layout.groups):
        alpha = group.prior.alphas[2]
        if feeds_outputs(group.name) and math.isfinite(alpha):
            part = posterior.parameter_layout.slices[group.name]
            precisions[:, part] = gibbs.draw_value_precisions(
                state.position[:, part].astype(xp.float64) ** 2,
                precisions[:, part],
                alpha,
                1.0,
                streams,
                index=number,
                purpose=Purpose.PRECISION_PARAMETER,
            )
    return precisions
