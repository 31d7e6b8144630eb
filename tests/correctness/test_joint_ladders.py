"""Exact draws at the top of ladders stay exact under the exchange, but not if it has a bug."""

from __future__ import annotations

import pytest

from rayfbnn.mcmc.ladder import iteration
from rayfbnn.mcmc.ladder import iteration as exchange
from rayfbnn.model import ladder_path, noise_ladder
from rayfbnn.selftest.pivots import is_exact
from tests.support.ladder.posteriors import PROBLEMS, p_values
from tests.support.mutants import mutant

FEW, MANY = 2_500, 15_000


def _stays_exact(problem: str, name: str, *, n_ladders: int = FEW) -> bool:
    return is_exact(
        lambda seed, n: p_values(problem, seed=seed, n_ladders=n), name=f"ladder {name}", n_chains=n_ladders
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_top_of_ladders_stays_exact(name: str) -> None:
    assert _stays_exact(name, f"{name}, few")


@pytest.mark.long
@pytest.mark.parametrize("name", PROBLEMS)
def test_top_of_many_ladders_stays_exact(name: str) -> None:
    assert _stays_exact(name, name, n_ladders=MANY)


EXCHANGE_MUTANTS: dict[str, tuple[str, str, str]] = {
    "wrong sign": ("ratio = -(self.forward + self.reverse)", "ratio = self.forward + self.reverse", "noise"),
    "wrong sign for powers": (
        "ratio = -(self.forward + self.reverse)",
        "ratio = self.forward + self.reverse",
        "powers",
    ),
    "wrong sign of one difference": ("(below - own)[:, 1:]", "(own - below)[:, 1:]", "noise"),
    "wrong sign far from the top": (
        "(own - there)[ladders, level] + (own - there)[:, -1]",
        "(there - own)[ladders, level] + (there - own)[:, -1]",
        "noise",
    ),
    "always accepted": (
        "(log_uniforms[:, :-1] < differences.log_ratio)",
        "(log_uniforms[:, :-1] < 0)",
        "noise",
    ),
}
NOISE_MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "density of the proposal left out": (
        "energy_of",
        "(proposal.log_density(u) - joint.log_density(u))",
        "(0 * proposal.log_density(u) - joint.log_density(u))",
        "t noise",
    ),
    "wrong sign of the energy at the top": (
        "energy_of",
        "(proposal.log_density(u) - joint.log_density(u))",
        "(joint.log_density(u) - proposal.log_density(u))",
        "t noise",
    ),
    "a factor left out": ("Joint", "(self.b * xp.log1p(", "(xp.log1p(", "t noise"),
    "prior left out": (
        "Joint",
        "log_gamma_density(tau, self.alpha, self.omega) + u",
        "0 * log_gamma_density(tau, self.alpha, self.omega)",
        "noise with two levels",
    ),
    "sign of the energy at the top": ("Squares", "m / 2 * xp.log((b", "-m / 2 * xp.log((b", "noise"),
    "prior left out at the top": (
        "Squares",
        "constant + m / 2 * xp.log((b",
        "constant + m / 2 * xp.log((0 * b",
        "noise",
    ),
    "a factor left out at the top": ("Squares", "m / 2 * xp.log((b", "xp.log((b", "noise"),
}
PATH_MUTANTS = {
    "noise that its level held kept at the top": (
        "precisions[:, columns] = xp.where(is_below[",
        "_ = xp.where(is_below[",
        "noise",
    ),
    "targets drawn without the common precision": (
        ", mean=precisions[:, columns])",
        ")",
        "noise with two levels",
    ),
}


@pytest.mark.parametrize("name", EXCHANGE_MUTANTS)
def test_mutant_of_exchange_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, problem = EXCHANGE_MUTANTS[name]
    changed = mutant(exchange, (old, new))
    monkeypatch.setattr(iteration, "exchange", changed.exchange)
    assert not _stays_exact(problem, name)


@pytest.mark.parametrize("name", NOISE_MUTANTS)
def test_mutant_of_energy_at_the_top_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part, old, new, problem = NOISE_MUTANTS[name]
    monkeypatch.setattr(noise_ladder, part, getattr(mutant(noise_ladder, (old, new)), part))
    assert not _stays_exact(problem, name)


@pytest.mark.parametrize("name", PATH_MUTANTS)
def test_mutant_of_new_noise_at_the_top_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, problem = PATH_MUTANTS[name]
    monkeypatch.setattr(ladder_path, "NoisePath", mutant(noise_ladder, (old, new)).NoisePath)
    assert not _stays_exact(problem, name)
