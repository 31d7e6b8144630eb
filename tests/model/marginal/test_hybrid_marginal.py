"""hybrid-marginal over outputs and precisions is exact, and each wrong order or density in it is seen."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from rayfbnn.mcmc import hybrid_marginal as update
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, Repeat, SampleSigmas
from rayfbnn.model import integrated, output_layer, regression, sampled
from rayfbnn.model.likelihood import real
from rayfbnn.model.prior import parameter_precisions
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.correctness import cells
from tests.correctness.cell_statistics import judged, posterior_of
from tests.correctness.cells import CELLS
from tests.support import problems
from tests.support.marks import some_long
from tests.support.mutants import mutant, sampled_with, schedule_with

BY_NAME = {
    "common": "one layer | group | real | marginal, both",
    "every level": "one layer | every level | t, each target | marginal, both",
    "t noise": "offsets | group, parameter | t, missing | marginal, outputs",
    "dual": "every connection | group | real, each target | marginal, both",
    "t weights": "every connection | parameter | real, missing | marginal, outputs",
    "t weights of two targets": "offsets | parameter | real, noise fixed | marginal, outputs",
    "missing": "adjustments | group | real, missing | marginal, both",
    "adjustments": "adjustments past a layer | group | real | marginal, both",
    "precisions": "adjustments | group | t | marginal, precisions",
    "class": "one layer | vague | class | marginal, precisions",
    "two targets": "inputs left out | group | real, each target | marginal, both",
}
MARGINAL = {name: next(cell for cell in CELLS if str(cell) == row) for name, row in BY_NAME.items()}
QUICK = 2_000


def on(module: ModuleType, *replacements: tuple[str, str]) -> dict[str, ModuleType]:
    """Return the modules of a sampler with a bug in one of those of hybrid-marginal."""
    bug = mutant(module, *replacements)
    if module is update:
        return {"schedule": schedule_with(bug)}
    return {"posterior": sampled_with(bug)}


LONG = ("t weights", "t weights of two targets", "every level", "adjustments")


@pytest.mark.parametrize(  # "common" is run anyway
    "name", some_long([name for name in MARGINAL if name != "common"], LONG)
)
def test_joint_distribution_stays(name: str) -> None:
    verdict = judged(MARGINAL[name], n_chains=QUICK, name=", marginal")
    assert verdict.is_exact
    assert 0.2 < verdict.acceptance < 0.9


@pytest.mark.parametrize("name", ["precisions", "class"])
def test_joint_distribution_stays_with_partial_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operations = tuple(
        replace(operation, partitions=3) if isinstance(operation, HybridMarginal) else operation
        for operation in cells.OPERATIONS["marginal, precisions"]
    )
    monkeypatch.setitem(cells.OPERATIONS, "marginal, precisions", operations)
    verdict = judged(MARGINAL[name], n_chains=QUICK, name=", partial gradients")
    assert verdict.is_exact
    assert 0.2 < verdict.acceptance < 0.9


def test_partial_gradients_need_a_sum_over_cases() -> None:
    with pytest.raises(ValueError, match='partitions: must be 1 with over = "outputs".*got 2; leave it out'):
        HybridMarginal(("outputs",), steps=4, stepsize=1.0, partitions=2)


def test_the_cells_have_both_forms() -> None:
    def is_dual(name: str) -> bool:
        density = posterior_of(MARGINAL[name]).marginal(("outputs",))
        assert isinstance(density, integrated.OutputMarginal)
        return density.layer.is_dual

    assert is_dual("dual") and not is_dual("common") and not is_dual("t noise")


@pytest.mark.parametrize(
    ("levels", "data", "n_systems"),
    [
        ("fixed", "real", 1),
        ("fixed", "real, noise fixed", 1),
        ("group, unit", "real, noise fixed", 1),
        ("parameter", "real, noise fixed", 2),
        ("every level", "real, noise fixed", 2),
        ("fixed", "real, each target", 2),
        ("fixed", "real, missing", 2),
    ],
)
def test_targets_share_a_matrix_only_if_noise_and_priors_are_alike(
    levels: str, data: str, n_systems: int
) -> None:
    """Parameters with t priors have precisions of their own for each target."""
    density = posterior_of(cells.Cell("one layer", levels, data, "marginal, outputs")).marginal(("outputs",))
    assert isinstance(density, integrated.OutputMarginal)
    assert density.layer.n_systems == n_systems


_AFTER = "return target.complete(state, moved, streams), info"
# Bugs: the module, (old, new) in its source, and the cell that must show each.
MUTANTS: dict[str, tuple[ModuleType, tuple[str, str], str]] = {
    "output weights not redrawn": (
        integrated,
        ("position[:, n:] = coefficients.reshape(len(position), -1)", "pass"),
        "t noise",
    ),
    "precisions not redrawn": (
        integrated,
        (
            "marginal.posterior, ChainState(position, momentum, precisions), marginal.groups, streams",
            "marginal.posterior, ChainState(position, momentum, precisions), (), streams",
        ),
        "common",
    ),
    "precisions redrawn before the trajectory": (
        update,
        (
            _AFTER,
            "earlier = target.complete(state, target.start(state, streams), streams).precisions\n"
            "    after = target.complete(state, moved, streams)\n"
            "    return ChainState(after.position, after.momentum, earlier), info",
        ),
        "common",
    ),
    "output weights redrawn before the trajectory": (
        update,
        (
            _AFTER,
            "earlier = target.complete(state, target.start(state, streams), streams).position\n"
            "    after = target.complete(state, moved, streams)\n"
            "    after.position[:, target.n_kept:] = earlier[:, target.n_kept:]\n"
            "    return after, info",
        ),
        "common",
    ),
    "common precisions of all groups not redrawn": (
        integrated,
        ("return draw_integrated(self.posterior, moved, self.groups, streams)", "return moved"),
        "class",
    ),
    "stepsizes of the precisions that move along": (
        integrated,
        (
            "with_columns(precisions, (*marginal.groups, *marginal.moved)).copy()",
            "with_columns(precisions, marginal.groups).copy()",
        ),
        "common",
    ),
    "precisions that move along counted twice": (
        integrated,
        ("ruled = with_columns(state.precisions, self.moved, value=1.0)", "ruled = state.precisions"),
        "common",
    ),
    "precisions that move along stay": (
        integrated,
        ("precisions[:, group.precision.common] = xp.exp(", "xp.exp("),
        "common",
    ),
    "no momentum of what moves along": (
        integrated,
        ("momentum = streams.normal(Purpose.MOMENTUM,", "momentum = 0 * streams.normal(Purpose.MOMENTUM,"),
        "common",
    ),
    "density of tau for that of log tau": (
        integrated,
        (
            "half * (ratio - x[:, number])",
            "half * (ratio - x[:, number]) + x[:, number]",
        ),
        "common",
    ),
    "stepsizes of all groups' precisions": (
        integrated,
        (
            "self.posterior.stepsizes(with_columns(precisions, self.groups))",
            "self.posterior.stepsizes(precisions)",
        ),
        "class",
    ),
    "log|A| forgotten": (
        regression,
        ("solution.log_determinant - xp.log", "-xp.log"),
        "common",
    ),
    "log|A| once for two targets": (
        regression,
        (
            "(solution.log_determinant - xp.log(regression.prior).sum(axis=2)).sum(axis=1)",
            "solution.log_determinant[:, 0]",
        ),
        "two targets",
    ),
    "log|B| forgotten": (
        regression,
        ("n_each * solution.log_determinant.sum(axis=1) + squares", "squares"),
        "dual",
    ),
    "means of the output weights": (
        regression,
        ("solution.mean + array_namespace(z).matmul(solution.half.swapaxes(2, 3), z)", "solution.mean"),
        "common",
    ),
    "factor for its transpose": (
        regression,
        (
            "array_namespace(z).matmul(solution.half.swapaxes(2, 3), z)",
            "array_namespace(z).matmul(solution.half, z)",
        ),
        "common",
    ),
    "dual draws without noise": (
        regression,
        (
            "v += root * xp.matmul(features[:, None].swapaxes(2, 3), w0)",
            "v = root * xp.matmul(features[:, None].swapaxes(2, 3), w0)",
        ),
        "dual",
    ),
    "auxiliary precisions of other residuals": (
        real,
        ("(rows - outputs()) ** 2", "xp.roll((rows - outputs()) ** 2, 1, axis=2)"),
        "t noise",
    ),
    "stale auxiliary precisions": (
        real,
        ("squares, tau, self.alpha, weights", "0 * squares, tau, self.alpha, weights"),
        "t noise",
    ),
    "t noise taken for Gaussian": (
        real,
        ("if math.isinf(self.alpha):\n            return", "if True:\n            return"),
        "t noise",
    ),
    "stale auxiliary precisions of output weights": (
        integrated,
        (
            "state.position[:, part].astype(xp.float64) ** 2,",
            "0 * state.position[:, part].astype(xp.float64) ** 2,",
        ),
        "t weights",
    ),
    "t output weights taken for Gaussian": (
        integrated,
        ("if feeds_outputs(group.name) and math.isfinite(alpha):", "if False:"),
        "t weights",
    ),
    "missing targets taken for zeros": (
        integrated,
        (
            "b if posterior.observed is None else b * posterior.observed,",
            "b + 0 * posterior.targets,",
        ),
        "missing",
    ),
    "one matrix for all targets": (
        output_layer,
        ("n_systems=1 if _targets_are_alike(posterior) else network.outputs", "n_systems=1"),
        "two targets",
    ),
    "t weights of two targets in one matrix": (
        output_layer,
        ("math.isinf(group.prior.alphas[2])", "math.isinf(group.prior.alphas[1])"),
        "t weights of two targets",
    ),
    "integrated prior without alpha": (
        output_layer,
        ("(alpha + group.size) / 2 * xp.log(rate)", "group.size / 2 * xp.log(rate)"),
        "common",
    ),
    "adjustments not in the integrated prior": (
        output_layer,
        ("scaled = (rows * precisions[:, None, group.adjustments]).reshape(w.shape)", "pass"),
        "adjustments",
    ),
    "momentum kept on acceptance": (
        integrated,
        (
            "position[:, :n], momentum[:, :n] = moved.position[:, :n], moved.momentum[:, :n]",
            "position[:, :n] = moved.position[:, :n]",
        ),
        "t noise",
    ),
}


LONG_MUTANTS = ("adjustments not in the integrated prior", "t weights of two targets in one matrix")


@pytest.mark.parametrize("name", some_long(MUTANTS, LONG_MUTANTS))
def test_mutant_is_killed(name: str) -> None:
    module, replacement, cell = MUTANTS[name]
    n_chains = MARGINAL[cell].n_chains if name in LONG_MUTANTS else QUICK
    assert not judged(MARGINAL[cell], n_chains=n_chains, name=f", {name}", **on(module, replacement)).is_exact


def drift_and_difference(**modules: ModuleType) -> tuple[float, float]:
    """|z| of the largest change from iteration 20 to 40 of plain sampling, and of its largest difference.

    Compares 1000 chains with hybrid-marginal and 1000 without, by means of log precisions, of outputs at
    three cases and of the targets' energy. A larger robot arm has modes, between which plain chains move only
    in thousands of iterations: with 80 cases of noise 0.1, hybrid-marginal brought the precision of bh0 at
    once to the value that it has here.
    """
    target, n, summaries = small_robot_arm(**modules), 1000, []
    plain: Operation = Hybrid(steps=10, stepsize=0.6)
    moving: Operation = HybridMarginal(("outputs", "precisions"), steps=10, stepsize=0.6)
    for number, hybrid in enumerate((plain, moving)):
        operations: tuple[Operation, ...] = (SampleSigmas(), Heatbath(), hybrid)
        streams = Streams(17, np.arange(n, dtype=np.uint64) + np.uint64(n * number))
        iteration = schedule.build_iteration(
            (Repeat(1 if number else 4, operations),), target=target, updates=target.updates
        )
        state = target.initial_state(streams, sigmas=None)
        for count in range(1, 41):
            state, _ = iteration(state, streams.at(iteration=count))
            if count in (20, 40):
                outputs = target.outputs(state.position, target.inputs[:-1, :3].T).reshape(n, -1)
                precisions = np.log(state.precisions[:, target.precision_layout.is_free])
                energy = target.data_energy(state.position, state.precisions)
                summaries.append(np.concatenate([precisions, outputs, energy[:, None]], axis=1))
    earlier, later, _, other = summaries
    changes = later - earlier
    drift = changes.mean(axis=0) / (changes.std(axis=0) / np.sqrt(n))
    difference = (later.mean(axis=0) - other.mean(axis=0)) / np.sqrt(
        (later.var(axis=0) + other.var(axis=0)) / n
    )
    return float(abs(drift).max()), float(abs(difference).max())


@pytest.mark.long
def test_agrees_with_plain_sampling() -> None:
    drift, difference = drift_and_difference()
    assert drift < 4.5 and difference < 4.5  # of 11: 1 in 13,000 if both are right; seeds are fixed


@pytest.mark.long
def test_alpha_left_out_of_the_prior_of_what_moves_along_is_seen() -> None:
    bug = on(integrated, ("half * (ratio - x[:, number])", "half * ratio"))
    assert drift_and_difference(**bug)[1] > 4.5


def small_robot_arm(posterior: ModuleType = sampled) -> SampledPosterior:
    """Two joint angles to the place of the hand, noise 0.5; three hidden units."""
    random = Streams(23, np.zeros(1, dtype=np.uint64))
    angles = random.uniform(Purpose.PROPOSAL, (20, 2))[0] * 2 - 1
    x, y = (f(angles[:, 0]) + f(angles.sum(axis=1)) for f in (np.cos, np.sin))
    place = np.stack([x, y], axis=1) + 0.5 * random.normal(Purpose.TARGET_VALUE, (20, 2))[0]
    spec = problems.network(
        {"ih0": "0.5:6", "bh0": "0.5:6", "ho0": "x1:3", "bo": "1"},
        inputs=2,
        units=(3,),
        activations=("tanh",),
    )
    posterior_on_data: SampledPosterior = posterior.SampledPosterior.from_spec(
        spec, problems.MODELS["gaussian"], angles, place
    )
    return posterior_on_data


def test_momentum_of_what_is_integrated_out_stays() -> None:
    target = posterior_of(MARGINAL["common"]).with_targets(np.ones((5, 7, 1)))
    streams = Streams(3, np.arange(5, dtype=np.uint64), 1)
    state = target.initial_state(streams, sigmas=None)
    iteration = schedule.build_iteration(
        (HybridMarginal(("outputs",), steps=3, stepsize=0.1),), target=target, updates={}
    )
    after, info = iteration(state, streams)
    n_kept = target.parameter_layout.slices["ho0"].start
    assert np.array_equal(after.momentum[:, n_kept:], state.momentum[:, n_kept:])
    assert (after.momentum[:, :n_kept] != state.momentum[:, :n_kept]).all()
    assert (after.position != state.position).all() and np.array_equal(after.precisions, state.precisions)
    assert info.accepted.mean() > 0.5


def test_tempered_density_is_the_posterior_with_its_coefficients_drawn() -> None:
    """E(kept) = E_b(all) + log p(output parameters | kept), up to one constant, at every temperature."""
    target = posterior_of(MARGINAL["two targets"])
    streams, n = Streams(9, np.arange(12, dtype=np.uint64), 1), 12
    state = target.initial_state(streams, sigmas=None)
    precisions = np.repeat(state.precisions[:1], n, axis=0)
    state = ChainState(state.position, state.momentum, precisions)
    data = np.repeat(target.sample_targets(state.position, precisions, streams)[:1], n, axis=0)
    for b in (1.0, 0.3):
        informed = target.with_targets(data).tempered(b)
        density = informed.marginal(("outputs",)).given(state, streams)
        n_kept = density.n_kept
        log_density = []
        for chain in range(n):
            basis = np.repeat(state.position[chain : chain + 1], target.n_parameters - n_kept, axis=0)
            basis[:, n_kept:] = np.eye(len(basis))
            columns = target.outputs(basis, target.inputs[:-1].T).swapaxes(1, 2).reshape(len(basis), -1)
            tau = np.repeat(precisions[0, target.precision_layout.noise_columns], target.n_cases)
            tau_w = parameter_precisions(precisions[:1], target.precision_layout)[0, n_kept:]
            a = b * (columns * tau) @ columns.T + np.diag(tau_w)
            m = np.linalg.solve(a, b * columns @ (tau * data[0].T.ravel()))
            change = state.position[chain, n_kept:] - m
            log_density.append(0.5 * np.linalg.slogdet(a)[1] - 0.5 * change @ a @ change)
        difference = density.potential(state.position[:, :n_kept], precisions) - informed.potential(
            state.position, precisions
        )
        assert np.ptp(difference - log_density) < 1e-8
