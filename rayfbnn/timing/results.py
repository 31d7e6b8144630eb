"""The records of measured times: of each kernel's steps, and of whole runs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Literal

Dtype = Literal["float32", "float64"]


@dataclass(frozen=True)
class Row:
    """The time that one kernel takes for one network.

    shape        the units of each layer and the number of cases, such as "2-16-2/200"; for a configuration
                 also the kind of trajectory, such as "2-16-2/200 hybrid-marginal over outputs"
    chains       number of chains that advance together
    kernel       name of the kernel
    us_per_step  microseconds for one leapfrog step of one chain
    gflops       10**9 additions and multiplications a second; only those of products with weights count
    """

    shape: str
    chains: int
    kernel: str
    us_per_step: float
    gflops: float


@dataclass(frozen=True)
class Cost:
    """The time that a run takes to sample, without starting Ray and without reading and writing.

    gradient_evaluations  of all chains together
    core_seconds          time of all chains, one batch after another
    seconds               time when workers share the batches, each on a core (or a GPU)
    """

    gradient_evaluations: int
    core_seconds: float
    seconds: float


@dataclass(frozen=True)
class RunEstimate:
    """The time that a configuration takes with a number of workers.

    least, most  the costs with the shortest and with the longest trajectories that an automatic length can
                 become; equal if no length is automatic
    likely       the cost with the settings that a trial found; None if there was no trial or it was too short
    """

    workers: int
    least: Cost
    most: Cost
    likely: Cost | None


@dataclass(frozen=True)
class Change:
    """The time that a run would take after a change of its configuration.

    what     the change in words
    seconds  the time of the changed run
    """

    what: str
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """The time that a run will take, measured in a second or two.

    workers         number of processes that share the batches
    seconds         time of the whole run
    before_draws    the part of it before the first draw is kept
    lengths         numbers of steps that were taken for automatic lengths; empty if all are configured
    longest         time with the longest trajectories that tuning may find
    changes         changes that would make the run quicker, the quickest first
    start           the part of all times in which workers start, which is not measured
    """

    workers: int
    seconds: float
    before_draws: float
    lengths: tuple[int, ...] = ()
    longest: float = math.nan
    changes: tuple[Change, ...] = ()
    start: float = 0.0

    def after(self, start: float) -> Forecast:
        """Return the forecast of a run whose workers take `start` seconds before they sample."""
        return replace(
            self,
            seconds=self.seconds + start,
            before_draws=self.before_draws + start,
            longest=self.longest + start,
            changes=tuple(Change(one.what, one.seconds + start) for one in self.changes),
            start=start,
        )


@dataclass(frozen=True)
class BenchResult:
    """The rows for one device and precision, and for a configuration the estimate of its run."""

    device: str
    dtype: Dtype
    rows: tuple[Row, ...]
    estimate: RunEstimate | None = None

    def to_json(self) -> str:
        """Return one JSON object; it has "estimate" only for a configuration."""
        fields = asdict(self)
        if self.estimate is None:
            del fields["estimate"]
        return json.dumps(fields)
