"""All approximations: one that is listed here can be configured, fitted, described, judged and compared."""

from __future__ import annotations

from rayfbnn.approximate.approximation import Approximation
from rayfbnn.approximate.descent import Descent
from rayfbnn.approximate.laplace import Laplace
from rayfbnn.approximate.propagation import Propagation
from rayfbnn.approximate.variational import Variational

_ALL: tuple[type[Approximation], ...] = (
    Laplace,
    Variational,
    Propagation,
    Descent,
)

APPROXIMATIONS = {each.name: each for each in _ALL}
"""Every approximation by its name, in the order in which messages list them."""
