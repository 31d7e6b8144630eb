"""Hybrid Monte Carlo with acceptance windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.automatic import Measuring
from rayfbnn.mcmc.energy import require_finite_start, total_energy
from rayfbnn.mcmc.leapfrog import Integrator, Order, drawn_order, integrator_of, reversed_order
from rayfbnn.mcmc.operation import Auto, BuildContext, Tunable
from rayfbnn.mcmc.stepsizes import scaled_stepsizes
from rayfbnn.state import Advance, ChainState, HMCInfo, Target, Trajectory, Update
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class Hybrid(Tunable):
    """A hybrid Monte Carlo update: follow a trajectory, and accept or reject its end.

    steps, stepsize  numbers, or "auto" to let the same operation in the tuning phases find them
    window           number of states in the windows at both ends; 1 is plain hybrid Monte Carlo
    partitions       number of blocks of cases; a step uses the partial gradient of each block in turn. 1 is
                     the full gradient
    order            "cyclic": each chain visits the blocks in a circle, in a direction drawn for each
                     trajectory; absent: in a random order drawn for each trajectory
    stepsize         factor on the heuristic stepsizes
    stepsize_jitter  alpha > 0: stepsize / sqrt(Gamma(alpha/2, mean 1)) for each trajectory;
                     -a: log-uniform over a decades centred on stepsize; absent: no jitter
    jump             only the state after every `jump` steps is considered; windows consist of these states
    integrator       "leapfrog", "two-stage" or "fourth-order", with one, two or seven gradients a step
    scaling          "auto": tuning also finds a further factor on the stepsizes of each group, such as ih0;
                     absent: only the heuristic
    """

    longest: ClassVar[int] = 4096
    steps: int | Auto
    stepsize: float | Auto
    window: int = 1
    partitions: int = 1
    stepsize_jitter: float | None = None
    jump: int = 1
    integrator: Integrator = "leapfrog"
    scaling: Auto | None = None
    order: Order | None = None
    op: ClassVar[str] = "hybrid"
    is_reversible: ClassVar[bool] = True

    def build(self, context: BuildContext) -> Update:
        return partial(tuned_hybrid(self, context), target=context.target)

    def description(self) -> str:
        return f"hybrid: {self.describe_trajectories()}"


def tuned_hybrid(operation: Tunable, context: BuildContext) -> Callable[..., tuple[ChainState, HMCInfo]]:
    """Bind `hybrid` to an operation's configured or tuned settings, but not to a target.

    In tuning rounds, trajectories are also measured.
    """
    update = partial(
        hybrid,
        window=operation.window,
        jump=operation.jump,
        partitions=operation.partitions,
        partition_order=operation.order,
        stepsize_jitter=operation.stepsize_jitter,
        advance=integrator_of(operation.integrator, context.advance),
    )
    if not operation.is_automatic:
        return partial(update, steps=operation.steps, stepsize=operation.stepsize)
    if context.tuning is None or operation not in context.tuning.settings:
        raise AssertionError(f"{operation.op} has not been tuned")
    settings = context.tuning.settings[operation]
    bound = partial(update, stepsize=settings.stepsize, scales=settings.scales)
    if context.tuning.is_measured:
        return partial(bound, steps=settings.longest, measuring=Measuring(operation, settings))
    return partial(bound, steps=settings.steps)


def hybrid(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    steps: int,
    stepsize: float | Array,
    window: int = 1,
    jump: int = 1,
    partitions: int = 1,
    partition_order: Order | None = None,
    stepsize_jitter: float | None = None,
    scales: tuple[float, ...] = (),
    advance: Advance = leapfrog.advance,
    measuring: Measuring | None = None,
) -> tuple[ChainState, HMCInfo]:
    """Update every chain once by hybrid Monte Carlo.

    A trajectory of L = steps leapfrog steps has the states 0 .. L. The current state is the one numbered
    `offset`, which is uniform on 0 .. W - 1. The first W states are the reject window and the last W the
    accept window; they may overlap. Each window has the free energy F = -log sum exp(-H). The accept window
    is chosen with probability min(1, exp(F_reject - F_accept)), and within the chosen window a state is
    chosen with probability proportional to exp(-H). The momentum is reversed on acceptance only. Neal (1994),
    "An improved acceptance procedure for the hybrid Monte Carlo algorithm"; Neal (1996) sec. 3.5.2. W = 1 is
    plain hybrid Monte Carlo. W = L + 1 always accepts.

    Parameters
    ----------
    steps, window, partitions : int        L, W, and the number K of partial gradients in a step
    partition_order : str   "cyclic", or None for a random permutation, see `leapfrog.drawn_order`
    jump : int              only every jump-th state is considered; L and W then count these states
    stepsize : float or (n_chains,)        factor on target.stepsizes, of all chains or of each
    stepsize_jitter : float                see `stepsizes.jittered_stepsize`
    scales : floats         a further factor for each group of coordinates, see stepsizes.py; or empty
    advance : runs a piece of the trajectory; a compiled kernel may replace `leapfrog.advance`, and may run
        the whole update, see WholeHybrid
    measuring : measures the trajectory for tuning; the info is then a MeasuredInfo

    Returns
    -------
    The new state, and HMCInfo with energy_change = F_accept - F_reject. If the starting energy is not
    finite, the host raises SamplingError at once; a device returns NaN as the energy_change.
    """
    xp = array_namespace(state.position)
    precisions = state.precisions
    probe = None if measuring is None else measuring.probe(advance)
    run = advance if probe is None else probe
    steps //= jump  # from here on, a step is `jump` leapfrog steps
    order = drawn_order(streams, partitions, partition_order)
    stepsizes = scaled_stepsizes(target, state, stepsize, stepsize_jitter, streams, scales)
    windows = Windows(steps, window, jump)
    origin = Trajectory(state.position, state.momentum, precisions, stepsizes)
    whole = None if probe is not None else whole_hybrid_of(advance, target)
    if whole is not None:
        end, info = whole(target, origin, windows=windows, streams=streams, order=order)
        return ChainState(end.position, end.momentum, precisions), info
    _, start_potential = run(target, origin, n_steps=0, order=order)
    start = TrajectoryState(state.position, state.momentum, total_energy(start_potential, state.momentum))
    is_finite = require_finite_start(start.energy, streams)
    follow = _follow_to_the_end if window == 1 else _follow_through_windows
    reject, accept, diverged = follow(target, origin, start, streams, windows=windows, order=order, run=run)
    energy_change = reject.log_weight - accept.log_weight
    accepted = xp.log(streams.uniform(Purpose.ACCEPT)) < -energy_change
    if is_finite is not None:
        energy_change = xp.where(is_finite, energy_change, xp.nan)
    chosen = xp.where(accepted[:, None], accept.position, reject.position)
    momentum = xp.where(accepted[:, None], -accept.momentum, reject.momentum)
    info = HMCInfo(accepted, energy_change, diverged)
    if measuring is not None and probe is not None:
        info = measuring.info(info, probe)
    return ChainState(chosen, momentum, precisions), info


def _follow_to_the_end(
    target: Target,
    origin: Trajectory,
    start: TrajectoryState,
    streams: Streams,
    *,
    windows: Windows,
    order: Array | None,
    run: Advance,
) -> tuple[Window, Window, Array]:
    """Return what `_follow_through_windows` returns if each window is one state, so nothing is drawn."""
    moved, potential = run(target, origin, n_steps=windows.steps * windows.jump, order=order)
    end = TrajectoryState.at(moved, potential)
    return Window.of(start), Window.of(end), ~array_namespace(end.energy).isfinite(end.energy)


def _follow_through_windows(
    target: Target,
    origin: Trajectory,
    start: TrajectoryState,
    streams: Streams,
    *,
    windows: Windows,
    order: Array | None,
    run: Advance,
) -> tuple[Window, Window, Array]:
    """Run the trajectory; return the reject window, the accept window, and which chains diverged."""
    xp, stepsizes = array_namespace(origin.position), origin.stepsizes
    steps, window = windows.steps, windows.window
    offset = streams.integers(window, Purpose.WINDOW_OFFSET)  # (n_chains,)
    gumbel = -xp.log(-xp.log(streams.uniform(Purpose.WINDOW_STATE, (windows.n_states,))))
    reject = Window.empty(start).with_state(start, offset <= window - 1, gumbel[:, 0])
    accept = Window.empty(start).with_state(start, offset >= steps - window + 1, gumbel[:, 0])
    diverged = xp.zeros(streams.n_chains, dtype=bool)
    current = start
    for seen, (done, n_steps) in enumerate(pieces(steps, window), start=1):
        if 0 < done < window:
            current = current.restored(start, done == offset)
        backwards = offset > done
        signed = xp.where(backwards[:, None], -stepsizes, stepsizes)
        moved, potential = run(
            target,
            Trajectory(current.position, current.momentum, origin.precisions, signed),
            n_steps=n_steps * windows.jump,
            order=order if order is None else xp.where(backwards[:, None], reversed_order(order), order),
        )
        current = TrajectoryState.at(moved, potential)
        diverged |= ~xp.isfinite(current.energy)
        place = xp.where(backwards, offset - (done + n_steps), done + n_steps)
        reject = reject.with_state(current, place <= window - 1, gumbel[:, seen])
        accept = accept.with_state(current, place >= steps - window + 1, gumbel[:, seen])
    return reject, accept, diverged


@dataclass(frozen=True)
class Windows:
    """The shape of an update's trajectory, as `hybrid.hybrid` describes it.

    steps   number of considered states besides the current one
    window  number of states in each window
    jump    leapfrog steps from one considered state to the next
    """

    steps: int
    window: int
    jump: int = 1

    @property
    def n_states(self) -> int:
        """Number of states that may be chosen: all states in either window."""
        return min(self.steps + 1, 2 * self.window)


WholeHybrid: TypeAlias = Callable[..., tuple[Trajectory, HMCInfo]]
"""Code that runs a whole update, called with target, trajectory, windows, streams, and order.

It draws the numbers that `hybrid` draws, and returns the trajectory at the chosen state, and the info. The
acceptance reverses the momentum. The energy_change is NaN where the starting energy is not finite. The arrays
of `trajectory` are left unchanged; `order` is that of `state.Advance`.
"""


def whole_hybrid_of(advance: Advance, target: Target) -> WholeHybrid | None:
    """Return the code of `advance` that runs whole updates for the target, or None if it has none."""
    # A protocol's isinstance would take as long as ten operations on arrays of a few chains.
    whole_hybrid = getattr(advance, "whole_hybrid", None)
    return None if whole_hybrid is None else whole_hybrid(target)


def pieces(steps: int, window: int) -> list[tuple[int, int]]:
    """Divide a trajectory into calls of `advance`: pairs (steps done before the call, steps of the call).

    Inside the windows, where every state counts, each call takes a single step. One call takes all the steps
    between the windows. During the first window - 1 steps, chains may move in different directions. After
    that, every chain is at the state whose number equals the number of steps done.
    """
    last_of_reject, first_of_accept = window - 1, steps - window + 1
    if first_of_accept <= last_of_reject:
        return [(done, 1) for done in range(steps)]
    ahead = [(done, 1) for done in range(last_of_reject)]
    middle = [(last_of_reject, first_of_accept - last_of_reject)]
    return ahead + middle + [(done, 1) for done in range(first_of_accept, steps)]


@dataclass(frozen=True)
class TrajectoryState:
    """One state of every chain's trajectory, with its total energy (n_chains,)."""

    position: Array
    momentum: Array
    energy: Array

    @staticmethod
    def at(moved: Trajectory, potential: Array) -> TrajectoryState:
        """Return the state at a point of a trajectory with its potential (n_chains,)."""
        return TrajectoryState(moved.position, moved.momentum, total_energy(potential, moved.momentum))

    def restored(self, start: TrajectoryState, is_restored: Array) -> TrajectoryState:
        """Return `start` for the chains that is_restored selects, and this state for the others."""
        xp = array_namespace(self.position)
        return TrajectoryState(
            xp.where(is_restored[:, None], start.position, self.position),
            xp.where(is_restored[:, None], start.momentum, self.momentum),
            xp.where(is_restored, start.energy, self.energy),
        )


@dataclass(frozen=True)
class Window:
    """The weight of a window, and one state drawn from it, for every chain. States are added one by one.

    log_weight (n_chains,)  log sum exp(-H) over its states; -inf while it has none
    best_score (n_chains,)  the largest -H + Gumbel noise. The state that attains it is a draw with
                            probability proportional to exp(-H), and only this state has to be kept
    position, momentum      position and momentum of that state
    """

    log_weight: Array
    best_score: Array
    position: Array
    momentum: Array

    @staticmethod
    def empty(start: TrajectoryState) -> Window:
        """Return a window without states; `start` gives the shapes of its arrays."""
        xp = array_namespace(start.energy)
        nothing = xp.full_like(start.energy, -xp.inf)
        return Window(nothing, nothing, start.position, start.momentum)

    @staticmethod
    def of(state: TrajectoryState) -> Window:
        """Return a window with one state."""
        return Window(-state.energy, -state.energy, state.position, state.momentum)

    def with_state(self, state: TrajectoryState, is_member: Array, gumbel: Array) -> Window:
        """Return the window with `state` added in the chains selected by is_member."""
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
    """Return log(exp(a) + exp(b)), which is -inf if both are; CuPy's logaddexp would return NaN."""
    xp = array_namespace(a)
    high, low = xp.maximum(a, b), xp.minimum(a, b)
    with np.errstate(invalid="ignore"):
        return xp.where(low == -xp.inf, high, high + xp.log1p(xp.exp(low - high)))
