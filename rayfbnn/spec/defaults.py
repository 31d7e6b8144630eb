"""The defaults of a configuration: its network, priors and phases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rayfbnn.mcmc.heatbath import Heatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.model_updates import Rescale, SampleNoise, SampleSigmas
from rayfbnn.mcmc.operation import AUTO, Operation
from rayfbnn.mcmc.sghmc import Sghmc
from rayfbnn.model.architecture import LayerSpec, NetworkSpec
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.spec.written import DEFAULT_HIDDEN, PhaseSpec

HIDDEN_OF_MANY = (LayerSpec(units=16, activation="tanh"), LayerSpec(units=16, activation="tanh"))
"""The layers for many cases with real targets."""
_HIDDEN_OF_READINGS = (LayerSpec(units=40, activation="sin"),)
"""The layer for classes as targets, and inputs that are readings in one unit, such as pixels."""
_MANY = 250  # cases


def default_hidden(*, n_cases: int, is_real: bool, are_readings: bool) -> tuple[LayerSpec, ...]:
    """Return the hidden layers for a configuration that leaves them out.

    Chains of a network that is too small sit in different modes and predict worse. Two layers of 16 units
    were about as good as one of 32, and took two thirds of the time if outputs are integrated out, because
    that cost grows with the square of the last layer's units (docs/decisions/0017).

    n_cases       number of cases of the training table; 0 while it is not known
    is_real       whether targets are real numbers
    are_readings  whether the inputs are readings in one unit, such as pixels
    """
    if are_readings:
        return _HIDDEN_OF_READINGS
    return HIDDEN_OF_MANY if is_real and n_cases >= _MANY else DEFAULT_HIDDEN


def default_sigma(width: str, n_targets: int) -> str:
    """Return the prior of noise or dispersion: a sigma for each target, all with the prior of a single one.

    Targets that are standardised together need not have noise of the same size. With a width of 0.2, the
    prior counts as half a case with noise of a fifth of the target's standard deviation; 0.3 widened the
    noise of targets that have little (docs/decisions/0017). The dispersion of counts costs nothing if they
    are Poisson, and without it predictions are poor if they are not; docs/model.md has the figures.
    """
    return f"{width}:0.5" if n_targets == 1 else f"{width}::0.5"


def default_priors(
    hidden: Sequence[LayerSpec],
    *,
    n_inputs: int,
    bias: float,
    is_real: bool,
    input_width: float | None = None,
    linear_width: float = 1.0,
    output_width: float | None = None,
    alpha: float = 4.0,
    relevance: float = 4.0,
    are_readings: bool = False,
) -> dict[str, str]:
    """Return the priors of a network with layers that feed one another, and inputs that feed the outputs too.

    bias          width for the biases of the outputs, unless inputs are readings
    is_real       whether targets are real numbers
    input_width   width for the weights from all inputs together to a unit of the first hidden layer
    linear_width  width for the weights from all inputs together to an output; 0 leaves these weights out
    output_width  width for the weights from all units of the last hidden layer together to an output
    alpha         alpha of the sigmas that the weights of hidden layers share
    relevance     alpha of the sigma that each input has; infinite for no such sigma
    are_readings  whether the inputs are readings in one unit, such as pixels

    The priors are meant for inputs and real targets of standard deviation one. The sum of a standardised
    case's inputs times weights of width w has the standard deviation w sqrt(n_inputs), so widths of weights
    from the inputs shrink as 1 / sqrt(n_inputs). If there are several inputs, each has its own sigma, and can
    be irrelevant.

    For real targets, weights into units are small and weights out of them large. This makes functions smooth:
    a unit with inputs of standard deviation 0.5 hardly bends. Units for other targets bend. If classes are
    certain, chains would otherwise wander between smooth units and direct weights, which say the same.

    Readings in one unit share a sigma. If there are hidden units, no weights lead from the readings to the
    outputs. Biases and weights out of the units are larger than elsewhere, because this predicts handwritten
    digits best. The units are sines, and the large biases spread out their phases. The prior of the outputs
    is then nearly a Gaussian process that makes cases alike if they are close to each other (Rahimi and Recht
    2007, "Random features for large-scale kernel machines").

    Alphas are larger than in Neal's examples. With 0.5 a sigma has a tail over many powers of ten. Functions
    hardly change there, while chains wander through it. With 4 the prior's 5 and 95 % points are a factor of
    3.7 apart. The number of cases does not matter, because a prior states the knowledge before any case is
    seen. docs/decisions/0017 has the figures.
    """
    usual_input_width, usual_output_width = (0.5, 4.0) if is_real else (2.0, 1.0)
    unit_bias = 1.0
    if are_readings:
        usual_input_width, usual_output_width = 1.0, 8.0
        bias, unit_bias = 4.0, 2.0
        relevance = math.inf
        linear_width = 0.0 if hidden else linear_width
    input_width = usual_input_width if input_width is None else input_width
    output_width = usual_output_width if output_width is None else output_width
    # With a single input, two sigmas would describe one thing.
    of_units = f":{relevance:g}" if n_inputs > 1 and math.isfinite(relevance) else ""
    of_direct = of_units if is_real else ""
    priors: dict[str, str] = {}
    if hidden:
        priors["ih0"] = f"{_two_digits(input_width / math.sqrt(n_inputs))}:{alpha:g}{of_units}"
        priors["bh0"] = f"{unit_bias:g}:{alpha:g}"
        for layer in range(1, len(hidden)):
            priors |= {f"h{layer - 1}h{layer}": f"x1:{alpha:g}", f"bh{layer}": f"{unit_bias:g}:{alpha:g}"}
        priors[f"ho{len(hidden) - 1}"] = f"x{output_width:g}:{alpha:g}"
    if linear_width:
        priors["io"] = f"{_two_digits(linear_width / math.sqrt(n_inputs))}:2{of_direct}"
    return priors | {"bo": f"{bias:g}"}


def _two_digits(width: float) -> str:
    return f"{width:.2g}"


FIRST_ITERATIONS = 100
"""Kept iterations before the first verdict on a run of open length."""
_KEPT_ITERATIONS_OF_LARGE = 1000
# For the default network of many cases. Its predictions agree long before that (docs/decisions/0017).
_KEPT_ITERATIONS_OF_WIDE = 2000
# The default length of networks with many parameters, such as those of hundreds of inputs, keeps draws of
# about this size, but at least 1000 of each chain.
_MOST_BYTES_OF_DRAWS = 200e6
_MOST_TUNING_ITERATIONS, _MOST_TUNING_ITERATIONS_OF_LARGE = 500, 200
# Tuning gets shorter as a table grows towards a large one, because its time would otherwise jump there. An
# iteration of hybrid-marginal takes longer than one of hybrid, so its tuning ends shorter.
_LEAST_TUNING_ITERATIONS_OF_MARGINAL = 100
# Cases times inputs of a large table (docs/decisions/0018).
_LARGE = 60_000
# With this many cases, the default network of many cases has hybrid too.
_LARGE_WIDE = 3000
# On a cluster, whose cores are not known when the store is created. Chains of a large table do not gain from
# sharing a batch.
FEW_CHAINS_PER_BATCH = 2
_USUAL_CHAINS_PER_BATCH = 8
# Hidden values of a chain, cases times units, from which half of a batch of eight takes at most 0.72 of its
# time. Below, it takes 0.75 to 0.97 (docs/decisions/0017).
_WORTH_DIVIDING = 5000
# In these iterations the sigmas of weights stay at their start. Drawn while weights are zero, they collapse.
_FIRST_ITERATIONS = 40
# The stepsize is jittered over 0.2 decades, because a trajectory as long as a period of the target would
# return to its start every time.
_AUTOMATIC: dict[str, Any] = {"stepsize": AUTO, "stepsize_jitter": -0.2, "scaling": AUTO}
_STEPS, _WINDOW = 32, 4  # of hybrid; docs/decisions/0017
_STEPS_OF_LARGE_WIDE, _WINDOW_OF_LARGE_WIDE = 100, 8
# For sghmc, whose steps are half as long as those of hybrid. Where the outputs can be integrated out, it has
# longer trajectories. With more friction the slowest quantities moved less far (docs/approximations.md).
_STEPS_OF_SGHMC, _FRICTION = 128, 0.02
_RESCALING_STEPSIZE = 1.0  # of the logarithm of the factor
_MAX_SIGMAS = 100  # networks with more do not rescale them one by one, because each costs an energy


def size_of_table(*, n_cases: int, n_inputs: int, is_wide: bool = False) -> float:
    """Return the size of a table; from 1 on it is large, and gradients take nearly all of the time.

    is_wide  whether its network is the default one for many cases
    """
    return max(n_cases * n_inputs / _LARGE, n_cases / _LARGE_WIDE if is_wide else 0.0)


def default_phases(
    network: NetworkSpec,
    model: DataModel,
    *,
    is_tempered: bool,
    iterations: int | None = None,
    size: float = 0.0,
    bytes_per_draw: int = 0,
    is_wide: bool = False,
    is_divided: bool = False,
    is_stochastic: bool = False,
) -> tuple[PhaseSpec, ...]:
    """Return one or two phases that tune, then one phase with draws that are kept.

    The first phase holds the sigmas of the weights fixed; some data models do without it
    (`starts_with_sigmas_held`). The second phase is half as long as the kept phase, but has at least 40
    iterations, and at most 500, or 200 for a large table. The kept phase has `iterations`. If this is None,
    it has 1000 for a large table, 2000 for the default network of many cases, and otherwise the data model's
    usual number for hybrid-marginal or hybrid. Both numbers decrease as the size of the table gets near 1.
    The draws of all chains, with `bytes_per_draw` for an iteration, take at most 200 MB unless that would be
    fewer than 1000.

    If targets are real and the outputs can be integrated out, trajectories are those of hybrid-marginal, at
    first over the outputs alone, then over common precisions too. Otherwise they are those of hybrid, and
    each sigma is rescaled in turn unless there are too many. In every network, all sigmas of the groups into
    a layer are rescaled together. A large table has trajectories of hybrid, without the rescaling of single
    sigmas; for the default network of many cases they are three times as long. Cases that are divided into
    parts also have hybrid, because their outputs cannot be integrated out.

    With `is_stochastic`, dynamics with friction take the place of trajectories once the stepsize has been
    found: these are the phases of the method sghmc.
    """
    first: Operation
    later: Operation
    from rayfbnn.model.output_layer import why_outputs_stay

    is_large = size >= 1
    rescalings = [Rescale(along="incoming", stepsize=_RESCALING_STEPSIZE)]
    leaves_outputs = bool(network.hidden) and not is_divided
    leaves_outputs = leaves_outputs and not why_outputs_stay(network, model, is_tempered=is_tempered)
    # The outputs of binary targets can be integrated out too, given an auxiliary variable for each case. For
    # 10 inputs and 200, 500, 1,500 and 5,900 cases, hybrid had its first ok answer in 0.5, 0.3, 0.2 and 0.14
    # of the time, with as good predictions (docs/decisions/0018).
    is_marginal = leaves_outputs and model.is_real
    if iterations is None:
        if is_large:
            iterations = _KEPT_ITERATIONS_OF_LARGE
        elif is_wide:
            iterations = _KEPT_ITERATIONS_OF_WIDE
        else:
            has_marginal = is_marginal and not is_stochastic
            iterations = model.usual_marginal_iterations if has_marginal else model.usual_iterations
        if 0 < size < 1:
            iterations = min(iterations, math.floor(_KEPT_ITERATIONS_OF_LARGE / size))
        if bytes_per_draw:
            affordable = int(_MOST_BYTES_OF_DRAWS / bytes_per_draw)
            iterations = min(iterations, max(_KEPT_ITERATIONS_OF_LARGE, affordable))
    if is_marginal and not is_large and not is_stochastic:
        first = HybridMarginal(over=("outputs",), steps=AUTO, **_AUTOMATIC)
        later = HybridMarginal(over=("outputs", "precisions"), steps=AUTO, **_AUTOMATIC)
    else:
        is_both = is_large and is_wide
        steps, window = (_STEPS_OF_LARGE_WIDE, _WINDOW_OF_LARGE_WIDE) if is_both else (_STEPS, _WINDOW)
        if is_stochastic:
            steps = _STEPS_OF_SGHMC if leaves_outputs and not is_large else 2 * steps
            first = later = Sghmc(steps=steps, stepsize=AUTO, friction=_FRICTION, scaling=AUTO)
        else:
            first = later = Hybrid(steps=steps, window=window, **_AUTOMATIC)
        if n_sigmas(network) <= _MAX_SIGMAS and not is_large:
            rescalings.append(Rescale(along="sigmas", stepsize=_RESCALING_STEPSIZE))
    noise: tuple[Operation, ...] = () if model.governed_by is None else (SampleNoise(),)
    # The momentum of sghmc persists; friction refreshes it.
    refreshment: tuple[Operation, ...] = () if is_stochastic else (Heatbath(),)
    update = (SampleSigmas(), *rescalings, *refreshment, later)
    held = PhaseSpec(iterations=_FIRST_ITERATIONS, keep=False, operations=(*noise, *refreshment, first))
    n_tuning = min(
        max(_FIRST_ITERATIONS, iterations // 2), _most_tuning_iterations(size, is_marginal=is_marginal)
    )
    tuned = PhaseSpec(iterations=n_tuning, keep=False, operations=update)
    kept = PhaseSpec(iterations=iterations, operations=update)
    return (held, tuned, kept) if model.starts_with_sigmas_held else (tuned, kept)


def _most_tuning_iterations(size: float, *, is_marginal: bool) -> int:
    """Return the most iterations of the phase that tunes, for a table of this size."""
    if size >= 1 or size == 0:
        return _MOST_TUNING_ITERATIONS_OF_LARGE if size else _MOST_TUNING_ITERATIONS
    least = _LEAST_TUNING_ITERATIONS_OF_MARGINAL if is_marginal else _MOST_TUNING_ITERATIONS_OF_LARGE
    wanted = math.floor(_LEAST_TUNING_ITERATIONS_OF_MARGINAL / size)
    return min(_MOST_TUNING_ITERATIONS, max(least, wanted))


def size_of_batches(
    chains: int, *, n_workers: int, n_hidden_values: int, is_large: bool, is_asked: bool
) -> int:
    """Return the number of chains in a batch that shares the chains among workers.

    A batch of eight chains takes much less than eight times as long as one of a single chain if the network
    and the table are small. Such chains stay together unless the number of workers was asked for.

    n_hidden_values  cases times hidden units
    is_large         whether gradients take nearly all of the time, so that chains gain nothing from a batch
    is_asked         whether the user chose the number of workers
    """
    if not is_asked and n_hidden_values < _WORTH_DIVIDING:
        return _USUAL_CHAINS_PER_BATCH
    most = FEW_CHAINS_PER_BATCH if is_large else _USUAL_CHAINS_PER_BATCH
    least = 1 if is_large or is_asked else 2
    return max(least, min(most, math.ceil(chains / n_workers)))


def default_annealing() -> tuple[Operation, ...]:
    """Return the operations of annealed importance sampling for a configuration without phases.

    The stepsize is a factor of the heuristic stepsizes, which become smaller as the likelihood gains weight.
    It therefore needs no tuning.
    """
    return (SampleSigmas(), Heatbath(), Hybrid(steps=20, stepsize=0.3, stepsize_jitter=-0.2))


def n_sigmas(network: NetworkSpec) -> int:
    """Return the number of sigmas of source units."""
    return sum(group.shape[0] for group in network.groups() if math.isfinite(group.prior.alphas[1]))
