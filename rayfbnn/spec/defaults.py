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

_KEPT_ITERATIONS_OF_LARGE = 1000
# For the default network of many cases, whose predictions agree long before (docs/decisions/0017).
_KEPT_ITERATIONS_OF_WIDE = 2000
_MOST_TUNING_ITERATIONS, _MOST_TUNING_ITERATIONS_OF_LARGE = 500, 200
# Cases times inputs of a large table, docs/decisions/0018.
_LARGE = 60_000
# Cases from which on the default network of many cases has hybrid too.
_LARGE_WIDE = 3000
# Chains of a large table or of wide layers do not gain from one another, and fewer in a batch keep more
# cores busy.
FEW_CHAINS_PER_BATCH = 2
# In these iterations the sigmas of weights stay at their start: drawn while weights are zero, they collapse.
_FIRST_ITERATIONS = 40
# The stepsize is jittered over 0.2 decades because a trajectory whose length is a period of the target would
# come back to its start every time.
_AUTOMATIC: dict[str, Any] = {"stepsize": AUTO, "stepsize_jitter": -0.2, "scaling": AUTO}
_STEPS, _WINDOW = 32, 4  # of hybrid; docs/decisions/0017
_STEPS_OF_LARGE_WIDE, _WINDOW_OF_LARGE_WIDE = 100, 8
_RESCALING_STEPSIZE = 1.0  # of the logarithm of the factor
_MAX_SIGMAS = 100  # networks with more do not rescale them one by one: each costs an energy


def is_large_table(*, n_cases: int, n_inputs: int, is_wide: bool = False) -> bool:
    """Return True if a table is so large that nearly all of the time goes into gradients.

    is_wide  whether its network is the default one for many cases
    """
    return n_cases * n_inputs >= _LARGE or (is_wide and n_cases >= _LARGE_WIDE)


def default_phases(
    network: NetworkSpec,
    model: DataModel,
    *,
    is_tempered: bool,
    iterations: int | None = None,
    is_large: bool = False,
    is_wide: bool = False,
    is_divided: bool = False,
) -> tuple[PhaseSpec, ...]:
    """Return one or two phases that tune, then one of `iterations` whose draws are kept.

    The first phase holds the sigmas of the weights fixed. The second one is half as long as the kept phase,
    and at most 500 iterations, or 200 for a large table. If `iterations` is None, the kept phase has as
    many of hybrid-marginal or of hybrid as is usual for the data model, or 2000 for the default network of
    many cases, or 1000 for a large table.
    A data model may do without the first (`starts_with_sigmas_held`).

    Where the outputs can be integrated out, trajectories are those of hybrid-marginal, at first over the
    outputs alone, then over common precisions too. Elsewhere they are those of hybrid, and each sigma is
    rescaled in turn unless there are too many. All sigmas of what leads into a layer are rescaled together
    in every network. For a large table trajectories are those of hybrid, without the rescaling of single
    sigmas, and three times as long for the default network of many cases. They are also those of hybrid if
    the cases are divided into parts, because the outputs cannot be integrated out.
    """
    first: Operation
    later: Operation
    rescalings = [Rescale(along="incoming", stepsize=_RESCALING_STEPSIZE)]
    leaves_outputs = bool(network.hidden) and not is_divided
    leaves_outputs = leaves_outputs and not why_outputs_stay(network, model, is_tempered=is_tempered)
    if iterations is None:
        if is_large:
            iterations = _KEPT_ITERATIONS_OF_LARGE
        elif is_wide:
            iterations = _KEPT_ITERATIONS_OF_WIDE
        else:
            iterations = model.usual_marginal_iterations if leaves_outputs else model.usual_iterations
    if leaves_outputs and not is_large:
        first = HybridMarginal(over=("outputs",), steps=AUTO, **_AUTOMATIC)
        later = HybridMarginal(over=("outputs", "precisions"), steps=AUTO, **_AUTOMATIC)
    else:
        is_both = is_large and is_wide
        steps, window = (_STEPS_OF_LARGE_WIDE, _WINDOW_OF_LARGE_WIDE) if is_both else (_STEPS, _WINDOW)
        first = later = Hybrid(steps=steps, window=window, **_AUTOMATIC)
        if _n_sigmas(network) <= _MAX_SIGMAS and not is_large:
            rescalings.append(Rescale(along="sigmas", stepsize=_RESCALING_STEPSIZE))
    noise: tuple[Operation, ...] = (SampleNoise(),) if model.has_noise else ()
    update = (SampleSigmas(), *rescalings, Heatbath(), later)
    held = PhaseSpec(iterations=_FIRST_ITERATIONS, keep=False, operations=(*noise, Heatbath(), first))
    most = _MOST_TUNING_ITERATIONS_OF_LARGE if is_large else _MOST_TUNING_ITERATIONS
    n_tuning = min(max(_FIRST_ITERATIONS, iterations // 2), most)
    tuned = PhaseSpec(iterations=n_tuning, keep=False, operations=update)
    kept = PhaseSpec(iterations=iterations, operations=update)
    return (held, tuned, kept) if model.starts_with_sigmas_held else (tuned, kept)


def default_annealing() -> tuple[Operation, ...]:
    """Return the operations of annealed importance sampling where a configuration names no phases.

    The stepsize is a factor of the heuristic stepsizes, which become smaller as the likelihood gains weight.
    It therefore needs no tuning.
    """
    return (SampleSigmas(), Heatbath(), Hybrid(steps=20, stepsize=0.3, stepsize_jitter=-0.2))


def _n_sigmas(network: NetworkSpec) -> int:
    """Return the number of sigmas of source units."""
    return sum(group.shape[0] for group in network.groups() if math.isfinite(group.prior.alphas[1]))
