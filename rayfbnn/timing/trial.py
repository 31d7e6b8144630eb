"""The first rounds of a run's tuning tried for a bounded time, to see which settings they come to."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.mcmc.operations import AUTO, Tunable
from rayfbnn.mcmc.tuning.measuring import Settings
from rayfbnn.run.kernel import kernel_for
from rayfbnn.run.running import run_rounds
from rayfbnn.run.sampler import Progress
from rayfbnn.run.workers import InProcess
from rayfbnn.spec import RunSpec
from rayfbnn.store.rounds import Round, n_rounds, rounds
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    from rayfbnn.data import Dataset

SECONDS = 20.0  # enough for the robot arm on a machine where nothing else runs
# A length at most doubles from round to round: after so many it may be any, from the first, 16, to 4096.
LEAST_ROUNDS = 8


def has_lengths_to_find(spec: RunSpec) -> bool:
    """Whether some trajectories of a run have an automatic length."""
    return bool(_lengths_to_find(rounds(spec)))


def tried_settings(spec: RunSpec, dataset: Dataset, *, seconds: float) -> Mapping[Tunable, Settings] | None:
    """The settings that the first rounds of tuning find for one batch of chains in so much time.

    They are those of a run of that batch alone, in this process, in a temporary store. It ends with the
    iteration under way when the time is over, or with the last round. None where some automatic length has
    been through fewer than eight rounds and there are more: it would say little.
    """
    spec = RunSpec.from_dict({**spec.to_dict(), "chains": min(spec.chains, spec.chains_per_batch)})
    with tempfile.TemporaryDirectory() as folder:
        store = Store.for_run(Path(folder) / "trial.zarr", spec, dataset, kernel=kernel_for(spec))
        planned, end = store.tuning.rounds, time.monotonic() + seconds
        with store.lock(), InProcess() as executor:

            def look_at_the_clock(progress: Progress) -> None:
                if time.monotonic() >= end or progress.has_done(planned[-1].last):
                    executor.request_stop()

            run_rounds(store, executor, look_at_the_clock)
        n_done, settings = store.tuning.latest()
    is_enough = all(
        n_rounds(planned[:n_done], each) >= min(LEAST_ROUNDS, n_rounds(planned, each))
        for each in _lengths_to_find(planned)
    )
    return settings if is_enough else None


def _lengths_to_find(planned: Sequence[Round]) -> tuple[Tunable, ...]:
    return tuple(operation for each in planned for operation in each.operations if operation.steps == AUTO)
