"""The phases of a configuration that names none."""

from __future__ import annotations

import math
from typing import Any

from rayfbnn.mcmc.heatbath import Heatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.model_updates import Rescale, SampleNoise, SampleSigmas
from rayfbnn.mcmc.operation import AUTO, Operation
from rayfbnn.model.architecture import NetworkSpec
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.marginal.output_layer import why_outputs_stay
from rayfbnn.spec.sections import PhaseSpec

KEPT_ITERATIONS = 4000
_MOST_TUNING_ITERATIONS = 500
# In these iterations the sigmas of weights stay at their start: drawn while weights are zero, they collapse.
_FIRST_ITERATIONS = 40
# The stepsize is jittered over 0.2 decades because a trajectory whose length is a period of the target would
# come back to its start every time.
_AUTOMATIC: dict[str, Any] = {"stepsize": AUTO, "stepsize_jitter": -0.2, "scaling": AUTO}
_STEPS, _WINDOW = 32, 4  # of hybrid; docs/decisions/0017
_RESCALING_STEPSIZE = 1.0  # of the logarithm of the factor
_MAX_SIGMAS = 100  # networks with more do not rescale them one by one: each costs an energy


def default_phases(
    network: NetworkSpec, model: DataModel, *, is_tempered: bool, iterations: int
) -> tuple[PhaseSpec, ...]:
    """Return one or two phases that tune, then one of `iterations` whose draws are kept.

    The first phase holds the sigmas of the weights fixed. The second one is half as long as the kept phase,
    and at most 500 iterations.
    A data model may do without the first (`starts_with_sigmas_held`).

    Where the outputs can be integrated out, trajectories are those of hybrid-marginal, at first over the
    outputs alone, then over common precisions too. Elsewhere they are those of hybrid, and each sigma is
    rescaled in turn unless there are too many. All sigmas of what leads into a layer are rescaled together
    in every network.
    """
    first: Operation
    later: Operation
    rescalings = [Rescale(along="incoming", stepsize=_RESCALING_STEPSIZE)]
    if network.hidden and why_outputs_stay(network, model, is_tempered=is_tempered) is None:
        first = HybridMarginal(over=("outputs",), steps=AUTO, **_AUTOMATIC)
        later = HybridMarginal(over=("outputs", "precisions"), steps=AUTO, **_AUTOMATIC)
    else:
        first = later = Hybrid(steps=_STEPS, window=_WINDOW, **_AUTOMATIC)
        if _n_sigmas(network) <= _MAX_SIGMAS:
            rescalings.append(Rescale(along="sigmas", stepsize=_RESCALING_STEPSIZE))
    noise: tuple[Operation, ...] = (SampleNoise(),) if model.has_noise else ()
    update = (SampleSigmas(), *rescalings, Heatbath(), later)
    held = PhaseSpec(iterations=_FIRST_ITERATIONS, keep=False, operations=(*noise, Heatbath(), first))
    n_tuning = min(max(_FIRST_ITERATIONS, iterations // 2), _MOST_TUNING_ITERATIONS)
    tuned = PhaseSpec(iterations=n_tuning, keep=False, operations=update)
    kept = PhaseSpec(iterations=iterations, operations=update)
    return (held, tuned, kept) if model.starts_with_sigmas_held else (tuned, kept)


def _n_sigmas(network: NetworkSpec) -> int:
    """Return the number of sigmas of source units."""
    return sum(group.shape[0] for group in network.groups() if math.isfinite(group.prior.alphas[1]))
