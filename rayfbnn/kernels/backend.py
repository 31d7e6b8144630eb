"""The interfaces of compiled code such as C++ or CUDA kernels: for trajectories and for sums over draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rayfbnn.arrays import Array
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid import WholeHybrid
from rayfbnn.state import Advance, Kick, Target

KICK = -1
"""The number of steps that requests one kick by half the stepsizes from a kernel, without a potential."""


@dataclass(frozen=True)
class NotCovered:
    """A backend's answer for a target that it cannot run.

    reason  a few words that can follow a name in brackets, such as "softmax layers"
    """

    reason: str


@dataclass(frozen=True)
class Compiled:
    """A backend's answer for a target that it can run.

    advance  runs the target, and every target that a schedule derives from it: tempered, with other data, or
             with outputs or precisions integrated out. Targets that the backend does not cover run in array
             code.
    name     the name of the kernel that runs the target, for people
    kick     takes one gradient of a posterior; array code unless the backend has something faster
    whole_hybrid  runs whole updates by hybrid Monte Carlo; None if array code makes their choices
    """

    advance: Advance
    name: str
    kick: Kick = leapfrog.kick
    whole_hybrid: WholeHybrid | None = None


class Backend(Protocol):
    """One way to run trajectories. To add another, write it in a new file and list it in choose.backends."""

    @property
    def name(self) -> str:
        """The name that a store records. It is known before the data and the device are."""

    @property
    def keyword(self) -> str:
        """The value of RAYFBNN_KERNELS that selects this backend, or "" if none does."""

    def check(self, target: Target) -> NotCovered | None:
        """Return the reason why no device can run the target, or None. This reads no arrays."""

    def compile(self, target: Target) -> Compiled | NotCovered:
        """Return the code that runs the target, or the reason why this backend cannot run it."""


class Reducer(Protocol):
    """Sums over draws of the networks of a posterior at some cases, on the host or on a device.

    In all methods positions are (n_draws, n_parameters) in the dtype of the posterior and in C order, and the
    sums over draws are added to the last arguments, which are in C order and float64. All are NumPy's.
    """

    def outputs(self, positions: Array) -> Array:
        """Return the outputs of each draw, (n_draws, n_outputs, n_cases), or (..., n_cases * n_cells)."""

    def add_moments(
        self,
        positions: Array,
        sigmas: Array,
        pieces: Array,
        shift: Array,
        sums: tuple[Array, Array, Array],
    ) -> None:
        """Add the mean m of each value given each draw.

        Parameters
        ----------
        sigmas                           as in `add_distribution`
        pieces : (n_draws,)              numbers of pieces; successive draws of one are added fast
        shift : (n_values, n_cases)
        sums                             of m - shift by piece (n_pieces, n_values, n_cases), of its square
                                         (n_values, n_cases), and of the variance of heteroscedastic noise,
                                         of a time, or of what dispersion adds to a count

        For other data models the last sums become NaN if an output is not finite; so they do for times.
        """

    def add_scores(
        self, positions: Array, noise: Array, targets: Array, maxima: Array, scaled: Array
    ) -> None:
        """Add the joint density of each case's targets: log sum = maxima + log(scaled), (n_cases,) each.

        noise    (n_draws, n_targets) precisions; no targets without noise
        targets  (n_cases, n_targets), standardised
        """

    def add_distribution(self, positions: Array, sigmas: Array, guesses: Array, sums: Array) -> None:
        """Add F, f and f' at guesses (n_guesses, n_targets, n_cases) to (3, n_guesses, n_targets, n_cases).

        They are those of `DataModel.distribution`, but f' of counts is left as it is.

        sigmas  (n_draws, n_targets) of the noise or the dispersion; no targets without either, or for
                heteroscedastic noise
        """

    def add_mass(self, positions: Array, sigmas: Array, counts: Array, sums: Array) -> None:
        """Add the probabilities of counts (n_counts, n_targets, n_cases) to sums of the same shape.

        sigmas  as in `add_distribution`
        """
