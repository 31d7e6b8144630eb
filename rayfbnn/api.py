"""The verbs, the same in Python and in the shell: each checks its arguments, then calls run/ or reduce/."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import gpu_is_available
from rayfbnn.data import read_cases, read_dataset
from rayfbnn.errors import ConfigError, StoreExistsError
from rayfbnn.run.cores import n_cores
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    import xarray

    from rayfbnn.reduce.check import CheckResult
    from rayfbnn.reduce.diagnostics import Diagnosis
    from rayfbnn.reduce.predict import Prediction
    from rayfbnn.run.evidence import Evidence
    from rayfbnn.run.running import RunSummary
    from rayfbnn.store.records import VerifyReport
    from rayfbnn.timing.runs import BenchResult

Spec = RunSpec | Mapping[str, Any] | str | Path  # a specification, its tables, or the TOML file they are in


def sample(
    spec: Spec,
    path: str | Path,
    *,
    set: Sequence[str] = (),
    workers: int | None = None,
    address: str | None = None,
    max_failures: int = 3,
    progress: bool = True,
) -> RunSummary:
    """Draw from the posterior that `spec` describes, into a new store at `path`.

    set      "key.path=value" replacements laid over the specification
    workers  actors on this machine (default: one a core); 0 runs everything in this process, without Ray
    address  of a Ray cluster to join instead, such as "auto"; `path` must then be on storage all nodes share

    Everything is checked before anything is created. Ctrl-C (or SIGTERM) once ends the run after the
    iterations under way, commits them and raises KeyboardInterrupt; twice ends it at once. `resume` goes on
    either way.
    """
    from rayfbnn.run.kernel import kernel_for
    from rayfbnn.run.running import run_to_end
    from rayfbnn.run.workers import check_ray

    path = Path(path)
    spec = _read_spec(spec, set)
    _check_new_path(path)
    _check_workers(spec, workers, address, max_failures)
    spec.check_gradient()
    dataset = read_dataset(spec)
    spec.check_data(dataset.n_cases)
    check_ray(workers, address)
    spec = _with_absolute_train_path(spec)
    store = Store.for_run(path, spec, dataset, kernel=kernel_for(spec))
    with store.lock():
        return run_to_end(
            store, workers=workers, address=address, max_failures=max_failures, progress=progress
        )


def resume(
    path: str | Path,
    *,
    iterations: int | None = None,
    spec: Spec | None = None,
    data: str | Path | None = None,
    workers: int | None = None,
    address: str | None = None,
    max_failures: int = 3,
    progress: bool = True,
) -> RunSummary:
    """Go on with a run that was stopped or killed, to the same bits; or make a run longer.

    iterations  of the last phase, in all: as many as planned or more
    spec        compared with the store's: anything that differs is named and refused, but for more iterations
    data        the training file, if it is no longer where it was; its cases must be those of the store

    The store has its own copy of the training cases, so the file need not be there any more.
    """
    from rayfbnn.run import resuming
    from rayfbnn.run.running import run_to_end

    store = Store.open(Path(path))
    _check_is_run(store)
    _check_workers(store.spec, workers, address, max_failures)
    resuming.check_version(store)
    resuming.compare_kernel(store)
    if spec is not None:
        iterations = resuming.agreed_iterations(store, _read_spec(spec, ()), iterations)
    if iterations is not None:
        resuming.check_length(store, iterations)
    resuming.compare_data(store, data)
    with store.lock():
        if iterations is not None:
            resuming.make_longer(store, iterations)
        return run_to_end(
            store, workers=workers, address=address, max_failures=max_failures, progress=progress
        )


def predict(
    path: str | Path | Sequence[str | Path],
    *,
    data: str | Path,
    out: str | Path | None = None,
    skip: int = 0,
) -> Prediction:
    """Predictions for the cases in `data`, pooled over one store or several of the same posterior.

    out   a .csv or .parquet file for the table, one row per case; replaced if it is there
    skip  draws of each chain that are left out, the first ones
    """
    from rayfbnn.reduce.predict import predict as reduce_predict

    stores = [_opened(each, skip) for each in ([path] if isinstance(path, str | Path) else path)]
    if not stores:
        raise ConfigError("path: no store given; give one or several")
    if out is not None:
        _check_table_path(Path(out))
    model = stores[0].spec.model
    inputs, targets = read_cases(data, stores[0].data, model.kind, classes=model.classes)
    prediction = reduce_predict(stores, inputs, targets)
    if out is not None:
        _write_table(prediction.table, Path(out))
    return prediction


def diagnose(
    path: str | Path,
    *,
    cases: int = 10,
    max_rhat: float = 1.01,
    min_ess: float = 400.0,
    skip: int = 0,
) -> Diagnosis:
    """Whether the chains agree: R-hat, effective sample sizes, acceptance, divergences, and a verdict.

    cases  training cases, evenly spaced, at which the network's outputs are looked at
    skip   draws of each chain that are left out, the first ones
    """
    from rayfbnn.reduce.diagnostics import diagnose as reduce_diagnose

    _check_cases(cases)
    return reduce_diagnose(_opened(path, skip), cases=cases, max_rhat=max_rhat, min_ess=min_ess)


def reject(
    spec: Spec,
    path: str | Path,
    *,
    draws: int,
    set: Sequence[str] = (),
    proposals_per_round: int = 1000,
    max_proposals: int = 100_000_000,
    progress: bool = True,
) -> RunSummary:
    """Exact, independent draws by rejection (Neal 2022, "Rejection sampling"), into a new store at `path`.

    For small problems: the share of proposals accepted falls fast with the number of cases. The store is
    created when all draws are there; its one chain has them in order.
    """
    from rayfbnn.mcmc.rejection import rejection_draws
    from rayfbnn.run.exact import exact_blocks
    from rayfbnn.run.kernel import kernel_for
    from rayfbnn.run.progress import show_rejection
    from rayfbnn.run.running import RunSummary
    from rayfbnn.run.sampler import build_posterior

    path = Path(path)
    spec = _read_spec(spec, set)
    _check_new_path(path)
    for name, value in (
        ("draws", draws),
        ("proposals_per_round", proposals_per_round),
        ("max_proposals", max_proposals),
    ):
        if value < 1:
            raise ConfigError(f"{name}: must be at least 1, got {value}")
    if spec.model.kind == "heteroscedastic" and spec.model.noise_floor == 0:
        raise ConfigError(
            "model.noise_floor: missing; without it the density of a target has no bound, so that no proposal"
            " can be accepted; give the least standard deviation of the noise, such as 0.01"
        )
    dataset = read_dataset(spec)
    posterior = build_posterior(spec, dataset, device="cpu")
    with show_rejection(draws, show=progress) as on_progress:
        rounds = rejection_draws(
            posterior.rejection_proposal,
            seed=spec.seed,
            draws=draws,
            chains_per_round=proposals_per_round,
            max_proposals=max_proposals,
            on_progress=on_progress,
        )
        positions, precisions = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
    store = Store.create(
        path,
        spec=_with_absolute_train_path(spec),
        data=dataset,
        kernel=kernel_for(spec),
        kind="exact",
        n_draws=draws,
        chains=1,
        chains_per_batch=1,
        draws_per_block=min(draws, spec.draws_per_block),
    )
    with store.lock():
        for block in exact_blocks(posterior, positions, precisions, store.draws_per_block):
            store.commit(0, block)
    return RunSummary(str(path), chains=1, draws=draws, acceptance=None, divergences=0, failures=0)


def prior(spec: Spec, path: str | Path, *, draws: int, set: Sequence[str] = ()) -> RunSummary:
    """Independent draws from the prior, into a new store at `path`: networks, functions and data sets.

    Each draw has the precisions and parameters of a network, its outputs at the training inputs, and
    targets drawn there from the model, noise included (`prior_predictive` in the store). The training
    targets are not looked at, but for standardisation. `predict` and `plot` read the store as they read any
    other. The phases of the specification are not run, so layers may have step and erf units.

    Draw d is where chain d of a run with `initial = { from_prior = true }` starts.
    """
    from rayfbnn.run.kernel import kernel_for
    from rayfbnn.run.prior_draws import prior_blocks
    from rayfbnn.run.running import RunSummary
    from rayfbnn.run.sampler import build_posterior

    path = Path(path)
    spec = _read_spec(spec, set)
    _check_new_path(path)
    if draws < 1:
        raise ConfigError(f"draws: must be at least 1, got {draws}")
    dataset = read_dataset(spec)
    posterior = build_posterior(spec, dataset, device="cpu")
    store = Store.create(
        path,
        spec=_with_absolute_train_path(spec),
        data=dataset,
        kernel=kernel_for(spec),
        kind="prior",
        n_draws=draws,
        chains=1,
        chains_per_batch=1,
        draws_per_block=min(draws, spec.draws_per_block),
    )
    with store.lock():
        for block in prior_blocks(posterior, dataset, spec.seed, draws, store.draws_per_block):
            store.commit(0, block)
    return RunSummary(str(path), chains=1, draws=draws, acceptance=None, divergences=0, failures=0)


def evidence(
    spec: Spec,
    *,
    set: Sequence[str] = (),
    temperatures: int = 1000,
    power: float = 4.0,
    progress: bool = True,
) -> Evidence:
    """The log marginal likelihood of the training targets, by annealed importance sampling (Neal 2001).

    Each of the specification's chains goes from a draw of the prior through inverse temperatures
    (j/temperatures)**power to the posterior, with the operations of the last phase once at each; the mean
    of their weights estimates the marginal likelihood without bias. More temperatures bring the weights
    closer together, more chains average over them.
    """
    from rayfbnn.run.evidence import evidence as estimate
    from rayfbnn.run.progress import show_evidence

    spec = _read_spec(spec, set)
    spec.check_gradient()
    _check_workers(spec, None, None, 0)
    if temperatures < 1:
        raise ConfigError(f"temperatures: must be at least 1, got {temperatures}")
    if not 0 < power <= 100:
        raise ConfigError(f"power: must be above 0 and at most 100, got {power}")
    if spec.chains < 2:
        raise ConfigError(
            f"chains: a standard error needs at least 2 runs, better 100 or more, got {spec.chains}"
        )
    if spec.temperature != 1:
        raise ConfigError(
            f"temperature: a marginal likelihood is that of the posterior itself, got {spec.temperature:g};"
            " it must be 1 (or left out)"
        )
    dataset = read_dataset(spec)
    spec.check_data(dataset.n_cases)
    with show_evidence(show=progress) as on_progress:
        return estimate(spec, dataset, temperatures=temperatures, power=power, on_progress=on_progress)


def check(
    path: str | Path,
    exact: str | Path,
    *,
    false_alarm_rate: float = 1e-3,
    cases: int = 10,
    skip: int = 0,
) -> CheckResult:
    """Whether a run's draws and the exact draws of `reject` can be from one distribution.

    false_alarm_rate  probability of a difference being reported where there is none, over all quantities
    skip  draws of each chain of the run that are left out, the first ones
    """
    from rayfbnn.reduce.check import check as reduce_check

    if not 0 < false_alarm_rate < 1:
        raise ConfigError(f"false_alarm_rate: must be between 0 and 1, got {false_alarm_rate}")
    _check_cases(cases)
    stores = _opened(path, skip), Store.open(Path(exact))
    return reduce_check(*stores, false_alarm_rate=false_alarm_rate, cases=cases)


def show(what: Spec, *, set: Sequence[str] = ()) -> str:
    """What a specification or a store means, in words: network, priors, schedule, defaults, how far it is.

    set  "key.path=value" replacements laid over a specification; that of a store is fixed
    """
    from rayfbnn.describe.configuration import describe
    from rayfbnn.describe.schedule import describe_tuning

    if isinstance(what, str | Path) and Path(what).is_dir():
        if set:
            raise ConfigError(
                f"set: the specification of the store {what} is fixed, got {set[0]}; leave it out"
            )
        store = Store.open(Path(what))
        return describe(store.spec, store=store) + "\n" + describe_tuning(store) + _describe_progress(store)
    return describe(_read_spec(what, set))


def bench(
    spec: Spec | None = None,
    *,
    set: Sequence[str] = (),
    device: str | None = None,
    chains: int | None = None,
    quick: bool = False,
    progress: bool = True,
) -> BenchResult:
    """Microseconds per leapfrog step of a chain on this machine, by array code and by the kernel chosen here.

    Of networks of standard shapes in float32 with made-up data; or, given a specification, of each kind of
    trajectory that its run has, with its network, data, precision and batches, and an estimate of what the
    whole run takes: from the shortest to the longest trajectories where their length is automatic, and what
    is likely, with the lengths that the first rounds of its tuning find in 20 seconds, in a temporary store.

    device  "cpu" or "gpu"; that of the specification unless given, or "cpu"
    chains  advanced together: 16 unless given, 4096 on a GPU, or the chains of the specification's batches;
            at most the specification's chains
    quick   leaves the rounds of tuning out
    """
    from rayfbnn.run.progress import show_bench
    from rayfbnn.timing.runs import BenchResult
    from rayfbnn.timing.steps import STANDARD_SHAPES, rows_of_shapes

    if device not in (None, "cpu", "gpu"):
        raise ConfigError(f'device: must be "cpu" or "gpu", got "{device}"')
    if chains is not None and chains < 1:
        raise ConfigError(f"chains: must be at least 1, got {chains}")
    if spec is None and set:
        raise ConfigError(f"set: there is no specification to replace {set[0]} in; give one, or leave it out")
    if spec is None and quick:
        raise ConfigError("quick: there is no specification whose tuning could be left out; give one")
    given = {"device": device and f'"{device}"', "chains_per_batch": chains}
    over = [*set, *(f"{name}={value}" for name, value in given.items() if value is not None)]
    read = None if spec is None else _read_spec(spec, over)
    device = device or (read.device if read else "cpu")
    if device == "gpu" and not gpu_is_available():
        raise ConfigError('device: there is no GPU here that CuPy can use, got "gpu"; use "cpu"')
    if read is not None:
        return _bench_run(read, device, quick=quick, progress=progress)
    chains = chains or (4096 if device == "gpu" else 16)
    rows = rows_of_shapes(STANDARD_SHAPES, device=device, chains=chains, report=show_bench(show=progress))
    return BenchResult(device, "float32", rows)


def _bench_run(read: RunSpec, device: str, *, quick: bool, progress: bool) -> BenchResult:
    """The part of `bench` that is given a specification."""
    from rayfbnn.run.progress import show_bench, show_trial
    from rayfbnn.run.sampler import build_posterior
    from rayfbnn.timing import trial
    from rayfbnn.timing.runs import BenchResult, estimate_run
    from rayfbnn.timing.steps import rows_of_operations

    read.check_gradient()
    dataset = read_dataset(read)
    read.check_data(dataset.n_cases)
    posterior = build_posterior(read, dataset, device=device)
    operations = [operation for phase in read.phase for operation in phase.operations]
    chains = min(read.chains, read.chains_per_batch)
    rows = rows_of_operations(posterior, operations, chains=chains, report=show_bench(show=progress))
    tried = None
    if not quick and trial.has_lengths_to_find(read):
        show_trial(trial.SECONDS, show=progress)
        tried = trial.tried_settings(read, dataset, seconds=trial.SECONDS)
    estimate = estimate_run(
        posterior,
        [(phase.operations, phase.iterations) for phase in read.phase],
        chains=read.chains,
        chains_per_batch=chains,
        sigmas=read.initial.sigmas,
        workers=1 if device == "gpu" else n_cores(),
        tuning_phases=read.tuning_phases,
        tried=tried,
    )
    return BenchResult(device, read.dtype, rows, estimate)


def verify(path: str | Path, *, repair: bool = False) -> VerifyReport:
    """Every file of a store against its checksum and commit record.

    repair  set blocks aside that are damaged, and those after them, so that `resume` computes them again;
            the report is then of what was wrong
    """
    from rayfbnn.store.verify import verify as verify_files

    return Store.open(Path(path), check_records=False).repair() if repair else verify_files(Path(path))


def plot(
    path: str | Path,
    *,
    out: str | Path = "plots",
    data: str | Path | None = None,
    input_name: str | None = None,
    skip: int = 0,
) -> list[Path]:
    """Pictures of a run as PNG files in the folder `out`, and where they are.

    Traces, convergence, predictive bands along one input; where inputs have sigmas of their own, these; of
    survival times, survival curves. Of draws from the prior: functions and bands along one input.

    data        cases with real targets: adds predicted against actual values and an overview
    input_name  which input the predictive bands run along; the first if not given
    skip        draws of each chain that are left out, the first ones
    """
    from rayfbnn.reduce import plots

    store, folder = _opened(path, skip), Path(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"out: is a file, got {folder}; give a folder for the pictures")
    _check_folder(folder / "bands.png" if folder.exists() else folder)
    if input_name is not None and input_name not in store.data.input_names:
        there_are = ", ".join(store.data.input_names)
        raise ConfigError(f"input_name: no such input, got {input_name}; there are {there_are}")
    if data is not None and (store.kind == "prior" or store.spec.model.kind != "real"):
        what = "draws from the prior" if store.kind == "prior" else f"{store.spec.model.kind} targets"
        raise ConfigError(f"data: of {what} there are no pictures against actual values; leave {data} out")
    if store.kind == "prior":
        folder.mkdir(exist_ok=True)
        return [
            plots.function_lines(store, folder / "functions.png", input_name=input_name),
            plots.predictive_bands([store], folder / "bands.png", input_name=input_name),
        ]
    prediction, targets = None, None
    if data is not None:
        inputs, targets = read_cases(data, store.data, "real")
        if targets is None:
            raise ConfigError(f"data: {data} has no targets to compare predictions with")
        prediction = predict(path, data=data, skip=skip)
    diagnosis = diagnose(path, skip=skip)
    folder.mkdir(exist_ok=True)
    made = [
        plots.traces_and_ranks(store, folder / "traces.png"),
        plots.rhat_and_ess(diagnosis, folder / "convergence.png"),
        plots.predictive_bands([store], folder / "bands.png", input_name=input_name),
    ]
    if plots.has_relevance(store):
        made.append(plots.relevance_of_inputs(store, folder / "relevance.png"))
    if store.spec.model.kind == "survival":
        made.append(plots.survival_curves(store, folder / "survival.png"))
    if prediction is not None:
        names = store.data.target_names
        made += [
            plots.predicted_against_actual(prediction, targets, folder / "predicted.png", target_names=names),
            plots.overview(store, diagnosis, prediction, targets, folder / "overview.png"),
        ]
    return made


def open(path: str | Path) -> xarray.DataTree:
    """The draws committed so far as an xarray DataTree, as ArviZ takes it; read when looked at."""
    return Store.open(Path(path)).datatree()


def _describe_progress(store: Store) -> str:
    lines = [
        f"store: {store.path} ({store.kind}), {store.n_chains} chains, {store.committed_draws} draws each"
    ]
    for batch in range(store.n_batches):
        chains, at = store.batch_chains(batch), store.progress(batch)
        lines.append(
            f"  chains {chains[0]}-{chains[-1]}: iteration {at.iteration} of {store.spec.total_iterations},"
            f" {at.draws} draws, {int(at.totals.get('diverged', 0))} divergences"
        )
    return "\n".join(lines if store.kind == "mcmc" else lines[:1])


def _read_spec(spec: Spec, overrides: Sequence[str]) -> RunSpec:
    if isinstance(spec, RunSpec):
        return RunSpec.from_dict(_with_absolute_train_path(spec).to_dict(), overrides) if overrides else spec
    if isinstance(spec, Mapping):
        return RunSpec.from_dict(spec, overrides)
    return RunSpec.from_toml(spec, overrides)


def _with_absolute_train_path(spec: RunSpec) -> RunSpec:
    """The store remembers where the training file is, wherever it is resumed from."""
    raw = spec.to_dict()
    raw["data"]["train"] = str(spec.train_path.resolve())
    return RunSpec.from_dict(raw)


def _opened(path: str | Path, skip: int) -> Store:
    from rayfbnn.reduce.skipping import without_first

    return without_first(Store.open(Path(path)), skip)


def _check_new_path(path: Path) -> None:
    if os.path.lexists(path):
        raise StoreExistsError(f"{path}: is already there; resume it, or give a new path")
    _check_folder(path)


def _check_folder(path: Path) -> None:
    """Whether a file can be created at `path`."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{path}: there is no folder {folder}; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: the folder {folder} cannot be written to; give another path")


def _check_workers(spec: RunSpec, workers: int | None, address: str | None, max_failures: int) -> None:
    if workers is not None and workers < 0:
        raise ConfigError(f"workers: must be 0 (this process) or more, got {workers}")
    if workers == 0 and address is not None:
        raise ConfigError(
            f"workers: 0 means this process, which no cluster is needed for, got address {address}"
        )
    if max_failures < 0:
        raise ConfigError(f"max_failures: must be 0 or more, got {max_failures}")
    if spec.device == "gpu" and address is None and not gpu_is_available():
        raise ConfigError('device: there is no GPU here that CuPy can use, got "gpu"; use "cpu"')


def _check_cases(cases: int) -> None:
    if cases < 1:
        raise ConfigError(f"cases: must be at least 1, got {cases}")


def _check_is_run(store: Store) -> None:
    if store.kind != "mcmc":
        made_by = {"exact": "exact draws of `reject`", "prior": "draws of `prior`"}[store.kind]
        raise ConfigError(f"{store.path}: holds {made_by}, which are complete: nothing to resume")


def _check_table_path(path: Path) -> None:
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"out: must end in .csv or .parquet, got {path}")
    if path.is_dir():
        raise ConfigError(f"out: is a folder, got {path}")
    _check_folder(path)


def _write_table(table: Any, path: Path) -> None:
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)
