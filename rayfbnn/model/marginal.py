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


def _with_columns(precisions: Array, groups: tuple[Integrated, ...], *, at_means: bool) -> Array:
    """Precisions in which what is integrated out is at its prior mean, or is zero."""
    if not groups:
        return precisions
    changed = precisions.copy()
    for group in groups:
        changed[:, group.precision.common] = group.precision.mean if at_means else 0.0
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
    def kept(self) -> slice:
        return slice(0, self.n_parameters)

    @property
    def n_parameters(self) -> int:
        return self.posterior.n_parameters

    def potential_and_gradient(
        self, position: Array, precisions: Array, *, partition: Array | None = None, n_partitions: int = 1
    ) -> tuple[Array, Array]:
        """The posterior's energy with the prior of `groups` as `add_integrated` has it, and its gradient."""
        energy, gradient = self.posterior.potential_and_gradient(
            position,
            _with_columns(precisions, self.groups, at_means=False),
            partition=partition,
            n_partitions=n_partitions,
        )
        with np.errstate(all="ignore"):
            return energy + add_integrated(position, precisions, self.groups, gradient=gradient), gradient

    def potential(self, position: Array, precisions: Array) -> Array:
        xp = array_namespace(position)
        energy = self.posterior.potential(position, _with_columns(precisions, self.groups, at_means=False))
        with np.errstate(all="ignore"):
            return energy + add_integrated(
                position, precisions, self.groups, gradient=xp.empty_like(position)
            )

    def stepsizes(self, precisions: Array) -> Array:
        """The posterior's heuristic, with the means of the precisions that are integrated out."""
        return self.posterior.stepsizes(_with_columns(precisions, self.groups, at_means=True))

    def quantities(self, position: Array, precisions: Array) -> Array:
        return self.posterior.quantities(position, precisions)

    def complete(self, state: ChainState, streams: Streams) -> ChainState:
        return draw_integrated(self.posterior, state, self.groups, streams)


@dataclass(frozen=True, eq=False)
class OutputLayer:
    """The linear regression that ends a network: its features and coefficients.

    links        into the outputs, their parts counted from the first output parameter
    n_kept       parameters before that one, all that do not feed the outputs
    features     of each link, the part of all features that it uses
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

    def arranged(self, values: Array) -> Array:
        """Values of the output parameters (n_chains, n) as (n_chains, n_features, n_outputs)."""
        xp = array_namespace(values)
        return xp.concatenate([link.matrix(values) for link in self.links], axis=1)

    def flat(self, coefficients: Array) -> Array:
        """The reverse of `arranged`."""
        xp = array_namespace(coefficients)
        values = xp.empty((len(coefficients), self.n_features * self.n_outputs))
        for link, part in zip(self.links, self.features, strict=True):
            link.matrix(values)[...] = coefficients[:, part]
        return values

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
    """

    posterior: Posterior
    layer: OutputLayer
    groups: tuple[Integrated, ...]
    buffers: Buffers = field(default_factory=Buffers)

    def given(self, state: ChainState, streams: Streams) -> WithoutOutputs:
        """With auxiliary precisions drawn given the state, where noise or priors are not Gaussian."""
        xp = array_namespace(state.position)
        data = gaussian_targets(self.posterior, state, streams)
        drawn = _output_precisions(self.posterior, state, streams)[:, self.layer.n_kept :]
        precisions = self.layer.arranged(drawn).swapaxes(1, 2)  # (n_chains, n_outputs, n_features)
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
    """The density of the kept parameters given `regression`: a state.ConditionalTarget."""

    marginal: OutputMarginal
    regression: Regression

    @property
    def kept(self) -> slice:
        return slice(0, self.n_parameters)

    @property
    def n_parameters(self) -> int:
        return self.marginal.layer.n_kept

    def potential_and_gradient(
        self, position: Array, precisions: Array, *, partition: Array | None = None, n_partitions: int = 1
    ) -> tuple[Array, Array]:
        """-log p(targets | kept parameters) - log prior of these, without factors of precisions alone.

        There are no partial gradients: the determinant is no sum over cases.
        """
        assert partition is None and n_partitions == 1
        made, layer = self.marginal, self.marginal.layer
        with np.errstate(all="ignore"):  # a trajectory that blows up is a rejection, not a warning
            activity, phi = self._features(position)
            energy, slopes = regression.energy_and_gradient(phi, self.regression)
            value_gradients = layer.value_gradients(slopes, position.dtype)
            gradient = backward(
                position,
                activity,
                activity.outputs,
                layer.wiring,
                buffers=made.buffers,
                value_gradients=value_gradients,
            )
            if layer.wiring.offsets[0] is not None and 0 in value_gradients:
                units = next(link.units for link in layer.links if link.source == 0 and link.n_units > 0)
                gradient[:, layer.wiring.offsets[0]][:, units] += value_gradients[0].sum(axis=2)
            prior_energy, prior_gradient = self._prior(position, precisions)
            gradient += prior_gradient.astype(position.dtype)
            return energy + prior_energy, gradient

    def potential(self, position: Array, precisions: Array) -> Array:
        with np.errstate(all="ignore"):
            _, phi = self._features(position)
            energy, _ = regression.energy_and_gradient(phi, self.regression, with_gradient=False)
            return energy + self._prior(position, precisions)[0]

    def stepsizes(self, precisions: Array) -> Array:
        """The posterior's heuristic, (n_chains, n_kept), with other precisions in two places.

        Those that are integrated out are at their prior means. Those of the output parameters, which the
        heuristic takes to be as large as their sigmas, are at least 1/(typical square of an output): data
        hold the weights below a vaguer prior's. On the robot arm a stepsize of 2 to 3 times these accepts
        nine of ten trajectories.
        """
        made = self.marginal
        changed = _with_columns(precisions, made.groups, at_means=True).copy()
        for group in made.posterior.precision_layout.groups:
            if _feeds_outputs(group.name):
                columns = slice(group.common, group.common + 1 if group.units is None else group.units.stop)
                changed[:, columns] = changed[:, columns].clip(1 / made.output_square[:, None])
        full = made.posterior.stepsizes(changed)
        return full[:, self.kept]

    def quantities(self, position: Array, precisions: Array) -> Array:
        """As the posterior's, of the kept parameters, and with outputs for the mean m of the others."""
        xp = array_namespace(position)
        made = self.marginal
        _, phi = self._features(position)
        m = regression.means(phi, self.regression)
        at = phi[:, None][..., quantities.cases(made.posterior)]
        outputs = xp.matmul(m.swapaxes(2, 3), at).reshape(len(position), made.layer.n_outputs, -1)
        groups = quantities.sigmas(position, made.parameter_layout, made.precision_layout)
        return xp.concatenate([groups, quantities.scaled_outputs(made.posterior, outputs)], axis=1)

    def complete(self, state: ChainState, streams: Streams) -> ChainState:
        """The output parameters from Normal(m, A^-1), then the precisions given the kept parameters."""
        made = self.marginal
        _, phi = self._features(state.position)
        drawn = regression.draw(phi, self.regression, streams)
        n_chains = len(drawn)
        coefficients = drawn.swapaxes(1, 2).reshape(n_chains, made.layer.n_features, -1)
        position = state.position.copy()
        position[:, self.n_parameters :] = made.layer.flat(coefficients)
        return draw_integrated(made.posterior, replace(state, position=position), made.groups, streams)

    def _features(self, position: Array) -> tuple[Activity, Array]:
        made = self.marginal
        activity = forward(position, made.posterior.inputs, made.layer.wiring, buffers=made.buffers)
        return activity, made.layer.phi(activity, n_chains=len(position), buffers=made.buffers)

    def _prior(self, position: Array, precisions: Array) -> tuple[Array, Array]:
        made = self.marginal
        energy, gradient = prior.energy_and_gradient(
            position,
            _with_columns(precisions, made.groups, at_means=False),
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
    hidden = {name for name in names if not _feeds_outputs(name)} if "precisions" in over else set()
    return OutputMarginal(posterior, OutputLayer.of(posterior), integrated_groups(posterior, hidden))
