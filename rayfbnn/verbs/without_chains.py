"""The verbs that draw independently: reject (exact draws), prior, and evidence."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.data import Source
from rayfbnn.errors import ConfigError, SamplingError
from rayfbnn.kernels import choose
from rayfbnn.mcmc.rejection import rejection_draws
from rayfbnn.memory import check_memory
from rayfbnn.run import evidence as estimates
from rayfbnn.run.hardware import kernel_name
from rayfbnn.run.independent_draws import exact_blocks, prior_blocks
from rayfbnn.run.progress import show_rejection, show_share
from rayfbnn.run.running import RunSummary
from rayfbnn.run.sampler import build_posterior
from rayfbnn.store.storage.places import Place, is_address
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    Spec,
    check_counts,
    check_device,
    check_new_path,
    place_given,
    read_run_data,
    read_spec,
    warn_of_few_runs,
)

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.catalogue import Kind
    from rayfbnn.store.records import Block


_log = logging.getLogger(__name__)

_DRAWS_PER_BLOCK = 50  # the default
_RUNS = 200  # of annealing, to a level of ladders
_COPIES = 3  # of a large array, at the peak of memory
_BYTES_OF_TEMPERATURE = 500  # in the records of one temperature


def reject(
    spec: Spec,
    path: str | Path,
    *,
    draws: int,
    data: Source | None = None,
    set: Sequence[str] = (),
    proposals_per_round: int = 1000,
    max_proposals: int = 100_000_000,
    progress: bool = True,
) -> RunSummary:
    """Draw exactly and independently from the posterior by rejection, into a new store.

    Networks are drawn from the prior and accepted with probability proportional to their likelihood, after
    Neal (2022), "Rejection sampling". This is for small problems: the share of proposals that are accepted
    falls fast with the number of cases. `check` compares a run with these draws. The store is created when
    all draws are complete; they are in its only chain.

    Parameters
    ----------
    spec
        The configuration, whose phases are not run: a TOML file. From Python also nested dictionaries, or a
        RunSpec.
    path
        See `sample`.
    draws
        Number of draws.
    data, set
        See `sample`.
    proposals_per_round
        Number of proposals made at once.
    max_proposals
        The most proposals to make. It is an error if they do not suffice, which is reported as soon as it is
        plain.
    progress
        See `sample`.

    Returns
    -------
    RunSummary
        Number of draws, and the share of the proposals that was accepted.
    """
    place = place_given(path)
    spec = read_spec(spec, set)
    check_new_path(place)
    check_counts(least=1, draws=draws, proposals_per_round=proposals_per_round, max_proposals=max_proposals)
    spec, dataset = read_run_data(spec, data)
    if reason := spec.data_model.why_unbounded:
        raise ConfigError(reason)
    posterior = build_posterior(spec, dataset, device="cpu")
    bytes_of_state = 8 * (posterior.n_parameters + posterior.n_precisions)
    check_memory("draws", draws, _COPIES * bytes_of_state)
    check_memory(
        "proposals_per_round", proposals_per_round, _COPIES * (bytes_of_state + 8 * dataset.targets.size)
    )
    n_proposals, started = 0, time.monotonic()
    with show_rejection(draws, show=progress) as show_round:

        def on_progress(n_accepted: int, n_tried: int) -> None:
            nonlocal n_proposals
            n_proposals = n_tried
            show_round(n_accepted, n_tried)

        rounds = rejection_draws(
            posterior.rejection_proposal,
            seed=spec.seed,
            draws=draws,
            chains_per_round=proposals_per_round,
            max_proposals=max_proposals,
            streams_class=choose.streams_class("cpu"),
            on_progress=on_progress,
        )
        positions, precisions = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
    seconds = time.monotonic() - started
    blocks = exact_blocks(posterior, positions, precisions, _draws_per_block(spec, draws), seconds)
    return _stored(place, spec, dataset, "exact", draws, blocks, acceptance=draws / n_proposals)


def prior(
    spec: Spec, path: str | Path, *, draws: int, data: Source | None = None, set: Sequence[str] = ()
) -> RunSummary:
    """Draw networks, functions and data sets from the prior, into a new store.

    Each draw has the precisions and parameters of a network, its outputs at the training inputs, and targets
    drawn there from the model, with noise (`prior_predictive` in the store). The training targets are used
    only for standardisation. `predict` and `plot` read the store like any other. The phases of the
    configuration are not run, so layers may have step and erf units. Draw d is the state that chain d of a
    run with `initial = { from_prior = true }` starts from.

    Parameters
    ----------
    spec, path
        See `sample`.
    draws
        Number of draws.
    data, set
        See `sample`.

    Returns
    -------
    RunSummary
        Number of draws.
    """
    place = place_given(path)
    spec = read_spec(spec, set)
    check_new_path(place)
    check_counts(least=1, draws=draws)
    spec, dataset = read_run_data(spec, data)
    posterior = build_posterior(spec, dataset, device="cpu")
    blocks = prior_blocks(posterior, dataset, spec.seed, draws, _draws_per_block(spec, draws))
    return _stored(place, spec, dataset, "prior", draws, blocks)


def evidence(
    spec: Spec,
    *,
    data: Source | None = None,
    set: Sequence[str] = (),
    runs: int | None = None,
    temperatures: int = 1000,
    power: float | None = None,
    progress: bool = True,
) -> estimates.Evidence:
    """Estimate the log marginal likelihood of the training targets by annealed importance sampling.

    Each chain of a configuration is an independent run from a draw of the prior to the posterior. It goes
    through the inverse temperatures (j/temperatures)**power, and applies the operations of the last phase
    once at each; without phases these are Gibbs updates and `hybrid` with fixed stepsizes. The mean of the
    runs' weights is an unbiased estimate of the marginal likelihood, Neal (2001), "Annealed importance
    sampling". With more temperatures the weights differ less; with more chains their mean is more accurate.

    For the store of a run of ladders, the runs end at the hottest level at which all ladders agree, and
    Bennett's ratio between the levels gives the rest. If phases remain, the estimate is that of the heaviest,
    and a warning says so.

    Parameters
    ----------
    spec
        A configuration (a TOML file), or the store of a run of ladders. From Python also nested dictionaries,
        or a RunSpec.
    data, set
        See `sample`. Those of a store are fixed.
    runs
        Number of annealing runs. The default is the number of chains of a configuration, and 200 for ladders.
    temperatures
        Number of steps of a run.
    power
        Inverse temperatures are (j/temperatures)**power. The default is 4, and 2 for ladders, because the
        noise of their level is large.
    progress
        See `sample`.

    Returns
    -------
    Evidence
        The estimate with its standard error, and the number of equally weighted runs that it is worth.
    """
    check_counts(least=1, temperatures=temperatures)
    if power is not None and not 0 < power <= 100:
        raise ConfigError(f"power: must be above 0 and at most 100, got {power}")
    if runs is not None and runs < 2:
        raise ConfigError(f"runs: a standard error needs at least 2 runs, better 100 or more, got {runs}")
    if isinstance(spec, str | Path) and (is_address(spec) or os.path.isdir(spec)):
        for name, value in (("data", data), ("set", set or None)):
            if value is not None:
                raise ConfigError(f"{name}: that of the store {spec} is fixed, got {value}; leave it out")
        path = place_given(spec)
        return _evidence_of_ladders(path, runs or _RUNS, temperatures, power or 2.0, progress=progress)
    spec = read_spec(spec, set)
    check_device(spec.device)
    if runs is None and spec.chains < 2:
        raise ConfigError(
            f"chains: a standard error needs at least 2 runs, better 100 or more, got {spec.chains}"
        )
    if spec.temperature != 1:
        raise ConfigError(
            f"temperature: the marginal likelihood is defined at temperature 1, got {spec.temperature:g};"
            " it must be 1 (or left out)"
        )
    spec, dataset = read_run_data(spec, data)
    if spec.n_parts > 1:
        raise ConfigError(
            f"data.parts: a marginal likelihood needs all cases in one place, got {spec.n_parts}; it must"
            " be 1 (or left out)"
        )
    spec.check_gradient()
    spec.check_data(dataset.n_cases)
    check_memory("temperatures", temperatures, _BYTES_OF_TEMPERATURE + _COPIES * 8 * (runs or spec.chains))
    with show_share(show=progress) as on_progress:
        result = estimates.evidence(
            spec, dataset, runs=runs, temperatures=temperatures, power=power or 4.0, on_progress=on_progress
        )
    warn_of_few_runs(result.runs, result.effective_runs, "use more temperatures or chains")
    return result


def _evidence_of_ladders(
    path: Place, runs: int, temperatures: int, power: float, *, progress: bool
) -> estimates.Evidence:
    """Estimate the log marginal likelihood from the store of a run of ladders."""
    from rayfbnn.answers.judging.ladder_verdict import phase_sentences, verdict_on_ladders
    from rayfbnn.draws.view import committed

    store = Store.open(path)
    check_device(store.spec.device)
    check_memory("temperatures", temperatures, _BYTES_OF_TEMPERATURE + _COPIES * 8 * runs)
    if store.kind != "mcmc" or store.spec.ladder is None:
        raise ConfigError(f"spec: {path} is not a run with [ladder]; give the configuration instead")
    verdict = verdict_on_ladders(committed(store))
    found = verdict.evidence
    if found is None or found.common is None or not found.is_known:
        raise SamplingError(f"{path}: the ladders do not give log Z: {'; '.join(verdict.reasons)}")
    if phases := phase_sentences(found):
        words = "phases remain, and the estimate is that of the heaviest"
        _log.warning("%s: %s: %s", path, words, "; ".join(phases))
    elif not verdict.is_sound:
        _log.warning("%s: the ladders may not give the whole evidence: %s", path, verdict.reasons[0])
    ladders = estimates.FromLadders(found.name_of(found.common), *found.of_heaviest, found.phases[0].ladders)
    with show_share(show=progress) as on_progress:
        result = estimates.evidence_of_ladders(
            store,
            ladders,
            level=found.common,
            runs=runs,
            temperatures=temperatures,
            power=power,
            on_progress=on_progress,
        )
    hotter = "larger ladder.hot, such as 1" if found.kind == "noise" else "smaller ladder.hot, such as 0.01"
    way = f"use more temperatures, or sample ladders with a {hotter}"
    warn_of_few_runs(result.runs, result.effective_runs, way)
    return result


def _stored(
    path: Place,
    spec: RunSpec,
    dataset: Dataset,
    kind: Kind,
    draws: int,
    blocks: Iterable[Block],
    acceptance: float | None = None,
) -> RunSummary:
    """Create a complete store with one chain of draws of the kind "exact" or "prior", or no store at all."""
    Store.create(
        path,
        spec=spec,
        data=dataset,
        kernel=kernel_name(spec),
        kind=kind,
        n_draws=draws,
        chains=1,
        draws_per_block=_draws_per_block(spec, draws),
        blocks=blocks,
    )
    return RunSummary(str(path), chains=1, draws=draws, acceptance=acceptance)


def _draws_per_block(spec: RunSpec, draws: int) -> int:
    return min(draws, spec.draws_per_block or _DRAWS_PER_BLOCK)
