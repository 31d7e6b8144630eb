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
ENERGY_MUTANTS: dict[str, tuple[str, str]] = {
    "sign of the energy at the top": ("m / 2 * xp.log((b", "-m / 2 * xp.log((b"),
    "prior left out at the top": ("constant + m / 2 * xp.log((b", "constant + m / 2 * xp.log((0 * b"),
    "a factor left out at the top": ("m / 2 * xp.log((b", "xp.log((b"),
}


@pytest.mark.parametrize("name", EXCHANGE_MUTANTS)
def test_mutant_of_exchange_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, problem = EXCHANGE_MUTANTS[name]
    changed = mutant(exchange, (old, new))
    monkeypatch.setattr(iteration, "exchange", changed.exchange)
    assert not _stays_exact(problem, name)


@pytest.mark.parametrize("name", ENERGY_MUTANTS)
def test_mutant_of_energy_at_the_top_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = mutant(noise_ladder, ENERGY_MUTANTS[name])
    monkeypatch.setattr(noise_ladder, "Squares", changed.Squares)
    assert not _stays_exact("noise", name)


def test_mutant_without_new_noise_at_the_top_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that reaches the top would keep the precision that its level held."""
    changed = mutant(noise_ladder, ("precisions[:, columns] = xp.where(is_below[", "_ = xp.where(is_below["))
    monkeypatch.setattr(ladder_path, "NoisePath", changed.NoisePath)
    assert not _stays_exact("noise", "noise not drawn again")
