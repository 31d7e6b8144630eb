"""What a compiled kernel needs to know of a posterior with outputs or common precisions integrated out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.plan import (
    ChainNumbers,
    PriorSegment,
    Program,
    ProgramIntegrated,
    ProgramMoved,
    ProgramRegression,
    activations_of,
    links_of,
    offsets_of,
    prior_of,
    segments_of,
)
from rayfbnn.model import prior
from rayfbnn.model.marginal import regression
from rayfbnn.model.marginal.output_layer import OutputLayer
from rayfbnn.model.marginal.precisions import Integrated, with_columns
from rayfbnn.model.marginal.targets import OutputMarginal, WithoutOutputs, WithoutPrecisions

MODEL_CODE = 0
"""Of outputs that are integrated out; no kernel looks at it."""


def program_of(marginal: WithoutPrecisions | OutputMarginal) -> Program | str:
    """The program of what is left of a posterior, or in words what of it the kernels do not cover."""
    posterior, integrated = marginal.posterior, tuple(_integrated(group) for group in marginal.groups)
    if isinstance(marginal, WithoutPrecisions):
        program = Program.of(posterior)
        return program if isinstance(program, str) else replace(program, integrated=integrated)
    layer = marginal.layer
    links = links_of(layer.wiring)
    if isinstance(links, str):
        return links
    n_moved = len(marginal.moved)
    kept = segments_of(posterior, layer.n_kept)
    return Program(
        units=layer.wiring.units,
        activations=activations_of(layer.wiring),
        links=links,
        offsets=offsets_of(layer.wiring),
        model=MODEL_CODE,
        alpha=math.inf,
        n_targets=layer.n_outputs,
        n_parameters=layer.n_kept + n_moved,
        segments=(*kept, PriorSegment(layer.n_kept, layer.n_kept + n_moved, math.inf)),
        integrated=integrated,
        regression=ProgramRegression(
            features=_features(layer),
            n_systems=layer.n_systems,
            n_each=layer.n_outputs // layer.n_systems,
            is_dual=layer.is_dual,
            moved=tuple(_moved(group, layer) for group in marginal.moved),
        ),
    )


@dataclass(frozen=True)
class MarginalNumbers:
    """What differs from chain to chain, as ChainNumbers has it for posteriors.

    precisions  (n_chains, n_parameters): those of the parameters, the factors a where they are integrated
                out, 0 for what moves along
    constant    (n_chains,): what the kernel leaves out of the energy
    """

    precisions: Array
    constant: Array

    def potential(self, prior_energy: Array, terms: Array) -> Array:
        return prior_energy - terms + self.constant


def numbers_of(
    target: WithoutOutputs | WithoutPrecisions, precisions: Array
) -> MarginalNumbers | ChainNumbers:
    """Each chain's numbers given its precisions (n_chains, n_precisions)."""
    if isinstance(target, WithoutPrecisions):
        return prior_of(target.posterior, with_columns(precisions, target.groups, value=1.0))
    xp = array_namespace(precisions)
    made, given = target.marginal, target.regression
    n_each = given.targets.shape[2]
    constant = -regression.log_normaliser(given)
    if not made.layer.is_dual:  # log|A| - log|S|, where the dual form has log|B|
        constant -= 0.5 * n_each * xp.log(given.prior).sum(axis=(1, 2))
    return MarginalNumbers(kept_precisions(target, precisions, integrated=1.0), constant)


def kept_precisions(target: WithoutOutputs, precisions: Array, *, integrated: float) -> Array:
    """Those of the parameters, 0 for what moves along; (n_chains, n_parameters).

    integrated  what common precisions that are integrated out are taken for
    """
    made = target.marginal
    ruling = prior.parameter_precisions(
        with_columns(precisions, made.groups, value=integrated), made.posterior.precision_layout
    )
    found = array_namespace(precisions).zeros((len(ruling), target.n_parameters))
    found[:, : target.n_kept] = ruling[:, : target.n_kept]
    return found


def _integrated(group: Integrated) -> ProgramIntegrated:
    alpha = group.precision.prior.alphas[0]
    return ProgramIntegrated(
        group.part.start, group.part.stop, alpha + group.size, alpha / group.precision.mean
    )


def _moved(group: Integrated, layer: OutputLayer) -> ProgramMoved:
    part = layer.features_of(group)
    return ProgramMoved(part.start, part.stop, group.precision.prior.alphas[0] / 2, group.precision.mean)


def _features(layer: OutputLayer) -> tuple[tuple[int, int], ...]:
    """Rows of the links' sources; the row behind the last unit is of ones."""
    found = []
    for link in layer.links:
        n_units = layer.wiring.units[link.source]
        for row in range(n_units + 1)[link.rows] if isinstance(link.rows, slice) else link.rows.tolist():
            found.append((link.source, -1 if row == n_units else int(row)))
    return tuple(found)
