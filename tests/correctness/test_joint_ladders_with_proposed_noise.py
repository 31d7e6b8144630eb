"""Bugs in the noise that states of ladders are extended by do not pass the joint test."""

from __future__ import annotations

import pytest

from rayfbnn.model import ladder_path, noise_ladder
from rayfbnn.selftest.pivots import is_exact
from tests.support.ladder.posteriors import p_values
from tests.support.mutants import mutant

_FEW = 2_500


def _stays_exact(problem: str, name: str) -> bool:
    return is_exact(
        lambda seed, n: p_values(problem, seed=seed, n_ladders=n),
        name=f"proposed noise {name}",
        n_chains=_FEW,
    )


PROPOSAL_MUTANTS: dict[str, tuple[str, str]] = {
    "density of the proposal left out": (
        "(proposal.log_density(u) - joint.log_density(u))",
        "(0 * proposal.log_density(u) - joint.log_density(u))",
    ),
    "wrong sign of the energy at the top": (
        "(proposal.log_density(u) - joint.log_density(u))",
        "(joint.log_density(u) - proposal.log_density(u))",
    ),
}
JOINT_MUTANTS: dict[str, tuple[str, str, str]] = {
    "a factor left out": ("(self.b * xp.log1p(", "(xp.log1p(", "t noise"),
    "prior left out": (
        "log_gamma_density(tau, self.alpha, self.omega) + u",
        "0 * log_gamma_density(tau, self.alpha, self.omega)",
        "noise with two levels",
    ),
}


@pytest.mark.parametrize("name", PROPOSAL_MUTANTS)
def test_mutant_of_energy_of_proposed_noise_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = mutant(noise_ladder, PROPOSAL_MUTANTS[name])
    monkeypatch.setattr(noise_ladder, "energy_of", changed.energy_of)
    assert not _stays_exact("t noise", name)


@pytest.mark.parametrize("name", JOINT_MUTANTS)
def test_mutant_of_joint_density_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, problem = JOINT_MUTANTS[name]
    changed = mutant(noise_ladder, (old, new))
    for module in (noise_ladder, noise_ladder):
        monkeypatch.setattr(module, "Joint", changed.Joint)
    assert not _stays_exact(problem, name)


def test_mutant_with_targets_drawn_without_the_common_precision_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = mutant(noise_ladder, (", mean=precisions[:, columns])", ")"))
    monkeypatch.setattr(ladder_path, "NoisePath", changed.NoisePath)
    assert not _stays_exact("noise with two levels", "common precision")
