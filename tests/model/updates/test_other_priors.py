"""Mixtures of two Gaussians and rectified Gaussian precisions: densities, draws, and exact sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from rayfbnn.errors import ConfigError
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.network_plan import plan_of
from rayfbnn.model import prior
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.architecture import ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.updates import hyperbolic
from rayfbnn.selftest.pivots import ks_p_value
from rayfbnn.streams import Purpose, Use
from tests.correctness.cell_statistics import judged
from tests.correctness.cells import Cell
from tests.support.model.architectures import mutated, worst_error
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import network, problem, streams

PRIORS = {"ih0": "mixture(0.4, 1, 0.2)", "bh0": "rect(2)", "ho0": "rect(0.5)", "bo": "mixture(0.7, 0.5, 0.1)"}
SPEC = network(PRIORS, units=(3,), activations=("tanh",))


@dataclass(frozen=True)
class OtherCell(Cell):
    """A cell with these priors in place of those of its levels."""

    def network(self) -> NetworkSpec:
        shape = super().network()
        return NetworkSpec(shape.inputs, shape.outputs, shape.hidden, network(PRIORS).priors)


CELLS = {
    name: OtherCell("one layer", "fixed", data, operations)
    for name, data, operations in (
        ("hybrid", "real", "everything"),
        ("marginal", "binary", "marginal, precisions"),
        ("rescale", "real, each target", "in parts, full gradients"),
    )
}


@pytest.mark.parametrize(
    "name", ["hybrid", *(pytest.param(name, marks=pytest.mark.long) for name in ("marginal", "rescale"))]
)
def test_joint_distribution_stays(name: str) -> None:
    assert judged(CELLS[name], n_chains=2_000, name=", priors of other forms").is_exact


MUTANTS = {
    "sigma for its square": (prior, "(spec.width / width) ** 2", "spec.width / width"),
    "scale of the other precision": (hyperbolic, "1 / (2 * v0)", "1 / v0"),
    "density in tau": (hyperbolic, "n / 2 + 1", "n / 2"),
    "half of the squares": (hyperbolic, "sum_squares / 2", "sum_squares"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    module, old, new = MUTANTS[name]
    changed = mutant(module, (old, new))
    sampler = sampled_with(changed)
    verdict = judged(CELLS["hybrid"], n_chains=2_000, name=f", other priors, {name}", posterior=sampler)
    assert not verdict.is_exact


def test_the_gradient_is_that_of_the_energy() -> None:
    assert worst_error(problem("gaussian", spec=SPEC), n_draws=5, name="other priors") < 1e-6


def test_a_gradient_without_the_narrow_component_is_seen() -> None:
    changed = mutated(prior, ("ratio * xp.exp(second - total)", "xp.exp(second - total)"))
    target = problem("gaussian", spec=SPEC, posterior=changed)
    assert worst_error(target, n_draws=5, name="other priors") > 1e-3


def test_the_density_of_a_mixture_is_normalised_and_right() -> None:
    target = problem(
        "gaussian", spec=network({**PRIORS, "bh0": "0.5", "ho0": "1"}, units=(3,), activations=("tanh",))
    )
    state = target.initial_state(streams("mixture", 4), sigmas=None)
    ours = prior.log_density_of_parameters(
        state.position, state.precisions, target.parameter_layout, target.precision_layout
    )
    normal = scipy.stats.norm.pdf
    views = target.parameter_layout.views(state.position)
    expected = np.log(0.4 * normal(views["ih0"], scale=1) + 0.6 * normal(views["ih0"], scale=0.2)).sum(
        axis=(1, 2)
    )
    expected += np.log(normal(views["bh0"], scale=0.5)).sum(axis=1)
    expected += np.log(normal(views["ho0"], scale=1)).sum(axis=(1, 2))
    expected += np.log(0.7 * normal(views["bo"], scale=0.5) + 0.3 * normal(views["bo"], scale=0.1)).sum(
        axis=1
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_a_narrow_component_keeps_the_energy_finite() -> None:
    spec = PriorSpec.parse("mixture(0.5, 1, 1e-6)", key="ih0")
    energy, slope = prior._of_mixture(spec, np.array([0.0, 1e-12, 400.0, 1e6]))
    assert np.isfinite(energy).all()
    assert np.isfinite(slope).all()


@pytest.mark.parametrize(
    ("n", "sums", "v0"), [(1, 1.0, 1.0), (100, 25.0, 100.0), (3, 1e-6, 2.0), (40, 1e5, 0.1)]
)
def test_draws_of_a_rectified_precision_have_their_density(n: int, sums: float, v0: float) -> None:
    random = streams(f"rectified {n}", 20_000)
    drawn = np.exp(
        hyperbolic.log_rectified_precision(
            np.full((20_000, 1), sums), n, v0, random, use=Use(Purpose.PRECISION_COMMON, 0, 1)
        )
    )
    grid = np.exp(np.linspace(np.log(drawn.min()) - 4, np.log(drawn.max()) + 2, 20_001))
    log_density = (n / 2) * np.log(grid) - sums * grid / 2 - grid**2 / (2 * v0)
    density = np.exp(log_density - log_density.max())
    cdf = np.concatenate([[0], scipy.integrate.cumulative_trapezoid(density, grid)])
    assert ks_p_value(np.interp(drawn[:, 0], grid, cdf / cdf[-1])) > 1e-5  # false alarms 1e-5


def test_the_expected_precision_is_the_mean_of_exact_draws() -> None:
    base = problem("gaussian", spec=SPEC)
    target: Any = ApproximatedPosterior.from_spec(SPEC, base.model, base.inputs[:-1].T, base.targets.T)
    _, precisions = target.start(streams("start", 1))
    squares = np.full((1, target.n_parameters), 0.3)
    q = target.expected_precisions(precisions, squares, np.ones((1, 2)))
    for name, v0, n in (("bh0", 2.0, 3), ("ho0", 0.5, 6)):
        drawn = np.exp(
            hyperbolic.log_rectified_precision(
                np.full((20_000, 1), 0.3 * n), n, v0, streams(name, 20_000), use=Use(Purpose.PROPOSAL, 0, 1)
            )
        )
        ours = q.mean[0, target.precision_layout.common[name]]
        assert abs(drawn.mean() - ours) < 4 * drawn.std() / np.sqrt(20_000)  # false alarms 1e-4


def test_kernels_leave_mixtures_to_array_code() -> None:
    covered = plan_of(problem("gaussian", spec=SPEC))
    assert isinstance(covered, NotCovered)
    assert "mixture" in covered.reason
    rect = network({**PRIORS, "ih0": "1", "bo": "1"}, units=(3,), activations=("tanh",))
    assert not isinstance(plan_of(problem("gaussian", spec=rect)), NotCovered)


@pytest.mark.parametrize(
    "text",
    [
        "mixture(0.5, 1)",
        "mixture(1.5, 1, 2)",
        "mixture(0.5, 1, x)",
        "rect()",
        "rect(-1)",
        "rect(1",
        "rect(1, 2)",
    ],
)
def test_priors_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"network\.priors\.ih0"):
        PriorSpec.parse(text, key="network.priors.ih0")


def test_gaussian_approximations_refuse_them_and_filters_refuse_mixtures() -> None:
    base = problem("gaussian", spec=SPEC)
    target: Any = ApproximatedPosterior.from_spec(SPEC, base.model, base.inputs[:-1].T, base.targets.T)
    assert "ih0 has a mixture" in target.why_not_curved
    assert "ih0 has a mixture" in target.why_not_propagated
    assert target.why_not_expected is None
    rect = network({"ih0": "rect(1)", "ho0": "1"}, units=(3,), activations=("tanh",))
    rectified_alone: Any = ApproximatedPosterior.from_spec(
        rect, ModelSpec("binary"), base.inputs[:-1].T, (base.targets.T > 0).astype(float)
    )
    assert "rectified" in rectified_alone.why_not_curved
    assert rectified_alone.why_not_propagated is None
