"""The verb `selftest`: tests of this machine and its kernels before their results are trusted.

The tests need only NumPy and SciPy (and CuPy for a GPU). docs/correctness.md says which faults each test can
detect.
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
from rayfbnn.mcmc import leapfrog, schedule
from rayfbnn.mcmc.heatbath import Heatbath, Negate
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.leapfrog import reversed_order
from rayfbnn.mcmc.model_updates import SampleSigmas
from rayfbnn.mcmc.operation import Operation
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.numerals import compared
from rayfbnn.selftest.pivots import LEVEL, is_exact, joint_p_values, ks_p_value, square_p_value
from rayfbnn.state import Advance, ChainState, Target, Trajectory
from rayfbnn.streams import MAX_SEED, Purpose, Streams, philox


@dataclass(frozen=True)
class Finding:
    """The result of one test.

    test, subject   name of the test, and the object under test
    found, allowed  the value, and the allowed values
    """

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
    """Test this machine before its results are trusted: gradients, reversal, and exact draws that stay exact.

    Each statistical test fails for a correct sampler with at most 1 in 100,000 seeds.

    Parameters
    ----------
    device
        "cpu" or "gpu".
    seed
        Seed of the random numbers; another seed is another test.
    chains
        Number of chains in the statistical tests; more chains detect smaller faults. A test in doubt is
        repeated with four times as many.
    report
        Called with each finding as soon as it is known.

    Returns
    -------
    list of Finding
        The result of each test.
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
        started_at = time.monotonic()
        with np.errstate(all="ignore"):  # faults appear in the table, without warnings above it
            value, allowed, ok = judge()
        finding = Finding(test, subject, value, allowed, ok, time.monotonic() - started_at)
        report(finding)
        findings.append(finding)
    return findings


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


Dtype = Literal["float32", "float64"]
N_CASES = 7
DTYPES: tuple[Dtype, Dtype] = ("float64", "float32")


@dataclass(frozen=True)
class SmallProblem:
    """A small network with its data model. Together the problems have priors of all kinds.

    priors  group -> prior in FBM's notation
    over    variables that trajectories integrate out, as in hybrid-marginal; () for plain hybrid
    """

    priors: dict[str, str]
    model: ModelSpec
    n_targets: int = 1
    hidden: tuple[LayerSpec, ...] = (LayerSpec(2, "tanh"),)
    over: tuple[Literal["outputs", "precisions"], ...] = ()

    def posterior(self, xp: ModuleType, dtype: Dtype) -> SampledPosterior:
        """Return the posterior for fixed inputs; its targets are placeholders that draws replace."""
        priors = {
            name: PriorSpec.parse(text, key=name, two_levels=name[0] in "bt")
            for name, text in self.priors.items()
        }
        network = NetworkSpec(
            2, data_model_from_spec(self.model).n_outputs(self.n_targets), self.hidden, priors
        )
        inputs = Streams(5, np.arange(N_CASES, dtype=np.uint64)).normal(Purpose.PROPOSAL, (2,))
        targets = np.ones((N_CASES, self.n_targets))
        return SampledPosterior.from_spec(network, self.model, inputs, targets, dtype=dtype, xp=xp)

    def moved(
        self, posterior: SampledPosterior, state: ChainState, streams: Streams
    ) -> tuple[Target, ChainState]:
        """Return the target of trajectories for a posterior, and their initial state."""
        if not self.over:
            return posterior, state
        target = posterior.marginal(self.over).given(state, streams)
        return target, target.start(state, streams)

    @property
    def updates(self) -> tuple[Operation, ...]:
        """The operations of one iteration.

        Steps are large enough to reject about half of the trajectories, and momentum is kept for long. Wrong
        decisions then become visible.
        """
        trajectory: Operation = Hybrid(steps=4, stepsize=1.4, window=2, partitions=3)
        if self.over:
            trajectory = HybridMarginal(self.over, steps=4, stepsize=1.4, window=2)
        return SampleSigmas(), Heatbath(decay=0.95), trajectory, Negate()


def _noise(text: str) -> PriorSpec:
    return PriorSpec.parse(text, key="noise")


PROBLEMS: dict[str, SmallProblem] = {
    "real": SmallProblem(
        {"ih0": "1.5:3", "bh0": "0.7:4", "ho0": "x2:5", "bo": "0.8"}, ModelSpec("real", _noise("0.5:3"))
    ),
    "t noise, every level": SmallProblem(
        {"ti": "0.5:4:5", "ih0": "1:4:5:6", "bh0": "0.7:4:6", "ho0": "x1.5:5:6:4", "io": "0.5::6", "bo": "1"},
        ModelSpec("real", _noise("0.5:4:5:6")),
        n_targets=2,
    ),
    "binary": SmallProblem(
        {"ih0": "2:3:5", "bh0": "0.7:4", "ho0": "x3:4", "io": "0.5:5", "bo": "0.8"},
        ModelSpec("binary"),
        n_targets=2,
    ),
    "class, two layers": SmallProblem(
        {"ih0": "2:4", "bh0": "0.7:4", "h0h1": "x2:4:5", "th0": "0.5:4", "ho0": "1:5", "ho1": "x3:4"},
        ModelSpec("class", classes=3),
        hidden=(LayerSpec(2, "tanh"), LayerSpec(3, "softplus")),
    ),
    "count": SmallProblem({"ih0": "1:4", "bh0": "0.7:4", "ho0": "x1:4", "bo": "0.8"}, ModelSpec("count")),
    "real, hybrid-marginal": SmallProblem(
        {"ih0": "1.5:3", "bh0": "0.7:4", "ho0": "x2:5", "bo": "0.8"},
        ModelSpec("real", _noise("0.5:3")),
        over=("outputs", "precisions"),
    ),
}


def exact_start(target: SampledPosterior, streams: Streams) -> tuple[ChainState, Array]:
    """Draw states and data (n_chains, n_cases, n_targets) from their joint distribution."""
    state = target.initial_state(streams, sigmas=None)
    return state, target.sample_targets(state.position, state.precisions, streams)


def started(name: str, xp: ModuleType, seed: int) -> tuple[Target, ChainState]:
    """Return the target of a problem's trajectories and its state, for 20 chains with their own data."""
    problem, streams = PROBLEMS[name], Streams(seed, xp.arange(20, dtype=xp.uint64))
    posterior = problem.posterior(xp, "float64")
    state, data = exact_start(posterior, streams)
    return problem.moved(posterior.with_targets(data), state, streams)


Judgement = tuple[str, str, bool]  # the value, the allowed values, whether the value is ok
# Distance between the points of a difference, in stepsizes: the largest error over 300 seeds is 1e-7 of the
# largest derivative.
_DIFFERENCE = 1e-3


def known_answers(xp: ModuleType) -> Judgement:
    """Compare Philox4x32-10 with the known answers in the file kat_vectors of Random123."""
    wrong = 0
    for counter, key, expected in KNOWN_ANSWERS:
        words = [xp.full(1, word, dtype=xp.uint64) for word in (*counter, *key)]
        answer = philox((words[0], words[1], words[2], words[3]), (words[4], words[5]))
        wrong += [int(to_host(word)[0]) for word in answer] != list(expected)
    return f"{wrong} wrong", "0 wrong", wrong == 0


KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def gradient_of(name: str, xp: ModuleType, seed: int) -> Judgement:
    """Compare the gradient with central differences of the potential from five points.

    Coordinates are scaled by the stepsizes. The value is the largest error, relative to the largest
    derivative of the chain.
    """
    target, state = started(name, xp, seed)
    stepsizes = target.stepsizes(state.precisions)
    _, gradient = target.potential_and_gradient(state.position, state.precisions)
    gradient = gradient * stepsizes
    largest, worst = abs(gradient).max(axis=1), 0.0
    for parameter in range(target.n_parameters):
        step = xp.zeros_like(state.position)
        step[:, parameter] = _DIFFERENCE * stepsizes[:, parameter]
        near, far = (
            target.potential(state.position + n * step, state.precisions)
            - target.potential(state.position - n * step, state.precisions)
            for n in (1, 2)
        )
        error = abs((8 * near - far) / (12 * _DIFFERENCE) - gradient[:, parameter]) / largest
        worst = max(worst, float(error.max()))
    return _at_most(worst, 1e-6)


def agreement_of(name: str, xp: ModuleType, seed: int) -> Judgement:
    """Compare potentials, gradients and short trajectories with NumPy's array code in float64.

    They are computed in float32 and float64, by array code and by the kernel that runs trajectories here.
    """
    problem, streams = PROBLEMS[name], Streams(seed, np.arange(20, dtype=np.uint64))
    plain = problem.posterior(np, "float64")
    state, data = exact_start(plain, streams)
    target, start = problem.moved(plain.with_targets(data), state, streams)
    stepsizes = 0.3 * target.stepsizes(start.precisions)
    arrays = start.position, start.momentum, start.precisions, stepsizes
    expected = *target.potential_and_gradient(start.position, start.precisions), *_short(target, arrays)
    worst = 0.0
    for dtype, scale in zip(DTYPES, (1e6, 1.0), strict=True):  # errors of 1e-9 and of 1e-3 are allowed
        posterior = problem.posterior(xp, dtype).with_targets(xp.asarray(data))
        streams_here = Streams(seed, xp.arange(20, dtype=xp.uint64))
        state_here = ChainState(*(xp.asarray(array) for array in vars(state).values()))
        target, _ = problem.moved(posterior, state_here, streams_here)
        # Precisions are always in float64.
        cast = [xp.asarray(array.astype(dtype)) for array in arrays]
        cast[2] = xp.asarray(arrays[2])
        advance, _ = choose.advance_for(posterior)
        computed = *target.potential_and_gradient(cast[0], cast[2]), *_short(target, cast, advance)
        for right, value in zip(expected, computed, strict=True):
            size = np.maximum(abs(right).reshape(len(right), -1).max(axis=1), 1.0)
            error = abs(to_host(value) - right).reshape(len(right), -1).max(axis=1) / size
            worst = max(worst, scale * float(error.max()))
    return _at_most(worst, 1e-3)


def _short(
    target: Target, arrays: Sequence[Array], advance: Advance = leapfrog.advance
) -> tuple[Array, Array, Array]:
    end, potential = advance(target, Trajectory(*arrays), n_steps=2)
    return end.position, end.momentum, potential


def reversal_of(name: str, xp: ModuleType, seed: int) -> Judgement:
    """Take ten steps and ten back, with partial gradients if there are any, and compare with the start."""
    target, state = started(name, xp, seed)
    order = back_order = None
    if not PROBLEMS[name].over:
        order = Streams(seed, xp.arange(20, dtype=xp.uint64)).permutation(3, Purpose.PARTITION_ORDER)
        back_order = reversed_order(order)
    stepsizes = 0.3 * target.stepsizes(state.precisions)
    start = Trajectory(state.position, state.momentum, state.precisions, stepsizes)
    there, _ = leapfrog.advance(target, start, n_steps=10, order=order)
    back, _ = leapfrog.advance(target, replace(there, stepsizes=-stepsizes), n_steps=10, order=back_order)
    worst = max(abs(back.position - state.position).max(), abs(back.momentum - state.momentum).max())
    return _at_most(float(worst), 1e-8)


def _at_most(value: float, limit: float) -> Judgement:
    (text,), most = compared([value], limit, ".1e", ".0e")
    return text, f"below {most}", value < limit


N_ITERATIONS = 4
TOY_OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "plain": (Heatbath(), Hybrid(steps=4, stepsize=0.9)),
    "windows, partial gradients": (
        Heatbath(decay=0.5),
        Hybrid(steps=6, stepsize=0.8, window=3, partitions=3),
        Negate(),
    ),
}


class _Anharmonic:
    """U(q) = q**4/4 + 0.8 cos(2 q + 0.5) + (q - 0.7)**2 / 2 in three terms.

    The density has no symmetry that could hide a wrong sign.
    """

    n_parameters = 1

    def potential_and_gradient(
        self, position: Array, precisions: Array, *, partition: Array | None = None, n_partitions: int = 1
    ) -> tuple[Array, Array]:
        """Return the potential and its gradient, of all terms or, with `partition`, of one of the three."""
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
        """Return U, (n_chains,)."""
        return self.potential_and_gradient(position, precisions)[0]

    def stepsizes(self, precisions: Array) -> Array:
        """Return 1 for each chain, (n_chains, 1)."""
        return array_namespace(precisions).ones((len(precisions), 1))

    def distribution(self) -> tuple[Array, Array]:
        """Return a grid and the distribution function on it, by trapezoids, with an error below 1e-8."""
        grid = np.linspace(-5, 5, 40_001)
        density = np.exp(-self.potential(grid[:, None], grid[:, None]))
        area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        return grid, area / area[-1]


def _streams(xp: ModuleType, seed: int, n_chains: int) -> Streams:
    """Return random numbers for chains on the host or a device, of the same class as in a run."""
    streams_class = choose.streams_class("cpu" if xp is np else "gpu")
    return streams_class(seed, xp.arange(n_chains, dtype=xp.uint64))


def toy_target(name: str, xp: ModuleType, seed: int, chains: int, dtype: Dtype) -> Judgement:
    """Test that exact draws of a known density stay exact: position, momentum, and the two together."""
    target = _Anharmonic()
    grid, area = target.distribution()
    iteration = schedule.build_iteration(TOY_OPERATIONS[name], target=target, updates={})

    def p_values(seed: int, n_chains: int) -> list[float]:
        streams = _streams(xp, seed, n_chains)
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
    """Test that exact draws of parameters, precisions and data stay exact under the updates of a run."""
    plain = PROBLEMS[name].posterior(np, "float64")  # for the statistics, on the host

    def p_values(seed: int, n_chains: int) -> list[float]:
        streams = _streams(xp, seed, n_chains)
        target = PROBLEMS[name].posterior(xp, dtype)
        state, data = exact_start(target, streams)
        posterior = target.with_targets(data)
        advance, _ = choose.advance_for(posterior)
        iteration = schedule.build_iteration(
            PROBLEMS[name].updates, target=posterior, updates=posterior.updates, advance=advance
        )
        state = _after_iterations(state, streams, iteration)
        after = ChainState(*(to_host(array).astype(float) for array in vars(state).values()))
        host = _streams(np, seed, n_chains)
        other = replace(host, chains=host.chains + np.uint64(2**31))
        values = joint_p_values(plain, (after, to_host(data)), exact_start(plain, other), host)
        return list(values.values())

    return _exactness(p_values, name=f"selftest {seed}, joint {name} {dtype}", chains=chains)


def _after_iterations(state: ChainState, streams: Streams, iteration: Any) -> ChainState:
    *_, (_, state, _) = schedule.run(state, streams, iteration=iteration, first=1, count=N_ITERATIONS)
    return state


def _exactness(p_values: Callable[[int, int], list[float]], *, name: str, chains: int) -> Judgement:
    """Apply the sequential test at level 1e-5; the value shown is Bonferroni's p-value of its last look."""
    shown: list[float] = []

    def watched(seed: int, n_chains: int) -> list[float]:
        values = p_values(seed, n_chains)
        shown.append(min(1.0, len(values) * min(values)))
        return values

    ok = is_exact(watched, name=name, n_chains=chains)
    return f"p = {shown[-1]:.2g}", f"level {LEVEL:g}", ok
