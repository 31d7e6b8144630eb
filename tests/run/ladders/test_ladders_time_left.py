"""The time left of ladders: it is not far off even in the first iterations of the warm-up."""

from __future__ import annotations

from pathlib import Path

from rayfbnn.run.estimate import relative_times
from rayfbnn.store.store import Store
from tests.support.small import make_store, write_train
from tests.support.store.ladder_runs import ladder_spec


def made(folder: Path, *, n_cases: int = 12, iterations: int = 400) -> Store:
    spec = ladder_spec(
        folder, settings={"warmup": 40, "annealing": 20, "adaptation": 60}, iterations=iterations
    )
    write_train(folder, n_cases=n_cases)
    return make_store(folder / "run.zarr", spec)


def test_gradients_count_for_more_in_larger_tables(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    of_small = relative_times(made(small))
    assert of_small[-1] < 2 * of_small[0]  # what is not gradients takes as long with one chain as with levels
    of_large = relative_times(made(large, n_cases=20_000))
    # A pair of ladders takes 704 gradients or more, the chain takes 16.
    assert of_large[-1] > 10 * of_large[0] and of_large[-1] == of_large[-2]
