"""Trajectories on a CUDA device with outputs or common precisions integrated out, whole ones in a launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels import marginal_plan as marginal
from rayfbnn.kernels.cuda import chip as cuda
from rayfbnn.kernels.cuda.chip import QUAD, TILES, Build, Plan, check, check_trajectory, table
from rayfbnn.kernels.plan import ChainNumbers, Program, ProgramRegression
from rayfbnn.model.marginal.targets import OutputMarginal, WithoutOutputs, WithoutPrecisions
from rayfbnn.state import Target, Trajectory

Choice = tuple[Program, Plan]
_MOST_OF_A_WARP = 128  # parameters, or entries of a matrix: up to four for each thread


@dataclass(frozen=True)
class MarginalAdvance:
    """An `Advance` for what is left of posteriors, on a device.

    build, max_shared_bytes  the device's own unless given
    """

    build: Build = cuda.build_once
    max_shared_bytes: int | None = None
    # By whether all cases have the same noise.
    known: WeakKeyDictionary[OutputMarginal | WithoutPrecisions, dict[bool, Choice | str]] = field(
        default_factory=WeakKeyDictionary
    )

    def covers(self, target: Target) -> bool:
        """Whether it is such a target, of a network whose state fits on the chip."""
        if not isinstance(target, WithoutOutputs | WithoutPrecisions):
            return False
        return not isinstance(self.chosen(target), str)

    def chosen(self, target: WithoutOutputs | WithoutPrecisions) -> Choice | str:
        """What runs it, or in words why it does not run on the chip."""
        made = target.marginal if isinstance(target, WithoutOutputs) else target
        is_uniform = isinstance(target, WithoutOutputs) and target.regression.is_uniform
        known = self.known.setdefault(made, {})
        if is_uniform not in known:
            limit = cuda.shared_memory_of_device() if self.max_shared_bytes is None else self.max_shared_bytes
            known[is_uniform] = _choice(made, is_uniform=is_uniform, max_shared_bytes=limit)
        return known[is_uniform]

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps of every chain, as `mcmc.leapfrog.advance` does."""
        assert isinstance(target, WithoutOutputs | WithoutPrecisions)
        chosen = self.chosen(target)
        assert not isinstance(chosen, str), chosen
        program, plan = chosen
        if isinstance(target, WithoutPrecisions):
            posterior = target.posterior
            precisions, n_chains = trajectory.precisions, len(trajectory.position)
            check("precisions", precisions, np.dtype(np.float64), (n_chains, posterior.n_precisions))
            numbers = marginal.numbers_of(target, precisions)
            assert isinstance(numbers, ChainNumbers)
            return cuda.launch(
                posterior,
                numbers,
                trajectory,
                n_steps=n_steps,
                order=order,
                program=program,
                plan=plan,
                build=self.build,
            )
        assert order is None
        check_arrays(target, program, trajectory)
        numbers = marginal.numbers_of(target, trajectory.precisions)
        assert isinstance(numbers, marginal.MarginalNumbers)
        return _launch(
            target,
            numbers,
            trajectory,
            n_steps=n_steps,
            program=program,
            plan=plan,
            build=self.build,
        )


def _choice(
    made: OutputMarginal | WithoutPrecisions, *, is_uniform: bool, max_shared_bytes: int
) -> Choice | str:
    posterior, program = made.posterior, marginal.program_of(made)
    if isinstance(program, str):
        return program
    if isinstance(made, WithoutPrecisions):
        plan = cuda.plan_of(program, dtype=posterior.dtype, max_shared_bytes=max_shared_bytes)
    else:
        plan = plan_of(
            program,
            dtype=posterior.dtype,
            n_cases=posterior.n_cases,
            is_uniform=is_uniform,
            max_shared_bytes=max_shared_bytes,
        )
    return plan if isinstance(plan, str) else (program, plan)


def plan_of(
    program: Program, *, dtype: str, n_cases: int, is_uniform: bool, max_shared_bytes: int
) -> Plan | str:
    """The plan for a network that ends in a regression, or in words why there is none."""
    given = program.regression
    assert given is not None
    if reason := nothing_is_kept(program):
        return reason
    if given.is_dual and n_cases > max(TILES):
        return f"more than {max(TILES)} cases in the dual form"
    n_features, bytes_of_real = len(given.features), np.dtype(dtype).itemsize
    size = max(program.n_parameters, n_features * (n_cases if given.is_dual else n_features))
    threads = cuda.WARP if size <= _MOST_OF_A_WARP else cuda.threads_for(size)
    # In the dual form the one that all cases are in, with the fewest places left over.
    tiles = (min(tile for tile in TILES if tile >= n_cases),) if given.is_dual else TILES
    for tile in tiles:
        if given.is_dual:
            shared_bytes = dual_bytes(program, tile, threads, bytes_of_real, n_cases=n_cases)
        else:
            shared_bytes = marginal_bytes(program, tile, threads, bytes_of_real, is_uniform=is_uniform)
        if shared_bytes <= max_shared_bytes:
            return Plan("marginal dual" if given.is_dual else "marginal", threads, tile, shared_bytes)
    what = f"{program.n_parameters} parameters and a regression on {n_features} features"
    return cuda.does_not_fit(what, shared_bytes, max_shared_bytes)


def nothing_is_kept(program: Program) -> str:
    """That in words, "" where something is kept."""
    return "no parameters are kept" if program.n_parameters == 0 else ""


def marginal_bytes(program: Program, tile: int, threads: int, size: int, *, is_uniform: bool) -> int:
    """Shared memory of cuda_marginal.cu, with reals of `size` bytes: END_OF_DOUBLES, checked against this."""
    given = program.regression
    assert given is not None
    n, n_all = len(given.features), given.n_systems * given.n_each
    n_blocks = 1 if is_uniform else given.n_systems
    weights = n_blocks * (n + (n_all if is_uniform else given.n_each)) * n + n_all * n
    matrices = n_blocks + (is_uniform and given.n_systems > 1)
    vectors = 2 + given.n_each + 2 * n_all + given.n_systems
    ones = _bytes_with_ones(program, tile, threads, size)
    reals = _rounded(ones + (n_all * (tile + QUAD) + weights) * size, 8)
    return reals + 8 * (matrices * n * (n | 1) + vectors * n)


def dual_bytes(program: Program, tile: int, threads: int, size: int, *, n_cases: int) -> int:
    """The same of cuda_marginal_dual.cu."""
    given = program.regression
    assert given is not None
    n, n_all = len(given.features), given.n_systems * given.n_each
    of_cases = given.n_systems * (1 + ((n_cases + 1) | 1)) + 3 * n_all + n
    of_features = given.n_systems + 1
    reals = _rounded(_bytes_with_ones(program, tile, threads, size), 8)
    return reals + 8 * (of_cases * n_cases + of_features * n)


def _bytes_with_ones(program: Program, tile: int, threads: int, size: int) -> int:
    """END_OF_ONES of cuda_regression.cuh."""
    return _rounded(cuda.block_bytes(program, tile, threads, size), QUAD * size) + (tile + QUAD) * size


def _rounded(n_bytes: int, multiple: int) -> int:
    return -(-n_bytes // multiple) * multiple


def constants_of(given: ProgramRegression, *, n_cases: int, is_uniform: bool) -> tuple[str, ...]:
    """Of the regression, for cuda.source_of: the cases only where matrices are of them."""
    runs = runs_of(given.features)
    counts = {
        "N_FEATURES": len(given.features),
        "N_SYSTEMS": given.n_systems,
        "N_EACH": given.n_each,
        "N_MOVED": len(given.moved),
        "N_RUNS": len(runs),
    } | ({"N_CASES": n_cases} if given.is_dual else {})
    return (
        *(f"constexpr int {name} = {value};" for name, value in counts.items()),
        f"constexpr bool IS_UNIFORM = {str(is_uniform).lower()};",
        *(
            table(name, [run[k] for run in runs])
            for k, name in enumerate(("run_start", "run_layer", "run_row", "run_size"))
        ),
        table("moved_start", [each.first for each in given.moved]),
        table("moved_stop", [each.stop for each in given.moved]),
        table("moved_half", [each.half for each in given.moved], "double"),
        table("moved_mean", [each.mean for each in given.moved], "double"),
    )


def runs_of(features: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int, int]]:
    """Features that are rows of a layer one behind the other: (first feature, layer, row, how many) of each.

    The ones are no row of a layer, and lie alone in a layer of number -1.
    """
    runs: list[tuple[int, int, int, int]] = []
    for number, (layer, row) in enumerate(features):
        if row < 0:
            runs.append((number, -1, 0, 1))
            continue
        start, of_layer, first, size = runs[-1] if runs else (0, -1, 0, 0)
        if of_layer == layer and row == first + size:
            runs[-1] = (start, layer, first, size + 1)
        else:
            runs.append((number, layer, row, 1))
    return runs


def check_arrays(target: WithoutOutputs, program: Program, trajectory: Trajectory) -> None:
    """As `cuda.check`, of all that a trajectory starts from and the regression has."""
    n_chains, double = len(trajectory.position), np.dtype(np.float64)
    posterior, given, regression = target.marginal.posterior, target.regression, program.regression
    assert regression is not None
    dtype, n_cases = np.dtype(posterior.dtype), posterior.n_cases
    check("precisions", trajectory.precisions, double, (n_chains, posterior.n_precisions))
    check_trajectory(trajectory, dtype, (n_chains, program.n_parameters))
    check("inputs", posterior.inputs, dtype, (program.units[0] + 1, n_cases))
    systems = (n_chains, regression.n_systems)
    check("noise", given.noise, double, (*systems, 1 if given.is_uniform else n_cases))
    check("prior", given.prior, double, (*systems, len(regression.features)))
    n_sets = n_chains if len(given.targets) == n_chains else 1
    targets_of_one = (regression.n_systems, regression.n_each, n_cases)
    check("targets", given.targets, double, (n_sets, *targets_of_one))


def _launch(
    target: WithoutOutputs,
    numbers: marginal.MarginalNumbers,
    trajectory: Trajectory,
    *,
    n_steps: int,
    program: Program,
    plan: Plan,
    build: Build,
) -> tuple[Trajectory, Array]:
    xp, n_chains = array_namespace(trajectory.position), len(trajectory.position)
    posterior, given, regression = target.marginal.posterior, target.regression, program.regression
    assert regression is not None
    n_cases = posterior.n_cases
    position, momentum = trajectory.position.copy(), trajectory.momentum.copy()
    prior_energy, terms = xp.empty(n_chains), xp.empty(n_chains)
    constants = constants_of(regression, n_cases=n_cases, is_uniform=given.is_uniform)
    source = cuda.source_of(
        program, plan, dtype=posterior.dtype, is_weighted=False, constants_besides=constants
    )
    kernel = build(source, "advance", plan.shared_bytes)
    arguments = (
        position,
        momentum,
        trajectory.stepsizes,
        numbers.precisions,
        given.noise,
        given.prior,
        posterior.inputs,
        given.targets,
        prior_energy,
        terms,
        np.int64(given.targets[0].size if len(given.targets) > 1 else 0),
        np.int32(n_cases),
        np.int32(n_steps),
    )
    kernel((plan.n_blocks(n_chains),), (plan.threads,), arguments, shared_mem=plan.shared_bytes)
    potential = numbers.potential(prior_energy, terms)
    # Without a step the kernel has given its copy of the momentum half a kick.
    end = trajectory.moved(position, momentum) if n_steps > 0 else trajectory
    return end, xp.where(xp.isfinite(potential), potential, xp.inf)
