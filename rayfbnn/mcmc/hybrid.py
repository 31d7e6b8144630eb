"""Hybrid Monte Carlo with acceptance windows, and the momentum updates around it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import require_finite_start, total_energy
from rayfbnn.mcmc.stepsizes import scaled_stepsizes
from rayfbnn.state import Advance, ChainState, HMCInfo, Target, Trajectory
from rayfbnn.streams import Purpose, Streams


def heatbath(state: ChainState, streams: Streams, *, decay: float = 0.0) -> tuple[ChainState, None]:
    """Refresh the momentum: p becomes decay p + sqrt(1 - decay**2) n, n standard normal.

    Neal (1996) sec. 3.5.3 (persistence); decay 0 forgets the old momentum.
    """
    noise = streams.normal(Purpose.MOMENTUM, state.momentum.shape[1:])
    momentum = decay * state.momentum + math.sqrt(1 - decay**2) * noise
    return replace(state, momentum=momentum.astype(state.momentum.dtype)), None


def radial_heatbath(state: ChainState, streams: Streams) -> tuple[ChainState, None]:
    """Draw the length of the momentum anew and keep its direction: |p|**2 ~ chi squared, n_parameters d.f."""
    xp = array_namespace(state.momentum)
    squares = xp.square(state.momentum.astype(xp.float64)).sum(axis=1)
    new_squares = 2 * xp.exp(streams.log_gamma(state.momentum.shape[1] / 2, Purpose.MOMENTUM))
    factor = xp.sqrt(new_squares / xp.where(squares > 0, squares, 1.0))  # (n_chains,)
    return replace(state, momentum=(factor[:, None] * state.momentum).astype(state.momentum.dtype)), None


def negate(state: ChainState, streams: Streams) -> tuple[ChainState, None]:
    """Reverse the momentum; after `hybrid`, which reverses it on acceptance, it goes on in its direction."""
    return replace(state, momentum=-state.momentum), None


def hybrid(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    steps: int,
    stepsize: float,
    window: int = 1,
    jump: int = 1,
    partitions: int = 1,
    stepsize_jitter: float | None = None,
    scales: tuple[float, ...] = (),
    advance: Advance = leapfrog.advance,
) -> tuple[ChainState, HMCInfo]:
    """One hybrid Monte Carlo update of every chain.

    A trajectory of L = steps leapfrog steps passes through the current state at a random offset from its
    start: its states are 0 .. L, the current one is state `offset`, uniform on 0 .. W - 1. The first W
    states are the reject window, the last W the accept window (they may overlap), each with the free energy
    F = -log sum exp(-H). The accept window is chosen with probability min(1, exp(F_reject - F_accept)), and
    in the chosen window a state with probability proportional to exp(-H). Momentum is reversed on
    acceptance, and only then. Neal (1994), "An improved acceptance procedure for the hybrid Monte Carlo
    algorithm"; Neal (1996) sec. 3.5.2. W = 1 is plain hybrid Monte Carlo; W = L + 1 always accepts.

    Parameters
    ----------
    steps, window, partitions : int        L, W, and the number K of partial gradients in a step
    jump : int              only every jump-th state is looked at: L and W then count these states
    stepsize, stepsize_jitter : float      factor on target.stepsizes, see `jitter.jittered_stepsize`
    scales : floats         more factors, one for each group of coordinates, see scaling.py; or none
    advance : runs a piece of trajectory; compiled ones take the place of `leapfrog.advance`

    Returns
    -------
    The new state, and HMCInfo with F_accept - F_reject as energy_change; on a device NaN where the starting
    energy was not finite, which on the host is an error at once.
    """
    xp = array_namespace(state.position)
    precisions = state.precisions
    steps //= jump  # of `jump` leapfrog steps each
    order = streams.permutation(partitions, Purpose.PARTITION_ORDER) if partitions > 1 else None
    stepsizes = scaled_stepsizes(target, state, stepsize, stepsize_jitter, streams, scales)
    offset = streams.integers(window, Purpose.WINDOW_OFFSET)  # (n_chains,)
    gumbel = -xp.log(-xp.log(streams.uniform(Purpose.WINDOW_STATE, (min(steps + 1, 2 * window),))))

    here = Trajectory(state.position, state.momentum, precisions, stepsizes)
    _, start_potential = advance(target, here, n_steps=0, order=order)
    start = TrajectoryState(state.position, state.momentum, total_energy(start_potential, state.momentum))
    is_finite = require_finite_start(start.energy, streams)

    reject = Window.empty(start).with_state(start, offset <= window - 1, gumbel[:, 0])
    accept = Window.empty(start).with_state(start, offset >= steps - window + 1, gumbel[:, 0])
    diverged = xp.zeros(streams.n_chains, dtype=bool)
    current = start
    for seen, (done, n_steps) in enumerate(pieces(steps, window), start=1):
        if 0 < done < window:
            current = current.restored(start, done == offset)
        backwards = offset > done
        signed = xp.where(backwards[:, None], -stepsizes, stepsizes)
        moved, potential = advance(
            target,
            Trajectory(current.position, current.momentum, precisions, signed),
            n_steps=n_steps * jump,
            order=order if order is None else xp.where(backwards[:, None], reversed_order(order), order),
        )
        energy = total_energy(potential, moved.momentum)
        current = TrajectoryState(moved.position, moved.momentum, energy)
        diverged |= ~xp.isfinite(current.energy)
        place = xp.where(backwards, offset - (done + n_steps), done + n_steps)
        reject = reject.with_state(current, place <= window - 1, gumbel[:, seen])
        accept = accept.with_state(current, place >= steps - window + 1, gumbel[:, seen])

    energy_change = reject.log_weight - accept.log_weight
    accepted = xp.log(streams.uniform(Purpose.ACCEPT)) < -energy_change
    if is_finite is not None:
        energy_change = xp.where(is_finite, energy_change, xp.nan)
    chosen = xp.where(accepted[:, None], accept.position, reject.position)
    momentum = xp.where(accepted[:, None], -accept.momentum, reject.momentum)
    return ChainState(chosen, momentum, precisions), HMCInfo(accepted, energy_change, diverged)


def pieces(steps: int, window: int) -> list[tuple[int, int]]:
    """(steps done before, number of steps) of each call of `advance`.

    Single steps through both windows, where every state counts, and all the steps between them in one.
    Until window - 1 steps are done chains may differ in direction; after that all are at the state numbered
    as the steps done.
    """
    last_of_reject, first_of_accept = window - 1, steps - window + 1
    if first_of_accept <= last_of_reject:
        return [(done, 1) for done in range(steps)]
    ahead = [(done, 1) for done in range(last_of_reject)]
    middle = [(last_of_reject, first_of_accept - last_of_reject)]
    return ahead + middle + [(done, 1) for done in range(first_of_accept, steps)]


def reversed_order(order: Array) -> Array:
    """The order a[0], a[K-1], ..., a[1] that undoes a step in the order a; (n_chains, n_partitions)."""
    xp = array_namespace(order)
    return xp.concatenate([order[:, :1], order[:, :0:-1]], axis=1)


@dataclass(frozen=True)
class TrajectoryState:
    """One state of every chain's trajectory, with its total energy (n_chains,)."""

    position: Array
    momentum: Array
    energy: Array

    def restored(self, start: TrajectoryState, is_restored: Array) -> TrajectoryState:
        """`start` for the chains that is_restored names, this state for the others."""
        xp = array_namespace(self.position)
        return TrajectoryState(
            xp.where(is_restored[:, None], start.position, self.position),
            xp.where(is_restored[:, None], start.momentum, self.momentum),
            xp.where(is_restored, start.energy, self.energy),
        )


@dataclass(frozen=True)
class Window:
    """A window's weight so far, and the state drawn from it so far, for every chain.

    log_weight (n_chains,)  log sum exp(-H) of its states, -inf while it has none
    best_score (n_chains,)  the largest -H + Gumbel noise; the state that attains it is a draw with
                            probability proportional to exp(-H), so one is kept however many are seen
    """

    log_weight: Array
    best_score: Array
    position: Array
    momentum: Array

    @staticmethod
    def empty(start: TrajectoryState) -> Window:
        xp = array_namespace(start.energy)
        nothing = xp.full_like(start.energy, -xp.inf)
        return Window(nothing, nothing, start.position, start.momentum)

    def with_state(self, state: TrajectoryState, is_member: Array, gumbel: Array) -> Window:
        """The window with one more state, in the chains where it is a member of it."""
        xp = array_namespace(self.log_weight)
        log_weight = xp.where(is_member, -state.energy, -xp.inf)
        score = log_weight + gumbel
        is_better = score > self.best_score
        return Window(
            log_add_exp(self.log_weight, log_weight),
            xp.where(is_better, score, self.best_score),
            xp.where(is_better[:, None], state.position, self.position),
            xp.where(is_better[:, None], state.momentum, self.momentum),
        )


def log_add_exp(a: Array, b: Array) -> Array:
    """log(exp(a) + exp(b)), -inf if both are; CuPy's logaddexp makes NaN of that."""
    xp = array_namespace(a)
    high, low = xp.maximum(a, b), xp.minimum(a, b)
    with np.errstate(invalid="ignore"):
        return xp.where(low == -xp.inf, high, high + xp.log1p(xp.exp(low - high)))
