"""A store that is disturbed, and what becomes of its draws."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rayfbnn import api
from rayfbnn.store.storage.places import place_of
from rayfbnn.store.store import Store

COMPARED = 200  # draws that are compared with an undisturbed run, where there are so many
# Exit codes of `rayfbnn run` that a disturbance may cause; those of other errors end the soak.
_ALLOWED = {0, 75, -signal.SIGKILL, -signal.SIGTERM}
_BUSY = 73  # the lease of a driver in a bucket that was killed a moment ago


@dataclass
class Disturbed:
    """A store that is disturbed, and what is known of it.

    committed  draws of each chain at the last look, which must never become fewer
    memory     megabytes: the most of each driver without workers, or on a cluster of the driver that was
               there longest, turn by turn
    """

    address: str
    committed: int = 0
    lost: int = 0
    turns: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)

    def note_end(self, exit_code: int, after: str, log: Path) -> None:
        """Count a turn that ended; raise AssertionError for an exit code that no disturbance explains."""
        self.turns[after] += 1
        is_busy = exit_code == _BUSY and self.address.startswith("s3://")
        assert exit_code in _ALLOWED or is_busy, (
            f"exit code {exit_code} after {after}: {log.read_text()[-2000:]}"
        )

    def look(self) -> None:
        """Count the draws that are committed; those that were there before and are not any more are lost."""
        draws = Store.open(self.address).committed_draws
        self.lost += max(0, self.committed - draws)
        self.committed = draws

    def check(self, undisturbed: Path) -> tuple[int, int]:
        """Check all files and the first draws; return how many draws there are, and how many are repeated."""
        report = api.verify(self.address)
        assert report.problems == (), report.problems
        ours, theirs = Store.open(place_of(self.address)), Store.open(undisturbed)
        n_draws = ours.committed_draws
        compared = slice(0, min(n_draws, COMPARED))
        for read in ("read_positions", "read_precisions"):
            first, expected = (getattr(one, read)(compared) for one in (ours, theirs))
            assert first.tobytes() == expected.tobytes(), f"{self.address}: other draws than undisturbed"
        names = ("energy", "log_prior", "log_likelihood")
        densities = np.stack([ours.read_stat(name, slice(0, n_draws)) for name in names], axis=2)
        distinct = sum(len(np.unique(chain, axis=0)) for chain in densities)
        return ours.n_chains * n_draws, ours.n_chains * n_draws - distinct

    def memory_line(self) -> str:
        """Return the megabytes at the start, after a third of the turns, and at the end, with a verdict.

        They rise once, when a driver first gathers blocks into chunks of some 32 MiB for each array.
        """
        if not self.memory:
            return "unknown"
        third = len(self.memory) // 3
        parts = (self.memory[:1], self.memory[third : third + 3], self.memory[-3:])
        first, settled, last = (float(np.median(part)) for part in parts)
        verdict = "level" if last < 1.1 * settled else "GROWN"
        return f"{first:.0f} MB at the start, {settled:.0f} MB later, {last:.0f} MB at the end ({verdict})"
