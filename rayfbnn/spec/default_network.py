"""The network and the priors of a configuration that leaves them out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rayfbnn.model.architecture import LayerSpec

DEFAULT_HIDDEN = (LayerSpec(units=8, activation="tanh"),)
DEFAULT_NOISE = "0.3:0.5"


def default_priors(hidden: Sequence[LayerSpec], *, n_inputs: int, bias: float) -> dict[str, str]:
    """Return the priors of a network whose layers feed one another, and whose inputs feed the outputs too.

    bias  width for the biases of the outputs

    They are meant for inputs and real targets of standard deviation one. The sum of a standardised case's
    inputs times weights of width w has the standard deviation w sqrt(n_inputs), so widths of weights from
    the inputs shrink as 1 / sqrt(n_inputs).

    Alphas are larger than in Neal's examples. With 0.5 a sigma has a tail over many powers of ten, where
    functions hardly change while chains wander through it; with 4 the prior's 5 and 95 % points are a factor
    of 3.7 apart. The number of cases does not matter: a prior says what is known before any case is seen.
    docs/decisions/0017 has the figures.
    """
    priors: dict[str, str] = {}
    if hidden:
        priors |= {"ih0": f"{_two_digits(2 / math.sqrt(n_inputs))}:4", "bh0": "1:4"}
        for layer in range(1, len(hidden)):
            priors |= {f"h{layer - 1}h{layer}": "x1:4", f"bh{layer}": "1:4"}
        priors[f"ho{len(hidden) - 1}"] = "x1:4"
    return priors | {"io": f"{_two_digits(1 / math.sqrt(n_inputs))}:2", "bo": f"{bias:g}"}


def _two_digits(width: float) -> str:
    return f"{width:.2g}"
