"""The posterior with variables integrated out: parameters that feed the outputs, common precisions of groups.

What is integrated out is drawn again by `complete`; hybrid-marginal of mcmc/marginal.py is the update made
of both. The outputs are linear in the parameters that feed them, so that given Gaussian noise these are the
coefficients of a linear regression on the units before them (regression.py). Other noise and other priors are
made Gaussian by auxiliary precisions, drawn from their conditional distribution: `gaussian_targets` for the
data, `_output_precisions` for t weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.architecture import destination, why_outputs_stay
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.model import gibbs, likelihood, prior, quantities, regression
from rayfbnn.model.layout import NOISE, ParameterLayout, PrecisionGroup, PrecisionLayout
from rayfbnn.model.network import Activity, Buffers, backward, forward
from rayfbnn.model.polya_gamma import polya_gamma
from rayfbnn.model.regression import Regression
from rayfbnn.model.wiring import Link, Wiring
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams

if TYPE_CHECKING:
    from rayfbnn.model.posterior import Posterior

# A prior this much wider than another one makes the dual form lose all digits of the narrower one.
_MAX_RATIO_OF_DUAL = 1e6

_LOGIT_SQUARE = 4.0  # outputs of 2 and -2 are probabilities of 0.88 and 0.12

# Stepsize of the log of a precision that moves along, in its standard deviations given what it rules. On the
# robot arm 0.06 to 1 make no difference (1450 to 1660 effective draws of ih0's sigma per million gradients;
# 750 if it does not move), and 1 has fewer accepted, 0.88 of 0.91.
_MOVED_STEP = 0.25


@dataclass(frozen=True)
class GaussianTargets:
    """Targets with Gaussian noise in place of the data, given auxiliary variables; missing ones have T = 0.

    precisions  T (n_chains, n_targets, n_cases, or 1 if all cases are alike)
    targets     y (n_chains or 1, n_targets, n_cases), finite everywhere
    """

    precisions: Array
    targets: Array


def gaussian_targets(posterior: Posterior, state: ChainState, streams: Streams) -> GaussianTargets:
    """Gaussian targets of which the likelihood is a mixture, given the state; b is the inverse temperature.

    Gaussian noise  T = b tau, y as it is
    t noise         T is a case's own precision, Gamma given the residual (gibbs.draw_value_precisions)
    binary targets  T = omega ~ PG(1, output), y replaced by (y - 1/2)/omega (polya_gamma.py)
    """
    xp = array_namespace(state.position)
    targets = posterior.targets if posterior.targets.ndim == 3 else posterior.targets[None]
    if posterior.model.kind == "binary":
        omega = polya_gamma(_outputs(posterior, state), streams, purpose=Purpose.POLYA_GAMMA)
        return GaussianTargets(_case_weights(posterior) * omega, (targets - 0.5) / omega)
    assert posterior.model.noise is not None
    tau = likelihood.noise_precision(state.precisions, posterior.precision_layout)[:, :, None]
    alpha = posterior.model.noise.alphas[2]
    if math.isinf(alpha):
        return GaussianTargets(_case_weights(posterior) * tau, targets)
    squares = (targets - _outputs(posterior, state)) ** 2
    weights = xp.broadcast_to(_case_weights(posterior), squares.shape)
    drawn = gibbs.draw_value_precisions(
        squares, tau, alpha, weights, streams, index=0, purpose=Purpose.NOISE_CASE
    )
    return GaussianTargets(xp.where(weights > 0, drawn, 0.0), targets)


def _outputs(posterior: Posterior, state: ChainState) -> Array:
    """Outputs at the training cases, (n_chains, n_outputs, n_cases) float64."""
    activity = forward(state.position, posterior.inputs, posterior.wiring, buffers=Buffers())
    return activity.outputs.astype(array_namespace(state.position).float64)


def _case_weights(posterior: Posterior) -> Array:
    """Power of each target's density, that broadcasts to (n_chains, n_targets, n_cases): b, 0 if missing."""
    xp = array_namespace(posterior.targets)
    b = xp.reshape(xp.asarray(posterior.inverse_temperature, dtype=xp.float64), (-1, 1, 1))
    return b if posterior.observed is None else b * posterior.observed


@dataclass(frozen=True, eq=False)
class Integrated:
    """A group of parameters whose common precision is integrated out.

    part        its parameters in the flat vector
    adjustments columns of its destination units' adjustments, or None
    """

    precision: PrecisionGroup
    part: slice
    adjustments: slice | None

    @property
    def size(self) -> int:
        return int(self.part.stop - self.part.start)


def integrated_groups(posterior: Posterior, names: set[str]) -> tuple[Integrated, ...]:
    """Those of the named groups whose free common precision rules Gaussian parameters and nothing else."""
    layout = posterior.precision_layout
    found = []
    for group in layout.groups:
        alpha_common, _, alpha_value = group.prior.alphas
        is_alone = math.isfinite(alpha_common) and group.units is None and math.isinf(alpha_value)
        if group.name in names and is_alone:
            part = posterior.parameter_layout.slices[group.name]
            adjusted = layout.adjusted.get(group.name)
            found.append(Integrated(group, part, None if adjusted is None else adjusted[1]))
    return tuple(found)


def add_integrated(
    position: Array, precisions: Array, groups: tuple[Integrated, ...], *, gradient: Array
) -> Array:
    """-log density of the groups' parameters up to a constant, (n_chains,); adds its gradient to `gradient`.

    Of a group of n parameters, a the adjustments of their destinations (1 if there are none):

    ((alpha + n)/2) log(alpha/omega + sum a w**2) ;    (alpha + n) a w / (alpha/omega + sum a w**2)

    the integral over tau of Gamma(tau; shape alpha/2, mean omega) prod_i Normal(w_i; 0, 1/(a_i tau)).
    """
    xp = array_namespace(position)
    energy = xp.zeros(len(position))
    for group in groups:
        alpha = group.precision.prior.alphas[0]
        w = position[:, group.part].astype(xp.float64)
        scaled = w
        if group.adjustments is not None:
            rows = w.reshape(len(w), -1, group.adjustments.stop - group.adjustments.start)
            scaled = (rows * precisions[:, None, group.adjustments]).reshape(w.shape)
        rate = alpha / group.precision.mean + (scaled * w).sum(axis=1)
        energy += (alpha + group.size) / 2 * xp.log(rate)
        slopes = ((alpha + group.size) / rate)[:, None] * scaled
        gradient[:, group.part] += slopes.astype(gradient.dtype)
    return energy


def draw_integrated(
    posterior: Posterior,
    state: ChainState,
    groups: tuple[Integrated, ...],
    streams: Streams,
) -> ChainState:
    """The groups' common precisions given their parameters, as in sample-sigmas."""
    if not groups:
        return state
    layout = replace(
        posterior.precision_layout, groups=tuple(group.precision for group in groups), adjustments=()
    )
    values = posterior.parameter_layout.views(state.position)
    return replace(state, precisions=gibbs.update_groups(values, state.precisions, streams, layout=layout))


def _with_columns(precisions: Array, groups: tuple[Integrated, ...], *, value: float | None = None) -> Array:
    """Precisions with the common ones of `groups` at a value, or at their prior means."""
    if not groups:
        return precisions
    changed = precisions.copy()
    for group in groups:
        changed[:, group.precision.common] = group.precision.mean if value is None else value
    return changed


@dataclass(frozen=True, eq=False)
class WithoutPrecisions:
    """The posterior of all parameters without common precisions of groups: a state.ConditionalTarget."""

    posterior: Posterior
    groups: tuple[Integrated, ...]

    def given(self, state: ChainState, streams: Streams) -> WithoutPrecisions:
        """Itself: nothing is drawn for it."""
        return self

    @property
    def n_parameters(self) -> int:
        return self.posterior.n_parameters

    def potential_and_gradient(
        self, position: Array, precisions: Array, *, partition: Array | None = None, n_partitions: int = 1
    ) -> tuple[Array, Array]:
        """The posterior's energy with the prior of `groups` as `add_integrated` has it, and its gradient."""
        energy, gradient = self.posterior.potential_and_gradient(
            position,
            _with_columns(precisions, self.groups, value=0.0),
            partition=partition,
            n_partitions=n_partitions,
        )
        with np.errstate(all="ignore"):
            return energy + add_integrated(position, precisions, self.groups, gradient=gradient), gradient

    def potential(self, position: Array, precisions: Array) -> Array:
        xp = array_namespace(position)
        energy = self.posterior.potential(position, _with_columns(precisions, self.groups, value=0.0))
        with np.errstate(all="ignore"):
            return energy + add_integrated(
                position, precisions, self.groups, gradient=xp.empty_like(position)
            )

    def stepsizes(self, precisions: Array) -> Array:
        """The posterior's heuristic, with the means of the precisions that are integrated out."""
        return self.posterior.stepsizes(_with_columns(precisions, self.groups))

    def quantities(self, position: Array, precisions: Array) -> Array:
        return self.posterior.quantities(position, precisions)

    def start(self, state: ChainState, streams: Streams) -> ChainState:
        return state

    def complete(self, state: ChainState, moved: ChainState, streams: Streams) -> ChainState:
        """The precisions given the parameters."""
        return draw_integrated(self.posterior, moved, self.groups, streams)


@dataclass(frozen=True, eq=False)
class OutputLayer:
    """The linear regression that ends a network: its features and coefficients.

    links        into the outputs, their parts counted from the first output parameter
    n_kept       parameters before that one, all that do not feed the outputs
    features     of each link, the part of all features that it uses; values of the output parameters
                 (n_chains, n) are (n_chains, n_features, n_outputs) as they lie
    n_outputs    targets
    n_systems    1 if one matrix A serves all targets, else one for each
    wiring       the network without those links and without outputs
    is_dual      whether there are more features than cases (and no prior is too vague for that form)
    """

    links: tuple[Link, ...]
    n_kept: int
    features: tuple[slice, ...]
    n_outputs: int
    n_systems: int
    wiring: Wiring
    is_dual: bool

    @staticmethod
    def of(posterior: Posterior) -> OutputLayer:
        network, wiring = posterior.network, posterior.wiring
        of_outputs = [group for group in network.groups() if destination(group.name) == "o"]
        n_kept = posterior.parameter_layout.slices[of_outputs[0].name].start
        links, features, n_features = [], [], 0
        for link in wiring.incoming[-1]:
            part = slice(link.parameters.start - n_kept, link.parameters.stop - n_kept)
            links.append(replace(link, parameters=part))
            n_rows = (part.stop - part.start) // network.outputs
            features.append(slice(n_features, n_features + n_rows))
            n_features += n_rows
        last = len(wiring.units) - 1
        means = [group.mean_precision for group in of_outputs]
        return OutputLayer(
            links=tuple(links),
            n_kept=n_kept,
            features=tuple(features),
            n_outputs=network.outputs,
            n_systems=1 if _targets_are_alike(posterior) else network.outputs,
            wiring=replace(
                wiring,
                units=(*wiring.units[:-1], 0),
                incoming=(*wiring.incoming[:-1], ()),
                outgoing=tuple(
                    tuple(link for link in out if link.destination != last) for out in wiring.outgoing
                ),
            ),
            is_dual=n_features > posterior.n_cases and max(means) < _MAX_RATIO_OF_DUAL * min(means),
        )

    @property
    def n_features(self) -> int:
        return int(self.features[-1].stop)

    def features_of(self, group: Integrated) -> slice:
        """Those that the parameters of a group multiply."""
        start, stop = group.part.start - self.n_kept, group.part.stop - self.n_kept
        return slice(start // self.n_outputs, stop // self.n_outputs)

    def phi(self, activity: Activity, *, n_chains: int, buffers: Buffers) -> Array:
        """Features (n_chains, n_features, n_cases) float64."""
        xp = array_namespace(activity.sources[0])
        n_cases = activity.sources[0].shape[-1]
        like = xp.empty(0, dtype=xp.float64)
        phi = buffers.empty("features", (n_chains, self.n_features, n_cases), like=like)
        for link, part in zip(self.links, self.features, strict=True):
            phi[:, part] = activity.sources[link.source][..., link.rows, :]
        return phi

    def value_gradients(self, slopes: Array, dtype: type) -> dict[int, Array]:
        """Derivatives by features as those by the units of each layer that feeds the outputs."""
        found: dict[int, Array] = {}
        for link, part in zip(self.links, self.features, strict=True):
            if link.n_units > 0:
                own = slopes[:, part.start : part.start + link.n_units]
                found[link.source] = own.astype(dtype)
        return found


def _targets_are_alike(posterior: Posterior) -> bool:
    """Whether all targets have the same noise and their parameters the same priors, whatever is drawn."""
    network, layout = posterior.network, posterior.precision_layout
    noise = posterior.model.noise
    if posterior.n_targets == 1:
        return True
    if noise is None or any(math.isfinite(alpha) for alpha in noise.alphas[1:]):
        return False
    if posterior.observed is not None or "ao" in network.adjustments:
        return False
    return all(math.isinf(group.prior.alphas[2]) for group in layout.groups if _feeds_outputs(group.name))


def _feeds_outputs(name: str) -> bool:
    return name != NOISE and destination(name) == "o"


@dataclass(frozen=True, eq=False)
class OutputMarginal:
    """The posterior without the parameters that feed the outputs, a state.Marginal.

    groups  those whose common precisions are integrated out as well, none of them feeding the outputs
    moved   those that feed the outputs and whose common precisions move along with the kept parameters: given
            such a precision, the scale of what feeds the outputs hardly moves
    """

    posterior: Posterior
    layer: OutputLayer
    groups: tuple[Integrated, ...]
    moved: tuple[Integrated, ...]
    buffers: Buffers = field(default_factory=Buffers)

    def given(self, state: ChainState, streams: Streams) -> WithoutOutputs:
        """With auxiliary precisions drawn given the state, where noise or priors are not Gaussian."""
        xp = array_namespace(state.position)
        data = gaussian_targets(self.posterior, state, streams)
        ruled = _with_columns(state.precisions, self.moved, value=1.0)
        drawn = _output_precisions(self.posterior, replace(state, precisions=ruled), streams)
        precisions = drawn[:, self.layer.n_kept :].reshape(len(drawn), -1, self.layer.n_outputs)
        precisions = precisions.swapaxes(1, 2)  # (n_chains, n_outputs, n_features)
        n = self.layer.n_systems
        rows = data.targets
        given = Regression(
            noise=xp.ascontiguousarray(data.precisions[:, :n]),
            targets=xp.ascontiguousarray(rows.reshape(rows.shape[0], n, -1, rows.shape[2])),
            prior=xp.ascontiguousarray(precisions[:, :n]),
            is_dual=self.layer.is_dual,
        )
        return WithoutOutputs(self, given)

    @cached_property
    def output_square(self) -> Array:
        """Typical square of an output, from the targets alone, (n_chains or 1,)."""
        posterior = self.posterior
        xp = array_namespace(posterior.targets)
        if posterior.model.kind == "binary":
            return xp.full(1, _LOGIT_SQUARE)
        observed = xp.ones_like(posterior.targets) if posterior.observed is None else posterior.observed
        sums = (observed * posterior.targets**2).sum(axis=(-2, -1))
        mean = sums / xp.maximum(observed.sum(axis=(-2, -1)), 1)
        return xp.reshape(xp.where(mean > 0, mean, 1.0), (-1,))

    @cached_property
    def parameter_layout(self) -> ParameterLayout:
        """Of the parameters that are kept."""
        full, n = self.posterior.parameter_layout, self.layer.n_kept
        groups = tuple(group for group in full.groups if full.slices[group.name].start < n)
        return ParameterLayout(groups, n, {group.name: full.slices[group.name] for group in groups})

    @cached_property
    def precision_layout(self) -> PrecisionLayout:
        """What rules the parameters that are kept."""
        full = self.posterior.precision_layout
        adjusted = {
            name: found for name, found in full.adjusted.items() if name in self.parameter_layout.slices
        }
        columns = full.parameter_columns[: self.layer.n_kept]
        return replace(full, parameter_columns=columns, adjusted=adjusted)


def _output_precisions(posterior: Posterior, state: ChainState, streams: Streams) -> Array:
    """Each parameter's precision, (n_chains, n_parameters); drawn where t parameters feed the outputs."""
    xp = array_namespace(state.position)
    layout = posterior.precision_layout
    found = prior.parameter_precisions(state.precisions, layout)
    for number, group in enumerate(layout.groups):
        alpha = group.prior.alphas[2]
        if _feeds_outputs(group.name) and math.isfinite(alpha):
            part = posterior.parameter_layout.slices[group.name]
            found[:, part] = gibbs.draw_value_precisions(
                state.position[:, part].astype(xp.float64) ** 2,
                found[:, part],
                alpha,
                1.0,
                streams,
                index=number,
                purpose=Purpose.PRECISION_PARAMETER,
            )
    return found


@dataclass(frozen=True, eq=False)
class WithoutOutputs:
    """The density of kept parameters and logs of moved precisions given `regression`: a ConditionalTarget.

    regression  with the moved precisions at one
    """

    marginal: OutputMarginal
    regression: Regression

    @property
    def n_kept(self) -> int:
        return self.marginal.layer.n_kept

    @property
    def n_parameters(self) -> int:
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
        """-log p(targets | kept parameters) - log prior of these, without factors of precisions alone.

        There are no partial gradients: the determinant is no sum over cases.
        """
        assert partition is None and n_partitions == 1
        made, layer = self.marginal, self.marginal.layer
        with np.errstate(all="ignore"):  # a trajectory that blows up is a rejection, not a warning
            kept = array_namespace(position).ascontiguousarray(position[:, : self.n_kept])
            activity, phi = self._features(kept)
            given = self.regression_at(position)
            energy, slopes = regression.energy_and_slopes(phi, given)
            assert slopes is not None
            value_gradients = layer.value_gradients(slopes.features, position.dtype)
            gradient = backward(
                kept,
                activity,
                activity.outputs,
                layer.wiring,
                buffers=made.buffers,
                value_gradients=value_gradients,
            )
            if layer.wiring.offsets[0] is not None and 0 in value_gradients:
                units = next(link.units for link in layer.links if link.source == 0 and link.n_units > 0)
                gradient[:, layer.wiring.offsets[0]][:, units] += value_gradients[0].sum(axis=2)
            prior_energy, prior_gradient = self._prior(kept, precisions)
            gradient += prior_gradient.astype(position.dtype)
            moved_energy, moved_gradient = self._prior_of_moved(position)
            for number, group in enumerate(made.moved):
                part = slopes.log_prior[:, :, layer.features_of(group)]
                moved_gradient[:, number] += part.sum(axis=(1, 2))
            xp = array_namespace(position)
            gradient = xp.concatenate([gradient, moved_gradient.astype(position.dtype)], axis=1)
            return energy + prior_energy + moved_energy, gradient

    def potential(self, position: Array, precisions: Array) -> Array:
        with np.errstate(all="ignore"):
            kept = array_namespace(position).ascontiguousarray(position[:, : self.n_kept])
            _, phi = self._features(kept)
            energy, _ = regression.energy_and_slopes(phi, self.regression_at(position), with_slopes=False)
            return energy + self._prior(kept, precisions)[0] + self._prior_of_moved(position)[0]

    def regression_at(self, position: Array) -> Regression:
        """With the moved precisions as they are at a position."""
        made = self.marginal
        if not made.moved:
            return self.regression
        xp = array_namespace(position)
        precisions = self.regression.prior.copy()
        log_precisions = position[:, self.n_kept :].astype(xp.float64)
        scales = xp.exp(xp.clip(log_precisions, -prior.MAX_LOG_PRECISION, prior.MAX_LOG_PRECISION))
        for number, group in enumerate(made.moved):
            precisions[:, :, made.layer.features_of(group)] *= scales[:, number, None, None]
        return replace(self.regression, prior=precisions)

    def _prior_of_moved(self, position: Array) -> tuple[Array, Array]:
        """-log density of x = log tau, tau Gamma of shape alpha/2 and mean omega; (n_chains,), (n_chains, n).

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

    def stepsizes(self, precisions: Array) -> Array:
        """The posterior's heuristic, with other precisions in two places, and steps of log precisions.

        Those that are integrated out or move along are at their prior means. Those of the output parameters,
        which the heuristic takes to be as large as their sigmas, are at least 1/(typical square of an
        output): data hold the weights below a vaguer prior's. On the robot arm nine of ten trajectories are
        accepted with these, over outputs and precisions.

        The log of a moved precision of shape alpha/2 that rules n parameters has a standard deviation of
        sqrt(2/(alpha + n)) given these. (n_chains, n_parameters)
        """
        xp = array_namespace(precisions)
        made = self.marginal
        changed = _with_columns(precisions, (*made.groups, *made.moved)).copy()
        for group in made.posterior.precision_layout.groups:
            if _feeds_outputs(group.name):
                columns = slice(group.common, group.common + 1 if group.units is None else group.units.stop)
                changed[:, columns] = changed[:, columns].clip(1 / made.output_square[:, None])
        full = made.posterior.stepsizes(changed)
        alphas = [group.precision.prior.alphas[0] + group.size for group in made.moved]
        own = _MOVED_STEP * xp.sqrt(2 / xp.asarray(alphas, dtype=full.dtype))
        own = xp.broadcast_to(own, (len(full), len(alphas))).astype(full.dtype)
        return xp.concatenate([full[:, : self.n_kept], own], axis=1)

    def quantities(self, position: Array, precisions: Array) -> Array:
        """As the posterior's, of the kept parameters, and with outputs for the mean m of the others."""
        xp = array_namespace(position)
        made = self.marginal
        kept = xp.ascontiguousarray(position[:, : self.n_kept])
        _, phi = self._features(kept)
        m = regression.means(phi, self.regression_at(position))
        at = phi[:, None][..., quantities.cases(made.posterior)]
        outputs = xp.matmul(m.swapaxes(2, 3), at).reshape(len(position), made.layer.n_outputs, -1)
        groups = quantities.sigmas(kept, made.parameter_layout, made.precision_layout)
        scaled = quantities.scaled_outputs(made.posterior, outputs)
        return xp.concatenate([groups, position[:, self.n_kept :], scaled], axis=1)

    def complete(self, state: ChainState, moved: ChainState, streams: Streams) -> ChainState:
        """The output parameters from Normal(m, A^-1), then the precisions given the kept parameters."""
        xp = array_namespace(state.position)
        made, n = self.marginal, self.n_kept
        position, momentum = state.position.copy(), state.momentum.copy()
        position[:, :n], momentum[:, :n] = moved.position[:, :n], moved.momentum[:, :n]
        _, phi = self._features(xp.ascontiguousarray(position[:, :n]))
        drawn = regression.draw(phi, self.regression_at(moved.position), streams)
        coefficients = drawn.swapaxes(1, 2)  # (n_chains, n_features, n_systems, n_each)
        position[:, n:] = coefficients.reshape(len(position), -1)
        precisions = state.precisions.copy()
        for number, group in enumerate(made.moved):
            precisions[:, group.precision.common] = xp.exp(moved.position[:, n + number].astype(xp.float64))
        return draw_integrated(
            made.posterior, ChainState(position, momentum, precisions), made.groups, streams
        )

    def _features(self, position: Array) -> tuple[Activity, Array]:
        made = self.marginal
        activity = forward(position, made.posterior.inputs, made.layer.wiring, buffers=made.buffers)
        return activity, made.layer.phi(activity, n_chains=len(position), buffers=made.buffers)

    def _prior(self, position: Array, precisions: Array) -> tuple[Array, Array]:
        made = self.marginal
        energy, gradient = prior.energy_and_gradient(
            position,
            _with_columns(precisions, made.groups, value=0.0),
            made.parameter_layout,
            made.precision_layout,
        )
        return energy + add_integrated(position, precisions, made.groups, gradient=gradient), gradient


def marginal(posterior: Posterior, over: tuple[str, ...]) -> WithoutPrecisions | OutputMarginal:
    """The posterior over "outputs", "precisions" or both; ConfigError where that cannot be."""
    network = posterior.network
    names = {group.name for group in network.groups()}
    if "outputs" not in over:
        return WithoutPrecisions(posterior, integrated_groups(posterior, names))
    b = posterior.inverse_temperature
    is_tempered = not (isinstance(b, float) and b == 1)
    if reason := why_outputs_stay(network, posterior.model, is_tempered=is_tempered):
        raise ConfigError(f'over: the outputs cannot be integrated out, got "outputs"; {reason}')
    names = names if "precisions" in over else set()
    hidden = integrated_groups(posterior, {name for name in names if not _feeds_outputs(name)})
    moved = integrated_groups(posterior, {name for name in names if _feeds_outputs(name)})
    return OutputMarginal(posterior, OutputLayer.of(posterior), hidden, moved)
