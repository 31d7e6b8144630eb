"""The network and the priors of a configuration that leaves them out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rayfbnn.model.architecture import LayerSpec

DEFAULT_HIDDEN = (LayerSpec(units=8, activation="tanh"),)


def default_noise(n_targets: int) -> str:
    """Return the prior of the noise: a sigma for each target, all with the prior that a single one has.

    Targets that are standardised together need not have noise of the same size.
    """
    return "0.3:0.5" if n_targets == 1 else "0.3::0.5"


def default_priors(
    hidden: Sequence[LayerSpec], *, n_inputs: int, bias: float, is_real: bool
) -> dict[str, str]:
    """Return the priors of a network whose layers feed one another, and whose inputs feed the outputs too.

    bias     width for the biases of the outputs
    is_real  whether targets are real numbers

    They are meant for inputs and real targets of standard deviation one. The sum of a standardised case's
    inputs times weights of width w has the standard deviation w sqrt(n_inputs), so widths of weights from
    the inputs shrink as 1 / sqrt(n_inputs). Each of several inputs has a sigma of its own, so that it can be
    irrelevant.

    For real targets weights into units are small and weights out of them large, so that functions are smooth:
    a unit with inputs of standard deviation 0.5 hardly bends. Units for other targets bend. Where classes
    are certain, chains would otherwise wander between smooth units and direct weights, which say the same.

    Alphas are larger than in Neal's examples. With 0.5 a sigma has a tail over many powers of ten, where
    functions hardly change while chains wander through it; with 4 the prior's 5 and 95 % points are a factor
    of 3.7 apart. The number of cases does not matter: a prior says what is known before any case is seen.
    docs/decisions/0017 has the figures.
    """
    reach, outwards = (0.5, "x4:4") if is_real else (2.0, "x1:4")
    of_units = ":4" if n_inputs > 1 else ""  # the sigmas of a single input would be two for one thing
    of_direct = of_units if is_real else ""
    priors: dict[str, str] = {}
    if hidden:
        priors |= {"ih0": f"{_two_digits(reach / math.sqrt(n_inputs))}:4{of_units}", "bh0": "1:4"}
        for layer in range(1, len(hidden)):
            priors |= {f"h{layer - 1}h{layer}": "x1:4", f"bh{layer}": "1:4"}
        priors[f"ho{len(hidden) - 1}"] = outwards
    return priors | {"io": f"{_two_digits(1 / math.sqrt(n_inputs))}:2{of_direct}", "bo": f"{bias:g}"}


def _two_digits(width: float) -> str:
    return f"{width:.2g}"
