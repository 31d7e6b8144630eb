"""Records of measured times, for the steps of each kernel and for whole runs."""

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
    gflops       10**9 additions and multiplications per second, counting only products with weights
    """

    shape: str
    chains: int
    kernel: str
    us_per_step: float
    gflops: float


@dataclass(frozen=True)
class Cost:
    """The time that a run takes to sample, excluding the start of Ray and reading and writing.

    gradient_evaluations  the total over all chains
    core_seconds          time of all chains, one batch after another
    seconds               time if workers share the batches, each on a core (or a GPU)
    """

    gradient_evaluations: int
    core_seconds: float
    seconds: float


@dataclass(frozen=True)
class RunEstimate:
    """The time that a configuration takes with a number of workers.

    least, most  the costs with the shortest and the longest trajectories that tuning can choose; equal if no
                 length is automatic
    likely       the cost with the settings that a trial found; None without a trial of sufficient length
    """

    workers: int
    least: Cost
    most: Cost
    likely: Cost | None


@dataclass(frozen=True)
class Change:
    """The time that a run would take with other options of the command `sample`.

    options  the options, as they are typed in a shell
    seconds  the time of the changed run
    note     what they do, if the options do not say it themselves
    """

    options: str
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Forecast:
    """The time that a run will take, measured in a second or two.

    workers         number of processes that share the batches
    seconds         time of the whole run
    before_draws    the part of `seconds` before the first draw is kept
    lengths         numbers of steps assumed for automatic lengths; empty if all are configured
    longest         time with the longest trajectories that tuning may choose
    changes         changes that would make the run faster, the fastest first
    start           the part of all these times for starting workers, which is not measured
    first_verdict   time before the first verdict if the run ends when it is ok; None for a fixed length
    levels          number of levels assumed for ladders that find it themselves; 0 if it is given
    is_of_ladders   whether the run has ladders
    """

    workers: int
    seconds: float
    before_draws: float
    lengths: tuple[int, ...] = ()
    longest: float = math.nan
    changes: tuple[Change, ...] = ()
    start: float = 0.0
    first_verdict: float | None = None
    levels: int = 0
    is_of_ladders: bool = False

    def after(self, start: float) -> Forecast:
        """Return the forecast if workers take `start` seconds before they begin to sample."""
        return replace(
            self,
            seconds=self.seconds + start,
            before_draws=self.before_draws + start,
            longest=self.longest + start,
            changes=tuple(replace(one, seconds=one.seconds + start) for one in self.changes),
            start=start,
            first_verdict=None if self.first_verdict is None else self.first_verdict + start,
        )


@dataclass(frozen=True)
class BenchResult:
    """The rows for one device and precision, and for a configuration also the estimate of its run."""

    device: str
    dtype: Dtype
    rows: tuple[Row, ...]
    estimate: RunEstimate | None = None

    def to_json(self) -> str:
        """Return one JSON object, with the key "estimate" only for a configuration."""
        fields = asdict(self)
        if self.estimate is None:
            del fields["estimate"]
        return json.dumps(fields)
