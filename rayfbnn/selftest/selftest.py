"""Tests of truth on the machine and backend that someone is about to trust: what `rayfbnn selftest` does.

Needs NumPy and SciPy only (CuPy for a GPU). docs/correctness.md says what each test can see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Literal

import numpy as np
import scipy.special

from rayfbnn.arrays import Array, array_namespace, device_namespace, gpu_is_available, to_host
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog, schedule
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, Negate, Operation, SampleSigmas
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.posterior import Posterior
from rayfbnn.selftest.exactness import LEVEL, is_exact, ks_p_value, square_p_value
from rayfbnn.selftest.pivots import joint_p_values
from rayfbnn.state import Advance, ChainState, Target, Trajectory
from rayfbnn.streams import MAX_SEED, Purpose, Streams, philox

Dtype = Literal["float32", "float64"]
N_CASES, N_ITERATIONS = 7, 4
DIFFERENCE = 1e-3  # of a stepsize: the worst error of 300 seeds is 1e-7 of the largest derivative


@dataclass(frozen=True)
class Finding:
    """One test: what it found, what is allowed, and whether that is ok."""

    test: str
    subject: str
    found: str
    allowed: str
    ok: bool
    seconds: float


def selftest(
    *,
    device: str = "cpu",
    seed: int = 1,
    chains: int = 10_000,
    report: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Test this machine: gradients, reversal, and exact draws that must stay exact.

    device  "cpu" or "gpu"
    chains  in the statistical tests; four times as many, new ones, where a test is in doubt
    report  called with each finding as soon as it is there

    Each statistical test is wrong about a right sampler once in 100,000 seeds at most.
    """
    if device not in ("cpu", "gpu"):
        raise ConfigError(f'device: must be "cpu" or "gpu", got "{device}"')
    if device == "gpu" and not gpu_is_available():
        raise ConfigError('device: there is no GPU here that CuPy can use, got "gpu"; use "cpu"')
    if seed % 1 != 0 or not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"seed: must be from 0 to {MAX_SEED}, got {seed}")
    if chains % 1 != 0 or chains < 1000:
        raise ConfigError(f"chains: must be at least 1000, got {chains}")
    xp = device_namespace(device)
    findings = []
    for test, subject, judge in _tests(xp, seed, chains):
        began = time.monotonic()
        with np.errstate(all="ignore"):  # what is broken shows in the table, not as warnings above it
            found, allowed, ok = judge()
        finding = Finding(test, subject, found, allowed, ok, time.monotonic() - began)
        report(finding)
        findings.append(finding)
    return findings


Judgement = tuple[str, str, bool]  # what was found, what is allowed, whether that is ok


def _tests(xp: ModuleType, seed: int, chains: int) -> Iterator[tuple[str, str, Callable[[], Judgement]]]:
    yield "random numbers", "Philox4x32-10", partial(known_answers, xp)
    for name in PROBLEMS:
        yield "gradient", name, partial(gradient_of, name, xp, seed)
    for name in PROBLEMS:
        yield "agreement", name, partial(agreement_of, name, xp, seed)
    for name in PROBLEMS:
        yield "reversal", name, partial(reversal_of, name, xp, seed)
    for dtype in DTYPES:
        for name in TOY_OPERATIONS:
            yield "toy target", f"{name}, {dtype}", partial(toy_target, name, xp, seed, chains, dtype)
    for dtype in DTYPES:
        for name in PROBLEMS:
            yield "joint", f"{name}, {dtype}", partial(joint, name, xp, seed, chains, dtype)


DTYPES: tuple[Dtype, Dtype] = ("float64", "float32")


@dataclass(frozen=True)
class Problem:
    """A small network with its data model; groups of parameters with all kinds of priors among them.

    over  what trajectories have integrated out, as hybrid-marginal has
    """

    priors: dict[str, str]
    model: ModelSpec
    n_targets: int = 1
    hidden: tuple[LayerSpec, ...] = (LayerSpec(2, "tanh"),)
    over: tuple[Literal["outputs", "precisions"], ...] = ()

    def posterior(self, xp: ModuleType, dtype: Dtype) -> Posterior:
        """On fixed inputs; the targets are to be drawn."""
        priors = {
            name: PriorSpec.parse(text, key=name, two_levels=name[0] in "bt")
            for name, text in self.priors.items()
        }
        network = NetworkSpec(
            2, data_model_from_spec(self.model).n_outputs(self.n_targets), self.hidden, priors
        )
        inputs = Streams(5, np.arange(N_CASES, dtype=np.uint64)).normal(Purpose.PROPOSAL, (2,))
        targets = np.ones((N_CASES, self.n_targets))
        return Posterior.of(network, self.model, inputs, targets, dtype=dtype, xp=xp)

    def moved(self, posterior: Posterior, state: ChainState, streams: Streams) -> tuple[Target, ChainState]:
        """What trajectories move given a posterior, and where they start."""
        if not self.over:
            return posterior, state
        target = posterior.marginal(self.over).given(state, streams)
        return target, target.start(state, streams)

    @property
    def updates(self) -> tuple[Operation, ...]:
        """Steps so large that about half is accepted, and momentum that lasts: so wrong decisions show."""
        trajectory: Operation = Hybrid(steps=4, stepsize=1.4, window=2, partitions=3)
        if self.over:
            trajectory = HybridMarginal(self.over, steps=4, stepsize=1.4, window=2)
        return SampleSigmas(), Heatbath(decay=0.95), trajectory, Negate()


def _noise(text: str) -> PriorSpec:
    return PriorSpec.parse(text, key="noise")


PROBLEMS: dict[str, Problem] = {
    "real": Problem(
        {"ih0": "1.5:3", "bh0": "0.7:4", "ho0": "x2:5", "bo": "0.8"}, ModelSpec("real", _noise("0.5:3"))
    ),
    "t noise, every level": Problem(
        {"ti": "0.5:4:5", "ih0": "1:4:5:6", "bh0": "0.7:4:6", "ho0": "x1.5:5:6:4", "io": "0.5::6", "bo": "1"},
        ModelSpec("real", _noise("0.5:4:5:6")),
        n_targets=2,
    ),
    "binary": Problem(
        {"ih0": "2:3:5", "bh0": "0.7:4", "ho0": "x3:4", "io": "0.5:5", "bo": "0.8"},
        ModelSpec("binary"),
        n_targets=2,
    ),
    "class, two layers": Problem(
        {"ih0": "2:4", "bh0": "0.7:4", "h0h1": "x2:4:5", "th0": "0.5:4", "ho0": "1:5", "ho1": "x3:4"},
        ModelSpec("class", classes=3),
        hidden=(LayerSpec(2, "tanh"), LayerSpec(3, "softplus")),
    ),
    "count": Problem({"ih0": "1:4", "bh0": "0.7:4", "ho0": "x1:4", "bo": "0.8"}, ModelSpec("count")),
    "real, hybrid-marginal": Problem(
        {"ih0": "1.5:3", "bh0": "0.7:4", "ho0": "x2:5", "bo": "0.8"},
        ModelSpec("real", _noise("0.5:3")),
        over=("outputs", "precisions"),
    ),
}


def known_answers(xp: ModuleType) -> Judgement:
    """Random123's known answers for Philox4x32-10, from its kat_vectors."""
    wrong = 0
    for counter, key, expected in KNOWN_ANSWERS:
        words = [xp.full(1, word, dtype=xp.uint64) for word in (*counter, *key)]
        found = philox((words[0], words[1], words[2], words[3]), (words[4], words[5]))
        wrong += [int(to_host(word)[0]) for word in found] != list(expected)
    return f"{wrong} wrong", "0 wrong", wrong == 0


KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def exact_start(target: Posterior, streams: Streams) -> tuple[ChainState, Array]:
    """State and data (n_chains, n_cases, n_targets) drawn from the joint distribution."""
    state = target.initial_state(streams, sigmas=None)
    return state, target.sample_targets(state.position, state.precisions, streams)


def started(name: str, xp: ModuleType, seed: int) -> tuple[Target, ChainState]:
    """What a problem's trajectories move given data of each of 20 chains' own, and the state of these."""
    problem, streams = PROBLEMS[name], Streams(seed, xp.arange(20, dtype=xp.uint64))
    posterior = problem.posterior(xp, "float64")
    state, data = exact_start(posterior, streams)
    return problem.moved(posterior.with_targets(data), state, streams)


def gradient_of(name: str, xp: ModuleType, seed: int) -> Judgement:
    """Central differences (of five points) of the potential in coordinates scaled by the stepsizes.

    The largest error, relative to the chain's largest derivative.
    """
    target, state = started(name, xp, seed)
    stepsizes = target.stepsizes(state.precisions)
    _, gradient = target.potential_and_gradient(state.position, state.precisions)
    gradient = gradient * stepsizes
    largest, worst = abs(gradient).max(axis=1), 0.0
    for parameter in range(target.n_parameters):
        step = xp.zeros_like(state.position)
        step[:, parameter] = DIFFERENCE * stepsizes[:, parameter]
        near, far = (
            target.potential(state.position + n * step, state.precisions)
            - target.potential(state.position - n * step, state.precisions)
            for n in (1, 2)
        )
        error = abs((8 * near - far) / (12 * DIFFERENCE) - gradient[:, parameter]) / largest
        worst = max(worst, float(error.max()))
    return _at_most(worst, 1e-6)


def agreement_of(name: str, xp: ModuleType, seed: int) -> Judgement:
    """Potentials, gradients and short trajectories with those in float64 by NumPy's array code.

    In float32 and float64, by array code and by what runs trajectories here.
    """
    problem, streams = PROBLEMS[name], Streams(seed, np.arange(20, dtype=np.uint64))
    plain = problem.posterior(np, "float64")
    state, data = exact_start(plain, streams)
    target, start = problem.moved(plain.with_targets(data), state, streams)
    stepsizes = 0.3 * target.stepsizes(start.precisions)
    arrays = start.position, start.momentum, start.precisions, stepsizes
    expected = *target.potential_and_gradient(start.position, start.precisions), *_short(target, arrays)
    worst = 0.0
    for dtype, scale in zip(DTYPES, (1e6, 1.0), strict=True):  # errors of 1e-9 are allowed, and of 1e-3
        posterior = problem.posterior(xp, dtype).with_targets(xp.asarray(data))
        here = Streams(seed, xp.arange(20, dtype=xp.uint64))
        given = ChainState(*(xp.asarray(array) for array in vars(state).values()))
        target, _ = problem.moved(posterior, given, here)
        # The precisions alone are in float64 always.
        cast = [xp.asarray(array.astype(dtype)) for array in arrays]
        cast[2] = xp.asarray(arrays[2])
        advance, _ = choose.advance_for(posterior)
        found = *target.potential_and_gradient(cast[0], cast[2]), *_short(target, cast, advance)
        for right, value in zip(expected, found, strict=True):
            size = np.maximum(abs(right).reshape(len(right), -1).max(axis=1), 1.0)
            error = abs(to_host(value) - right).reshape(len(right), -1).max(axis=1) / size
            worst = max(worst, scale * float(error.max()))
    return _at_most(worst, 1e-3)


def _short(
    target: Target, arrays: Sequence[Array], advance: Advance = leapfrog.advance
) -> tuple[Array, Array, Array]:
    """Where two steps lead from position, momentum, precisions with stepsizes."""
    end, potential = advance(target, Trajectory(*arrays), n_steps=2)
    return end.position, end.momentum, potential


def reversal_of(name: str, xp: ModuleType, seed: int) -> Judgement:
    """How far ten steps, of partial gradients if there are any, and ten back end from where they began."""
    target, state = started(name, xp, seed)
    order = back_order = None
    if not PROBLEMS[name].over:
        order = Streams(seed, xp.arange(20, dtype=xp.uint64)).permutation(3, Purpose.PARTITION_ORDER)
        back_order = hmc.reversed_order(order)
    stepsizes = 0.3 * target.stepsizes(state.precisions)
    start = Trajectory(state.position, state.momentum, state.precisions, stepsizes)
    there, _ = leapfrog.advance(target, start, n_steps=10, order=order)
    back, _ = leapfrog.advance(target, replace(there, stepsizes=-stepsizes), n_steps=10, order=back_order)
    worst = max(abs(back.position - state.position).max(), abs(back.momentum - state.momentum).max())
    return _at_most(float(worst), 1e-8)


def _at_most(found: float, limit: float) -> Judgement:
    return f"{found:.1e}", f"below {limit:.0e}", found < limit


TOY_OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "plain": (Heatbath(), Hybrid(steps=4, stepsize=0.9)),
    "windows, partial gradients": (
        Heatbath(decay=0.5),
        Hybrid(steps=6, stepsize=0.8, window=3, partitions=3),
        Negate(),
    ),
}


class Anharmonic:
    """U(q) = q**4/4 + 0.8 cos(2 q + 0.5) + (q - 0.7)**2 / 2 in three terms: no symmetry that hides a sign."""

    n_parameters = 1

    def potential_and_gradient(
        self, position: Array, precisions: Array, *, partition: Array | None = None, n_partitions: int = 1
    ) -> tuple[Array, Array]:
        xp, q = array_namespace(position), position[:, 0]
        terms = [
            (q.astype(np.float64) ** 4 / 4, q**3),
            (0.8 * xp.cos(2 * q.astype(np.float64) + 0.5), -1.6 * xp.sin(2 * q + 0.5)),
            ((q.astype(np.float64) - 0.7) ** 2 / 2, q - 0.7),
        ]
        potential, slope = xp.zeros(len(q)), xp.zeros_like(q)
        for number, (value, derivative) in enumerate(terms):
            weight = 1.0 if partition is None else n_partitions * (partition == number)
            potential += weight * value
            slope += weight * derivative
        return potential, slope[:, None].astype(position.dtype)

    def potential(self, position: Array, precisions: Array) -> Array:
        return self.potential_and_gradient(position, precisions)[0]

    def stepsizes(self, precisions: Array) -> Array:
        return array_namespace(precisions).ones((len(precisions), 1))

    def distribution(self) -> tuple[Array, Array]:
        """Its distribution function on a grid, by trapezoids: wrong by less than 1e-8."""
        grid = np.linspace(-5, 5, 40_001)
        density = np.exp(-self.potential(grid[:, None], grid[:, None]))
        area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        return grid, area / area[-1]


def toy_target(name: str, xp: ModuleType, seed: int, chains: int, dtype: Dtype) -> Judgement:
    """Exact draws of a known density stay so: position, momentum, and the two together."""
    target = Anharmonic()
    grid, area = target.distribution()
    iteration = schedule.build_iteration(TOY_OPERATIONS[name], target=target, updates={})

    def p_values(seed: int, n_chains: int) -> list[float]:
        streams = Streams(seed, xp.arange(n_chains, dtype=xp.uint64))
        uniform = to_host(streams.uniform(Purpose.INITIAL_PARAMETER))
        state = ChainState(
            xp.asarray(np.interp(uniform, area, grid)[:, None]).astype(dtype),
            streams.normal(Purpose.MOMENTUM, (1,)).astype(dtype),
            xp.ones((n_chains, 1)),
        )
        state = _after_iterations(state, streams, iteration)
        u = np.interp(to_host(state.position)[:, 0].astype(float), grid, area)
        v = scipy.special.ndtr(to_host(state.momentum)[:, 0].astype(float))
        return [ks_p_value(u), ks_p_value(v), square_p_value(u, v)]

    return _exactness(p_values, name=f"selftest {seed}, toy target {name} {dtype}", chains=2 * chains)


def joint(name: str, xp: ModuleType, seed: int, chains: int, dtype: Dtype) -> Judgement:
    """Exact draws of parameters, precisions and data stay so under Gibbs updates and trajectories."""
    plain = PROBLEMS[name].posterior(np, "float64")  # for the statistics, on the host

    def p_values(seed: int, n_chains: int) -> list[float]:
        streams = Streams(seed, xp.arange(n_chains, dtype=xp.uint64))
        target = PROBLEMS[name].posterior(xp, dtype)
        state, data = exact_start(target, streams)
        given = target.with_targets(data)
        advance, _ = choose.advance_for(given)
        iteration = schedule.build_iteration(
            PROBLEMS[name].updates, target=given, updates=given.updates, advance=advance
        )
        state = _after_iterations(state, streams, iteration)
        after = ChainState(*(to_host(array).astype(float) for array in vars(state).values()))
        host = Streams(seed, np.arange(n_chains, dtype=np.uint64))
        other = replace(host, chains=host.chains + np.uint64(2**31))
        found = joint_p_values(plain, (after, to_host(data)), exact_start(plain, other), host)
        return list(found.values())

    return _exactness(p_values, name=f"selftest {seed}, joint {name} {dtype}", chains=chains)


def _after_iterations(state: ChainState, streams: Streams, iteration: Any) -> ChainState:
    *_, (_, state, _) = schedule.run(state, streams, iteration=iteration, first=1, count=N_ITERATIONS)
    return state


def _exactness(p_values: Callable[[int, int], list[float]], *, name: str, chains: int) -> Judgement:
    """The sequential test at level 1e-5; what is shown is Bonferroni's p-value of its last look."""
    shown: list[float] = []

    def watched(seed: int, n_chains: int) -> list[float]:
        values = p_values(seed, n_chains)
        shown.append(min(1.0, len(values) * min(values)))
        return values

    ok = is_exact(watched, name=name, n_chains=chains)
    return f"p = {shown[-1]:.2g}", f"level {LEVEL:g}", ok
