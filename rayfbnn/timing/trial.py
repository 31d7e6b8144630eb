"""Tries the first rounds of a run's tuning for a limited time, to find likely settings."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.mcmc.operation import AUTO, Settings, Tunable
from rayfbnn.output.whole_file import output_errors
from rayfbnn.run.executor import InProcess
from rayfbnn.run.hardware import kernel_name
from rayfbnn.run.running import run_rounds
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from rayfbnn.store.tuning_rounds import Round, n_rounds, rounds

if TYPE_CHECKING:
    from rayfbnn.data import Dataset

SECONDS = 20.0  # enough for the robot arm on a machine that runs nothing else
# A length can at most double in each round. In this number of rounds it can grow from 16, the first, to 4096.
_LEAST_ROUNDS = 8


def has_lengths_to_find(spec: RunSpec) -> bool:
    """Return True if any trajectories of a run have an automatic length."""
    return bool(_lengths_to_find(rounds(spec)))


def tried_settings(spec: RunSpec, dataset: Dataset, *, seconds: float) -> Mapping[Tunable, Settings] | None:
    """Return the settings that the first rounds of tuning find for one batch of chains in this time.

    The batch runs alone, in this process, with a temporary store. The run ends after the iteration during
    which the time is over, or after the last round. Returns None if an automatic length had fewer than eight
    rounds and more rounds would follow, because it is then not yet reliable.
    """
    one_batch = {**spec.to_dict(), "chains": min(spec.chains, spec.chains_per_batch)}
    spec = RunSpec.from_dict(one_batch).resolved(spec.encoding)
    with output_errors("the folder for temporary files (TMPDIR)"):
        temporary = tempfile.TemporaryDirectory()
    with temporary as folder:
        store = Store.for_run(Path(folder) / "trial.zarr", spec, dataset, kernel=kernel_name(spec))
        planned, end = store.tuning.rounds, time.monotonic() + seconds
        with store.lock(), InProcess() as executor:
            for progress in run_rounds(store, executor):
                if time.monotonic() >= end or progress.has_done(planned[-1].last):
                    executor.request_stop()
        n_done, settings = store.tuning.latest()
    is_enough = all(
        n_rounds(planned[:n_done], operation) >= min(_LEAST_ROUNDS, n_rounds(planned, operation))
        for operation in _lengths_to_find(planned)
    )
    return settings if is_enough else None


def _lengths_to_find(planned: Sequence[Round]) -> tuple[Tunable, ...]:
    return tuple(
        operation
        for planned_round in planned
        for operation in planned_round.operations
        if operation.steps == AUTO
    )
