"""A look reads a few quantities at a time, and its records are those of looks that read all at once."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np
import pytest

from rayfbnn.draws import quantities as reading
from rayfbnn.draws.quantities import quantities
from rayfbnn.study.files import Due, take_look
from rayfbnn.study.rule import Rule, judge
from tests.support.store.standin_store import make_run, make_spec

RULE = Rule(least_draws=5, cases=4)
SEEDS = (3, 5, 8)


@pytest.mark.parametrize("group_bytes", [1.0, 1e9])
def test_a_look_is_that_of_all_quantities_together(
    group_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {seed: make_run(make_spec(), n_draws=30, seed=seed) for seed in SEEDS}
    plain = [quantities(run, cases=4) for run in runs.values()]
    defaults = cast("dict[str, Any]", reading.Quantities.each.__kwdefaults__)
    monkeypatch.setitem(defaults, "memory_bytes", group_bytes)
    stores: Any = {seed: run.store for seed, run in runs.items()}
    look = take_look(Due(1, 30, SEEDS, is_last=True), 30, stores, {}, RULE)
    expected = {name: judge(np.stack([one[name] for one in plain]), SEEDS, RULE) for name in plain[0]}
    assert list(look.quantities) == list(expected)
    for name, one in look.quantities.items():
        # A last bit of a function decides which of two draws is nearer to the median between them.
        assert one.rhat == pytest.approx(expected[name].rhat, rel=1e-3)
        assert one.model_copy(update={"rhat": expected[name].rhat}) == expected[name]
    for seed, one in zip(SEEDS, plain, strict=True):
        densities = one["log_likelihood"].tobytes() + one["log_prior"].tobytes()
        assert look.digests[seed] == hashlib.sha256(densities).hexdigest()


def test_a_look_without_members_judges_nothing() -> None:
    look = take_look(Due(1, 30, SEEDS, is_last=True), 30, {}, dict.fromkeys(SEEDS, "killed"), RULE)
    assert look.quantities == {} and look.digests == {} and not look.ok
