"""Views of some chains and draws read what whole arrays have there."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rayfbnn.answers.diagnostics import diagnose_draws
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import chosen, first_draws, halves, hold, thinned, with_chains, with_draws
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError, StoreError
from tests.support.store.standin_store import MemoryStore, make_data, make_run, make_spec, view

PARTS = (slice(None), slice(0, 1), slice(1, 3))


def assert_reads(run: Draws, of: Draws, chains: Array, draws: Array) -> None:
    """Every reader of `run` gives these chains and draws of another run, whole or in parts."""
    assert (run.n_chains, run.n_draws) == (len(chains), len(draws))
    whole = {
        "positions": of.store.positions,
        "precisions": of.store.precisions,
        "starts": np.repeat(np.arange(of.n_chains)[:, None], of.n_draws, axis=1),
    }
    for some_chains in PARTS:
        for some_draws in PARTS:
            for name, values in whole.items():
                expected = values[np.ix_(chains[some_chains], draws[some_draws])]
                np.testing.assert_array_equal(getattr(run, name)(some_chains, some_draws), expected)
            energy = of.store.stats["energy"][np.ix_(chains[some_chains], draws[some_draws])]
            np.testing.assert_array_equal(run.stat("energy", some_chains, some_draws), energy)


@pytest.mark.parametrize("at_most", [1, 3, 6, 9, 50])
def test_thinned_draws_are_evenly_spaced_and_end_with_the_last(at_most: int) -> None:
    run = make_run(make_spec(), n_draws=50)
    some = thinned(run, at_most)
    step = -(-50 // at_most)
    expected = np.arange(49 - (some.n_draws - 1) * step, 50, step)
    assert some.n_draws <= at_most
    assert_reads(some, run, np.arange(4), expected)


def test_a_long_run_is_read_in_sixteen_blocks_from_the_first_to_the_last() -> None:
    run = make_run(make_spec(draws_per_block=2), n_draws=1000)
    run.store.stats["energy"][...] = np.arange(1000)
    some = thinned(run, 500)
    numbers = some.stat("energy")[0]
    assert len(numbers) == 32 and len(set(numbers // 2)) == 16
    assert numbers[0] == 0 and numbers[-1] == 999
    assert all(earlier < later for earlier, later in pairwise(numbers))


@pytest.mark.parametrize("skip", [1, 7, 19])
def test_draws_that_are_skipped_are_not_read(skip: int) -> None:
    run = make_run(make_spec(), n_draws=20)
    assert_reads(chosen(run, skip=skip), run, np.arange(4), np.arange(skip, 20))


@pytest.mark.parametrize("numbers", [[0], [2, 3], [0, 2], [0, 3, 4, 7, 8]])
@pytest.mark.parametrize("per_batch", [1, 3, 9])
def test_chosen_chains_are_read_whatever_their_batches(numbers: list[int], per_batch: int) -> None:
    run = replace(make_run(make_spec(chains=9), n_draws=20), chains_per_batch=per_batch)
    some = with_chains(run, np.array(numbers))
    assert_reads(some, run, np.array(numbers), np.arange(20))
    assert some.chain_numbers == tuple(numbers)
    assert_reads(with_chains(some, np.array([0])), run, np.array(numbers[:1]), np.arange(20))
    assert_reads(hold(some, np.array([1, 19])), run, np.array(numbers), np.array([1, 19]))


def test_the_last_draws_of_chosen_chains() -> None:
    run = make_run(make_spec(), n_draws=20)
    some = chosen(run, last=3, chains=[3, 1])
    assert_reads(some, run, np.array([1, 3]), np.array([17, 18, 19]))
    assert (some.skipped, chosen(some, skip=1).skipped, run.skipped) == (17, 18, 0)


def test_views_of_views_read_what_both_leave() -> None:
    run = make_run(make_spec(), n_draws=40)
    later = chosen(run, skip=10)
    assert_reads(with_draws(later, np.array([0, 3, 29])), run, np.arange(4), np.array([10, 13, 39]))
    assert_reads(first_draws(later, 2), run, np.arange(4), np.array([10, 11]))
    first, second = halves(later)
    assert_reads(first, run, np.arange(2), np.arange(10, 40))
    assert_reads(second, run, np.arange(2, 4), np.arange(10, 40))
    assert_reads(hold(second, np.array([1, 2, 5])), run, np.arange(2, 4), np.array([11, 12, 15]))
    assert_reads(thinned(second, 30), run, np.arange(2, 4), np.arange(10, 40))


def test_draws_that_are_held_are_read_once() -> None:
    run = make_run(make_spec(), n_draws=20)
    held = hold(run, np.array([3, 19]), dtype="float32")
    expected = run.store.positions[:, [3, 19]].copy()
    run.store.positions[...] = np.nan
    np.testing.assert_array_equal(held.positions(), expected)
    assert (held.spec.dtype, run.spec.dtype) == ("float32", "float64")


def test_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="slices of step 1"):
        make_run(make_spec()).positions(draws=slice(0, 10, 2))


def test_what_is_committed_later_is_not_in_the_view() -> None:
    run = make_run(make_spec(), n_draws=20)
    run.store.committed_draws = 25
    assert (run.n_draws, run.positions().shape[1], chosen(run, skip=5).n_draws) == (20, 20, 15)


def test_predictions_and_diagnoses_are_of_what_is_left() -> None:
    run = make_run(make_spec(), n_draws=30)
    store = run.store
    stats = {name: values[:, 10:] for name, values in store.stats.items()}
    left = view(MemoryStore(run.spec, run.data, store.positions[:, 10:], store.precisions[:, 10:], stats))
    unseen = make_data(run.spec, 4, seed=41)
    prediction = predict_from_draws([chosen(run, skip=10)], unseen.inputs, unseen.targets)
    expected = predict_from_draws([left], unseen.inputs, unseen.targets)
    assert prediction.table.equals(expected.table) and prediction.summary == expected.summary
    assert prediction.summary["draws"] == 20 * run.n_chains
    ours, theirs = diagnose_draws(chosen(run, skip=10)), diagnose_draws(left)
    assert ours.quantities.equals(theirs.quantities) and ours.reasons == theirs.reasons


def test_without_a_choice_the_run_is_returned_itself() -> None:
    run = make_run(make_spec(), n_draws=5)
    assert chosen(run) is run and thinned(run, 5) is run and first_draws(run, 9) is run


@pytest.mark.parametrize(("skip", "right"), [(5, "must be below 5"), (-1, "must be 0 or more")])
def test_skips_that_make_no_sense_are_refused(skip: int, right: str) -> None:
    with pytest.raises(ConfigError, match=f"skip: {right}.*, got {skip}"):
        chosen(make_run(make_spec(), n_draws=5), skip=skip)


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        ({"last": 6}, "last: must be from 1 to 5, the draws per chain in .*, got 6"),
        ({"last": 0}, "last: must be from 1 to 5"),
        ({"last": 2, "skip": 1}, "last: give either last or skip, got 2 and 1"),
        ({"chains": [0, 4]}, "chains: .* has 4 chains, numbered from 0 to 3, got 4"),
        ({"chains": [-1]}, "numbered from 0 to 3, got -1"),
        ({"chains": [1, 1]}, r"chains: give different numbers, .*, got \[1, 1\]"),
        ({"chains": []}, "chains: give different numbers"),
    ],
)
def test_choices_that_a_run_does_not_have_are_refused(choice: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        chosen(make_run(make_spec(), n_draws=5), **choice)


@pytest.mark.parametrize(("chains", "sizes"), [(4, (2, 2)), (5, (2, 3)), (1, (1, 1))])
def test_halves_have_every_draw_once(chains: int, sizes: tuple[int, int]) -> None:
    run = make_run(make_spec(chains=chains), n_draws=20)
    one, other = halves(run)
    assert (one.n_chains, other.n_chains) == sizes
    axis = 0 if chains > 1 else 1
    for name in ("positions", "precisions", "starts"):
        both = np.concatenate([getattr(one, name)(), getattr(other, name)()], axis=axis)
        np.testing.assert_array_equal(both, getattr(run, name)())
    energy = np.concatenate([one.stat("energy"), other.stat("energy")], axis=axis)
    np.testing.assert_array_equal(energy, run.stat("energy"))


def test_a_single_draw_has_no_halves() -> None:
    with pytest.raises(StoreError, match="has 1 draws; a comparison needs at least 2"):
        halves(make_run(make_spec(chains=1), n_draws=1))
