"""The schedule of a configuration that has no phases of its own."""

from __future__ import annotations

import math
from typing import Any

from rayfbnn.mcmc.operations import (
    AUTO,
    Heatbath,
    Hybrid,
    HybridMarginal,
    Operation,
    Rescale,
    SampleNoise,
    SampleSigmas,
)
from rayfbnn.model.architecture import ModelSpec, NetworkSpec, why_outputs_stay

KEPT_ITERATIONS = 1000
_FIRST_ITERATIONS = (
    40  # with the sigmas of weights as at the start: drawn when weights are zero they collapse
)
# A jitter over 0.2 decades: a trajectory whose length fits a period of the target would come back every time.
_FOUND: dict[str, Any] = {"stepsize": AUTO, "stepsize_jitter": -0.2, "scaling": AUTO}
_STEPS, _WINDOW = 100, 10  # of hybrid; docs/benchmarks.md, "LED"
_FACTOR = 1.0  # stepsize of the logarithm of the factor of a rescaling
_MOST_SIGMAS = 100  # that are rescaled one by one: each costs an energy


def default_phases(
    network: NetworkSpec, model: ModelSpec, *, is_tempered: bool, iterations: int
) -> list[dict[str, Any]]:
    """Phases as the fields of PhaseSpec: two to get there and tune, the second half as long as the kept one.

    For class targets one, the second: fitted with the sigmas of weights held, a network with many inputs has
    learned the training cases by heart, and it takes chains long to forget them (LED).

    Where the outputs can be integrated out, trajectories are those of hybrid-marginal: at first over the
    outputs alone, then over common precisions too. Elsewhere they are those of hybrid, between rescalings of
    single sigmas. What leads into a layer is rescaled everywhere.
    """
    first: Operation
    later: Operation
    rescalings = [Rescale(along="incoming", stepsize=_FACTOR)]
    if network.hidden and why_outputs_stay(network, model, is_tempered=is_tempered) is None:
        first = HybridMarginal(over=("outputs",), steps=AUTO, **_FOUND)
        later = HybridMarginal(over=("outputs", "precisions"), steps=AUTO, **_FOUND)
    else:
        first = later = Hybrid(steps=_STEPS, window=_WINDOW, **_FOUND)
        if _n_sigmas(network) <= _MOST_SIGMAS:
            rescalings.append(Rescale(along="sigmas", stepsize=_FACTOR))
    noise: tuple[Operation, ...] = () if model.noise is None else (SampleNoise(),)
    update = (SampleSigmas(), *rescalings, Heatbath(), later)
    held = {"iterations": _FIRST_ITERATIONS, "keep": False, "operations": (*noise, Heatbath(), first)}
    return [
        *([] if model.kind == "class" else [held]),
        {"iterations": max(_FIRST_ITERATIONS, iterations // 2), "keep": False, "operations": update},
        {"iterations": iterations, "keep": True, "operations": update},
    ]


def _n_sigmas(network: NetworkSpec) -> int:
    """How many sigmas of source units there are."""
    return sum(group.shape[0] for group in network.groups() if math.isfinite(group.prior.alphas[1]))
