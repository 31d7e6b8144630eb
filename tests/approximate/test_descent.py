"""Descent to the maximum of the posterior density, on regressions whose maximum is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfbnn.approximate import descent as module
from rayfbnn.approximate.descent import Descent, DescentFit
from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from tests.support.marks import count_calls
from tests.support.model.linear import linear
from tests.support.mutants import mutant
from tests.support.problems import streams


def fit(
    target: Any, n_starts: int = 2, source: Any = module, **settings: Any
) -> tuple[Any, list[Any], list[Array]]:
    """Return the fit, its states after each step, and the objectives."""
    method = source.DescentFit(target, source.Descent(**settings))
    random = streams("descent", n_starts)
    states, objectives = [method.initial(random.at(iteration=0))], []
    for number in range(1, method.settings.n_steps + 1):
        state, objective = method.step(states[-1], random.at(iteration=number))
        states.append(state)
        objectives.append(objective)
        if method.is_complete(state):
            break
    return method, states, objectives


def small_network(n_cases: int = 30) -> Any:
    """A network of four units on one input, with much noise in the targets."""
    random = np.random.default_rng(5)
    inputs = random.normal(size=(n_cases, 1))
    targets = np.sin(2 * inputs) + 0.5 * random.normal(size=(n_cases, 1))
    priors = {name: PriorSpec.parse("1", key=name) for name in ("ih0", "bh0", "ho0", "bo")}
    network = NetworkSpec(1, 1, (LayerSpec(4, "tanh"),), priors)
    model = ModelSpec("real", noise=PriorSpec.parse("0.5", key="noise"))
    return ApproximatedPosterior.from_spec(network, model, inputs, targets, dtype="float64")


def reaches_the_maximum(source: Any = module, **settings: Any) -> bool:
    problem = linear()
    method, states, _ = fit(problem.target, source=source, precisions="fixed", **settings)
    ends = [states[at] for at in (0, -1)]
    gradients = [problem.target.potential_and_gradient(e["position"], e["precisions"])[1] for e in ends]
    norms = [np.linalg.norm(gradient, axis=1) for gradient in gradients]
    is_there = np.abs(states[-1]["best"] - problem.mean).max() < 1e-5
    return bool(is_there and (norms[1] < 1e-6 * norms[0]).all())


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "leapfrog", "steps": 1500, "rate": 0.5, "last_decay": 0.9},
        {"optimizer": "adam", "steps": 1500, "rate": 0.05},
        {"optimizer": "lbfgs"},
    ],
    ids=lambda settings: settings["optimizer"],
)
def test_every_optimiser_reaches_the_maximum_of_a_regression(settings: dict[str, Any]) -> None:
    assert reaches_the_maximum(**settings)


MUTANTS = {
    "kick_upwards": ('momentum = changed["first"] - scaled / 2', 'momentum = changed["first"] + scaled / 2'),
    "worst_kept": ("is_better = energy <", "is_better = energy >"),
    "ascent": ("- rate * direction", "+ rate * direction"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    source = mutant(module, MUTANTS[name])
    with np.errstate(all="ignore"):
        if name == "worst_kept":
            assert not keeps_the_best(source)
        elif name == "ascent":
            assert not reaches_the_maximum(source, optimizer="adam", steps=200, rate=0.05)
        else:
            assert not reaches_the_maximum(source, optimizer="leapfrog", steps=200, rate=0.5, last_decay=0.9)


@pytest.mark.parametrize("optimizer", ["leapfrog", "adam", "lbfgs"])
def test_gradients_are_counted(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_network()
    calls = count_calls(type(target), monkeypatch, "potential_and_gradient")
    _, states, _ = fit(target, n_starts=1, optimizer=optimizer, steps=200)
    assert states[-1]["gradients"].tolist() == [calls["potential_and_gradient"]]


def test_the_momentum_decays_from_the_first_factor_to_the_last() -> None:
    """The logarithm of what is lost goes evenly from that of 1/2 to that of 1/10."""
    target = linear().target
    settings: dict[str, Any] = {"optimizer": "leapfrog", "steps": 5, "rate": 0.1, "precisions": "fixed"}
    _, states, _ = fit(target, first_decay=0.5, last_decay=0.9, **settings)
    expected = 1 - np.exp(np.linspace(np.log(0.5), np.log(0.1), 5))
    for before, after, factor in zip(states, states[1:], expected, strict=False):
        half = 0.1 * target.stepsizes(before["precisions"]) / 2
        undamped = before["first"] - half * before["second"] - half * after["second"]
        np.testing.assert_allclose(after["first"], factor * undamped, rtol=1e-10)


def test_leapfrog_and_lbfgs_find_minima_of_one_depth() -> None:
    """From the same starts in a network, in whose landscape several minima lie."""
    target = small_network()
    _, _, by_leapfrog = fit(target, 6, optimizer="leapfrog", steps=1000, rate=0.5, last_decay=0.95)
    _, _, by_lbfgs = fit(target, 6, optimizer="lbfgs", precisions="fixed")
    assert by_leapfrog[-1].max() == pytest.approx(by_lbfgs[-1].max(), abs=1e-3)


def held_out_energies(method: Any, states: list[Any], cases: Array) -> Array:
    """The energy of the held-out cases after each step, computed from the definition."""
    energies = []
    for state in states[1:]:
        outputs = method.target.outputs(state["position"], method.target.inputs[:-1].T)
        errors = np.take_along_axis(method.target.targets[0] - outputs[:, :, 0], cases, axis=1)
        energies.append((errors**2).sum(axis=1) / (2 * 0.25))
    return np.array(energies)


def keeps_the_best(source: Any = module) -> bool:
    settings = {"optimizer": "adam", "steps": 400, "rate": 0.1, "refresh": 1, "validation": 0.3}
    method, states, _ = fit(small_network(), 3, source=source, precisions="fixed", **settings)
    held_out = method._divided(streams("descent", 3))[1]
    energies = held_out_energies(method, states, held_out)
    best = energies.argmin(axis=0)
    assert (best < len(energies) - 1).any(), "no start was to be stopped early"
    kept = np.stack([states[step + 1]["position"][start] for start, step in enumerate(best)])
    return bool(np.array_equal(states[-1]["best"], kept))


def test_early_stopping_keeps_the_best_network_and_not_the_last() -> None:
    assert keeps_the_best()


def test_held_out_cases_are_a_part_drawn_for_each_start() -> None:
    method = DescentFit(small_network(), Descent(validation=0.3))
    used, held_out = method._divided(streams("descent", 4))
    assert held_out.shape == (4, 9) and used.shape == (4, 21)
    assert all(sorted((*a, *b)) == list(range(30)) for a, b in zip(used, held_out, strict=True))
    assert len({tuple(cases) for cases in held_out}) == 4


def test_draws_are_the_network_that_was_kept() -> None:
    method, states, _ = fit(linear().target, optimizer="adam", steps=5)
    positions, precisions, log_q = method.distribution(states[-1]).draws(streams("draws", 2), 3)
    assert positions.shape == (2, 3, 4) and np.isnan(log_q).all() and log_q.shape == (2, 3)
    assert (positions == states[-1]["best"][:, None]).all()
    assert (precisions == states[-1]["best_precisions"][:, None]).all()


def test_precisions_that_vary_settle_at_their_means_given_the_parameters() -> None:
    target = linear(io="1:4", noise="0.4:4").target
    method, states, _ = fit(target, optimizer="lbfgs")
    assert method.is_complete(states[-1])
    last = states[-1]
    q = target.expected_precisions(
        last["precisions"], last["best"] ** 2, target.residual_squares(last["best"])
    )
    np.testing.assert_allclose(q.mean, last["precisions"], rtol=2e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps: must be a whole number of at least 1"),
        ({"rate": 0.0}, "rate: must be a positive number"),
        ({"last_decay": 1.0}, "last_decay: must be a number of at least 0 and below 1"),
        ({"validation": 0.2, "optimizer": "lbfgs"}, "validation: is for"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"methods.map.{message}"):
        Descent(**settings)
