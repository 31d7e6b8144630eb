"""hybrid-marginal over the outputs of binary targets, by Polya-Gamma variables, is exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, HybridMarginal, Negate, SampleSigmas
from rayfbnn.model.likelihood import binary
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams
from tests.correctness.cell_statistics import exact_start, judged, posterior_of
from tests.correctness.cells import Cell
from tests.support.marks import some_long
from tests.support.mutants import mutant, sampled_with


@dataclass(frozen=True)
class MarginalCell(Cell):
    """A cell whose iteration has the outputs integrated out, with or without the precisions."""

    over: tuple[str, ...] = ("outputs",)

    def iteration(self) -> tuple[Operation, ...]:
        update = HybridMarginal(over=self.over, steps=3, stepsize=self.stepsize, window=2)  # type: ignore[arg-type]
        return SampleSigmas(), Heatbath(decay=0.9), update, Negate()


BOTH = ("outputs", "precisions")
CELLS = {
    "one layer": MarginalCell("one layer", "group", "binary", "marginal", 1.5),
    "missing": MarginalCell("offsets", "group, parameter", "binary, missing", "marginal", 1.5),
    "dual": MarginalCell("every connection", "every level", "binary", "marginal", 1.5),
    "adjustments": MarginalCell("adjustments", "group", "binary", "marginal", 1.5, over=BOTH),
}


@pytest.mark.parametrize("name", some_long(CELLS, ["dual", "missing"]))
def test_joint_distribution_stays(name: str) -> None:
    verdict = judged(CELLS[name], n_chains=2_000, name=", Polya-Gamma")
    assert verdict.is_exact
    assert 0.3 < verdict.acceptance < 0.95  # decisions of both kinds occur


@pytest.mark.long
@pytest.mark.parametrize("name", CELLS)
def test_joint_distribution_stays_with_many_chains(name: str) -> None:
    assert judged(CELLS[name], n_chains=20_000, name=", Polya-Gamma, many").is_exact


def test_one_of_the_cells_is_in_the_dual_form() -> None:
    assert posterior_of(CELLS["dual"]).marginal(("outputs",)).layer.is_dual
    assert not posterior_of(CELLS["one layer"]).marginal(("outputs",)).layer.is_dual


# Bugs in binary.py: (old, new) in its source, and the cell that must show each.
MUTANTS: dict[str, tuple[str, str, str]] = {
    "labels not centred": ("(rows - 0.5) / omega", "(rows - 0.4) / omega", "one layer"),
    "variables of outputs at zero": (
        "polya_gamma(outputs()",
        "polya_gamma(0 * outputs()",
        "one layer",
    ),
    "variables of half the outputs": (
        "polya_gamma(outputs()",
        "polya_gamma(outputs() / 2",
        "one layer",
    ),
    "precisions twice the variables": (
        "weights * omega",
        "weights * 2 * omega",
        "one layer",
    ),
    "missing targets taken for zeros": ("weights * omega", "1.0 * omega", "missing"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    old, new, cell = MUTANTS[name]
    changed = sampled_with(mutant(binary, (old, new)))
    assert not judged(CELLS[cell], n_chains=4_000, name=f", {name}", posterior=changed).is_exact


def test_means_in_place_of_draws_are_killed() -> None:
    """An EM algorithm would use the mean tanh(v/2)/(2 v) for omega."""

    def mean(v: Array, streams: Streams, **_: object) -> Array:
        return np.where(abs(v) < 1e-6, 0.25, np.tanh(v / 2) / np.where(abs(v) < 1e-6, 1.0, 2 * v))

    changed = mutant(binary)
    changed.polya_gamma = mean  # type: ignore[attr-defined]
    assert not judged(
        CELLS["one layer"], n_chains=4_000, name=", means", posterior=sampled_with(changed)
    ).is_exact


def test_a_wrong_draw_is_killed() -> None:
    changed = mutant(binary)
    wrong = mutant(binary, ("return result / 4", "return result / 3"))
    changed.polya_gamma = wrong.polya_gamma  # type: ignore[attr-defined]
    assert not judged(
        CELLS["one layer"], n_chains=4_000, name=", wrong draw", posterior=sampled_with(changed)
    ).is_exact


def test_chains_do_not_depend_on_their_batch() -> None:
    cell = CELLS["missing"]
    streams = Streams(7, np.arange(5, dtype=np.uint64), 1)
    state, data = exact_start(posterior_of(cell), cell, streams)

    def after(chains: list[int]) -> ChainState:
        target = posterior_of(cell).with_targets(data[chains])
        iteration = schedule.build_iteration(cell.iteration(), target=target, updates=target.updates)
        part = ChainState(state.position[chains], state.momentum[chains], state.precisions[chains])
        return iteration(part, Streams(7, streams.chains[chains], 1))[0]

    together = after([0, 1, 2, 3, 4])
    for chain in (0, 3):
        alone = after([chain])
        assert np.array_equal(alone.position[0], together.position[chain])
        assert np.array_equal(alone.precisions[0], together.precisions[chain])


def test_a_tempered_posterior_is_refused() -> None:
    target = posterior_of(CELLS["one layer"]).tempered(0.5)
    with pytest.raises(ConfigError, match='over: .* model.kind = "binary" needs temperature 1'):
        target.marginal(("outputs",))
    target.marginal(("precisions",))


MARGINAL = {"op": "hybrid-marginal", "over": ["outputs"], "steps": 5, "stepsize": 0.5}


def configuration(*, temperature: float = 1.0, operation: Mapping[str, object]) -> RunSpec:
    return RunSpec.from_dict(
        {
            "temperature": temperature,
            "data": {"train": "t.csv", "inputs": ["x"], "targets": ["y"]},
            "model": {"kind": "binary"},
            "network": {
                "hidden": [{"units": 2, "activation": "tanh"}],
                "priors": {"ih": "1:2", "ho": "1:2"},
            },
            "phase": [{"iterations": 10, "operations": [{"op": "heatbath"}, operation]}],
        }
    )


def test_a_tempered_configuration_is_refused_by_name() -> None:
    configuration(operation=MARGINAL)
    tempering = {
        "op": "simulated-tempering",
        "inverse_temperatures": [1.0, 0.5],
        "log_weights": [0.0, 0.0],
        "operations": [MARGINAL],
    }
    message = (
        r'over: .* got "outputs"; model.kind = "binary" needs temperature 1; use over = \["precisions"\]'
    )
    with pytest.raises(ConfigError, match=rf"^phase\[0\].operations\[1\].{message}"):
        configuration(temperature=2.0, operation=MARGINAL)
    with pytest.raises(ConfigError, match=rf"^phase\[0\].operations\[1\].operations\[0\].{message}"):
        configuration(operation=tempering)
