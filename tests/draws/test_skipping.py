"""Skipping the first draws of each chain gives the same results as a store of the other draws."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.answers.diagnostics import diagnose
from rayfbnn.answers.predict import predict
from rayfbnn.draws.skipping import without_first
from rayfbnn.errors import ConfigError
from tests.support.store.standin_store import MemoryStore, make_data, make_spec, make_store


def later(store: MemoryStore, skip: int) -> MemoryStore:
    """A store without the first draws."""
    stats = {name: values[:, skip:] for name, values in store.stats.items()}
    return MemoryStore(store.spec, store.data, store.positions[:, skip:], store.precisions[:, skip:], stats)


@pytest.mark.parametrize("skip", [1, 7, 19])
def test_what_is_read_is_what_was_not_skipped(skip: int) -> None:
    store = make_store(make_spec(), n_draws=20)
    ours, theirs = without_first(store, skip), later(store, skip)
    assert ours.committed_draws == 20 - skip
    for name in ("read_positions", "read_precisions"):
        for draws in (slice(None), slice(0, 1), slice(0, 20 - skip)):
            for chains in (slice(None), slice(1, 3)):
                values, expected = (getattr(reader, name)(draws, chains) for reader in (ours, theirs))
                assert np.array_equal(values, expected) and values.size
    assert np.array_equal(ours.read_stat("energy", slice(0, 1)), theirs.read_stat("energy", slice(0, 1)))
    assert ours.spec is store.spec and ours.n_chains == store.n_chains


def test_predictions_and_diagnoses_are_of_what_is_left() -> None:
    store = make_store(make_spec(), n_draws=30)
    unseen = make_data(store.spec, 4, seed=41)
    prediction = predict([without_first(store, 10)], unseen.inputs, unseen.targets)
    expected = predict([later(store, 10)], unseen.inputs, unseen.targets)
    assert prediction.table.equals(expected.table) and prediction.summary == expected.summary
    assert prediction.summary["draws"] == 20 * store.n_chains
    ours, theirs = diagnose(without_first(store, 10)), diagnose(later(store, 10))
    assert ours.quantities.equals(theirs.quantities) and ours.reasons == theirs.reasons


def test_nothing_skipped_is_the_store_itself() -> None:
    store = make_store(make_spec(), n_draws=5)
    assert without_first(store, 0) is store


@pytest.mark.parametrize(("skip", "right"), [(5, "must be below 5"), (-1, "must be 0 or more")])
def test_skips_that_make_no_sense_are_refused(skip: int, right: str) -> None:
    with pytest.raises(ConfigError, match=f"skip: {right}.*, got {skip}"):
        without_first(make_store(make_spec(), n_draws=5), skip)
