"""The verb that times this machine: bench."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rayfbnn.data import Source
from rayfbnn.errors import ConfigError
from rayfbnn.output.printing import say
from rayfbnn.run.estimate import usual_settings
from rayfbnn.run.hardware import n_cores, with_batches
from rayfbnn.run.sampler import build_posterior
from rayfbnn.timing.forecast import estimate_run
from rayfbnn.timing.steps import STANDARD_SHAPES, BenchResult, Row, rows_of_operations, rows_of_shapes
from rayfbnn.verbs.arguments import Spec, check_counts, check_device, read_run_data, read_spec

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec


def bench(
    spec: Spec | None = None,
    *,
    data: Source | None = None,
    set: Sequence[str] = (),
    device: str | None = None,
    chains: int | None = None,
    quick: bool = False,
    progress: bool = True,
) -> BenchResult:
    """Time leapfrog steps on this machine, of standard networks or of a configuration's own trajectories.

    The times are microseconds per step of a chain, by array code and by the kernel that is chosen here. The
    standard networks are in float32 with generated data. For a configuration the steps are those of the
    trajectories that it describes, with its network, data, precision and batches, and there is an estimate of
    the time of the whole run. If the length of trajectories is automatic, the estimate is a range from the
    shortest to the longest. For ladders, `chains` is the number of ladders in a batch, and their levels
    advance together; if the number of levels is automatic, 24 are assumed. There is no estimate for ladders
    on a GPU.

    Parameters
    ----------
    spec
        The configuration: a TOML file. The default is standard networks. From Python also nested
        dictionaries, or a RunSpec.
    data, set
        See `sample`.
    device
        "cpu" or "gpu". The default is the device of the configuration, or "cpu".
    chains
        Number of chains that advance together, at most the chains of the configuration. The default is a
        batch of the configuration, or 16, or 4096 on a GPU.
    quick
        Time each standard network for a tenth of a second instead of a second.
    progress
        See `sample`.

    Returns
    -------
    BenchResult
        A row for each network or kind of trajectory and each kernel; for a configuration an estimate.
    """
    if device not in (None, "cpu", "gpu"):
        raise ConfigError(f'device: must be "cpu" or "gpu", got "{device}"')
    if chains is not None:
        check_counts(least=1, chains=chains)
    if spec is not None:
        overrides = list(set)
        if device is not None:
            overrides.append(f'device="{device}"')
        if chains is not None:
            overrides.append(f"chains_per_batch={chains}")
        return _bench_run(read_spec(spec, overrides), data, progress=progress)
    if data is not None:
        raise ConfigError("data: needs a configuration; give one, or leave it out")
    if set:
        raise ConfigError(f"set: needs a configuration, got {set[0]}; give one, or leave it out")
    device = device or "cpu"
    check_device(device)
    chains = chains or (4096 if device == "gpu" else 16)
    rows = rows_of_shapes(
        STANDARD_SHAPES,
        device=device,
        chains=chains,
        seconds=0.1 if quick else 1.0,
        report=partial(_show_row, show=progress),
    )
    return BenchResult(device, "float32", rows)


def _bench_run(spec: RunSpec, data: Source | None, *, progress: bool) -> BenchResult:
    check_device(spec.device)
    spec, dataset = read_run_data(spec, data)
    spec = spec if spec.device == "gpu" else with_batches(spec, None, None)
    spec.check_gradient()
    spec.check_data(dataset.n_cases)
    posterior = build_posterior(spec, dataset, device=spec.device)
    operations = [operation for phase in spec.phase for operation in phase.operations]
    chains = min(spec.chains, spec.chains_per_batch)
    if spec.ladder is not None:
        n_levels, operations = usual_settings(spec).n_levels, [*spec.phase[-1].operations]
        chains *= n_levels
        if progress and spec.ladder.levels == "auto":
            say(f"the adaptation will find the number of levels; {n_levels} are assumed")
    rows = rows_of_operations(posterior, operations, chains=chains, report=partial(_show_row, show=progress))
    estimate = None
    if spec.device == "cpu" or spec.ladder is None:
        estimate = estimate_run(spec, posterior, workers=1 if spec.device == "gpu" else n_cores())
    return BenchResult(spec.device, spec.dtype, rows, estimate)


def _show_row(row: Row, *, show: bool) -> None:
    if show:
        say(f"{row.shape}, {row.chains} chains, {row.kernel}: {row.us_per_step:g} us")
