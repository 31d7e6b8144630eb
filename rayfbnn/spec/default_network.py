"""The default network and priors, for a configuration without them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rayfbnn.model.architecture import LayerSpec

DEFAULT_HIDDEN = (LayerSpec(units=8, activation="tanh"),)
"""The layer if the training cases are not known, or are few, or if priors are written without layers."""
HIDDEN_OF_MANY = (LayerSpec(units=16, activation="tanh"), LayerSpec(units=16, activation="tanh"))
"""The layers for many cases with real targets."""
HIDDEN_OF_READINGS = (LayerSpec(units=40, activation="sin"),)
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
        return HIDDEN_OF_READINGS
    return HIDDEN_OF_MANY if is_real and n_cases >= _MANY else DEFAULT_HIDDEN


def default_noise(n_targets: int) -> str:
    """Return the prior of the noise: a sigma for each target, all with the prior of a single target's sigma.

    Targets that are standardised together need not have noise of the same size. The prior counts as half a
    case with noise of a fifth of the target's standard deviation. With 0.3 it widened the noise of targets
    that have little (docs/decisions/0017).
    """
    return "0.2:0.5" if n_targets == 1 else "0.2::0.5"


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
