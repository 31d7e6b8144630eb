"""The default phases, for a configuration without any."""

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
# For the default network of many cases. Its predictions agree long before that (docs/decisions/0017).
_KEPT_ITERATIONS_OF_WIDE = 2000
_MOST_TUNING_ITERATIONS, _MOST_TUNING_ITERATIONS_OF_LARGE = 500, 200
# Cases times inputs of a large table (docs/decisions/0018).
_LARGE = 60_000
# With this many cases, the default network of many cases has hybrid too.
_LARGE_WIDE = 3000
# Chains of a large table or of wide layers do not gain from sharing a batch, and small batches keep more
# cores busy.
FEW_CHAINS_PER_BATCH = 2
# In these iterations the sigmas of weights stay at their start. Drawn while weights are zero, they collapse.
_FIRST_ITERATIONS = 40
# The stepsize is jittered over 0.2 decades, because a trajectory as long as a period of the target would
# return to its start every time.
_AUTOMATIC: dict[str, Any] = {"stepsize": AUTO, "stepsize_jitter": -0.2, "scaling": AUTO}
_STEPS, _WINDOW = 32, 4  # of hybrid; docs/decisions/0017
_STEPS_OF_LARGE_WIDE, _WINDOW_OF_LARGE_WIDE = 100, 8
_RESCALING_STEPSIZE = 1.0  # of the logarithm of the factor
_MAX_SIGMAS = 100  # networks with more do not rescale them one by one, because each costs an energy


def is_large_table(*, n_cases: int, n_inputs: int, is_wide: bool = False) -> bool:
    """Return True if a table is so large that gradients take nearly all of the time.

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
    """Return one or two phases that tune, then one phase with draws that are kept.

    The first phase holds the sigmas of the weights fixed; some data models do without it
    (`starts_with_sigmas_held`). The second phase is half as long as the kept phase, but has at least 40
    iterations, and at most 500, or 200 for a large table. The kept phase has `iterations`. If this is None,
    it has 1000 for a large table, 2000 for the default network of many cases, and otherwise the data model's
    usual number for hybrid-marginal or hybrid.

    If the outputs can be integrated out, trajectories are those of hybrid-marginal, at first over the outputs
    alone, then over common precisions too. Otherwise they are those of hybrid, and each sigma is rescaled in
    turn unless there are too many. In every network, all sigmas of the groups into a layer are rescaled
    together. A large table has trajectories of hybrid, without the rescaling of single sigmas; for the
    default network of many cases they are three times as long. Cases that are divided into parts also have
    hybrid, because their outputs cannot be integrated out.
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
    """Return the operations of annealed importance sampling for a configuration without phases.

    The stepsize is a factor of the heuristic stepsizes, which become smaller as the likelihood gains weight.
    It therefore needs no tuning.
    """
    return (SampleSigmas(), Heatbath(), Hybrid(steps=20, stepsize=0.3, stepsize_jitter=-0.2))


def _n_sigmas(network: NetworkSpec) -> int:
    """Return the number of sigmas of source units."""
    return sum(group.shape[0] for group in network.groups() if math.isfinite(group.prior.alphas[1]))
