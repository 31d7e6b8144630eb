"""Fits of approximations: their checks and steps, and the job of a worker that runs them in blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.approximate.approximation import OBJECTIVE, Approximation, Fit
from rayfbnn.approximate.distributions import Distribution
from rayfbnn.arrays import Array, array_namespace, device_namespace, to_host
from rayfbnn.kernels import choose
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.run.job import MOST_SECONDS, BlockPlan, Collected, Job, posterior_of_cases, streams_of
from rayfbnn.store.catalogue import LOG_Q
from rayfbnn.store.records import SECONDS, BatchProgress, Block, Record
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.catalogue import StateShapes


DRAWS_AT_ONCE = 50  # size of the pieces that draws are made in, wherever blocks end


class Fitter(Job):
    """The job of a worker that fits an approximation.

    A fit is a run of two phases: steps, which keep only the state, and then draws. Each block starts from the
    state in the store. A fit that was stopped or killed therefore continues to the same bits.
    """

    def __init__(self, store: Store, *, worker: str = "") -> None:
        """Put the data of the run on its device; `worker` is the name in progress reports."""
        super().__init__(store, worker=worker)
        cases, device = store.standardized_cases(), store.spec.device
        self.posterior = posterior_of_cases(ApproximatedPosterior, store.spec, cases, device=device)
        self.fit = build_fit(approximation_of(store.spec), self.posterior, recorded=store.root.kernel)
        # The distribution of the batch that was drawn from last. Another one may take long to find.
        self._distribution: dict[int, Distribution] = {}

    @property
    def n_steps(self) -> int:
        """The most steps of the fit."""
        return self.store.spec.phase[0].iterations

    def _block(
        self,
        batch: int,
        last: Record | None,
        plan: BlockPlan,
        collected: Collected,
        should_stop: Callable[[], bool],
    ) -> Iterator[Block | None]:
        streams, before = self._streams(batch), BatchProgress() if last is None else last.progress
        job = self._steps if before.iteration < self.n_steps else self._draws
        return job(batch, before, self._load(last, streams), streams, collected, should_stop)

    def _steps(
        self,
        batch: int,
        before: BatchProgress,
        state: Mapping[str, Array],
        streams: Streams,
        collected: Collected,
        should_stop: Callable[[], bool],
    ) -> Iterator[Block | None]:
        end = time.monotonic() + min(1.0 + before.blocks, MOST_SECONDS)
        number = before.iteration
        while number < self.n_steps:
            left = self.n_steps - number
            state, taken = stepped(self.fit, state, streams.at(iteration=number + 1), most=left)
            number += taken
            if self.fit.is_complete(state):
                number = self.n_steps
            collected.n_iterations = number - before.iteration
            if number < self.n_steps and (should_stop() or time.monotonic() >= end):
                break
            yield None
        if number == self.n_steps:
            state = {**state, **self.fit.result(state, streams.at(iteration=number))}
        yield Block(
            first_iteration=before.iteration + 1,
            n_iterations=collected.n_iterations,
            state=_on_host(state),
            summary={SECONDS: time.monotonic() - collected.started},
        )

    def _draws(
        self,
        batch: int,
        before: BatchProgress,
        state: Mapping[str, Array],
        streams: Streams,
        collected: Collected,
        should_stop: Callable[[], bool],
    ) -> Iterator[Block | None]:
        spec, first = self.store.spec, before.draws
        size = self.store.header.draws_per_chunk
        last = min(spec.kept_draws, first + size - first % size)
        pieces: list[dict[str, Array]] = []
        for start in range(first - first % DRAWS_AT_ONCE, last, DRAWS_AT_ONCE):
            count = min(DRAWS_AT_ONCE, spec.kept_draws - start)
            piece = self._piece(batch, state, streams.at(iteration=self.n_steps + 1 + start), count)
            rows = slice(max(0, first - start), min(count, last - start))
            pieces.append({name: values[:, rows] for name, values in piece.items()})
            collected.n_iterations = start + rows.stop - first
            if should_stop():
                break
            yield None
        together = {name: np.concatenate([piece[name] for piece in pieces], axis=1) for name in pieces[0]}
        yield Block(
            first_iteration=before.iteration + 1,
            n_iterations=collected.n_iterations,
            section="posterior",
            first_draw=first,
            positions=together.pop("positions"),
            precisions=together.pop("precisions"),
            stats=together,
            state=_on_host(state),
            summary={SECONDS: time.monotonic() - collected.started},
        )

    def _piece(self, batch: int, state: Mapping[str, Array], streams: Streams, n: int) -> dict[str, Array]:
        """Return n draws with their log densities, arrays (n_starts, n, ...) on the host."""
        if batch not in self._distribution:
            self._distribution = {batch: self.fit.distribution(state)}
        positions, precisions, log_q = self._distribution[batch].draws(streams, n)
        positions = positions.astype(self.posterior.dtype)
        densities: dict[str, list[Array]] = {"log_likelihood": [], "log_prior": []}
        for draw in range(n):
            for name, values in densities.items():
                values.append(to_host(getattr(self.posterior, name)(positions[:, draw], precisions[:, draw])))
        return {
            "positions": to_host(positions),
            "precisions": to_host(precisions),
            LOG_Q: log_q,
            **{name: np.stack(values, axis=1) for name, values in densities.items()},
        }

    def _load(self, last: Record | None, streams: Streams) -> dict[str, Array]:
        initial = initial_state(self.fit, streams)
        if last is None:
            return initial
        xp = device_namespace(self.store.spec.device)
        values = self.store.commits.named_state_after(last)
        return {name: xp.asarray(values[name], dtype=initial[name].dtype) for name in initial}


def _on_host(state: Mapping[str, Array]) -> dict[str, Array]:
    return {name: to_host(values) for name, values in state.items()}


_MOST_BINS = 1000  # of the steps; the mean objective of each bin is kept


def posterior_before_fit(spec: RunSpec, dataset: Dataset) -> ApproximatedPosterior:
    """Return the posterior of a fit that has no store yet.

    ConfigError, naming the method or the key, if the approximation does not cover it.
    """
    cases = dataset.standardized_pieces(), dataset.standardized_targets
    posterior = posterior_of_cases(ApproximatedPosterior, spec, cases, device=spec.device)
    n_together = min(spec.chains, spec.chains_per_batch)
    approximation_of(spec).check_covers(posterior, n_together=n_together)
    return posterior


def approximation_of(spec: RunSpec) -> Approximation:
    """Return the approximation that a run fits; it must be no run of Markov chains."""
    assert spec.fit is not None
    return spec.fit


def build_fit(
    approximation: Approximation, posterior: ApproximatedPosterior, *, recorded: str | None = None
) -> Fit:
    """Build the fit of an approximation to a posterior.

    recorded  name of the kernel that the run started with, which is kept if this machine has it
    """
    return approximation.build(posterior, lambda: choose.advance_for(posterior, recorded=recorded)[0])


def checked_state_shapes(spec: RunSpec, dataset: Dataset) -> StateShapes:
    """Return the names and shapes of the arrays of one start's state, without taking a step.

    ConfigError, naming the method or the key, if the approximation does not cover the posterior.
    """
    fit = build_fit(approximation_of(spec), posterior_before_fit(spec, dataset))
    state = initial_state(fit, streams_of(spec, np.zeros(1, dtype=np.uint64)))
    return {name: values.shape[1:] for name, values in state.items()}


def initial_state(fit: Fit, streams: Streams) -> dict[str, Array]:
    """Return the state before the first step, with empty bins for the objective, and NaN for the results."""
    xp = array_namespace(streams.chains)
    n_starts = len(streams.chains)
    state = dict(fit.initial(streams.at(iteration=0)))
    state[OBJECTIVE] = xp.full((n_starts, min(fit.settings.n_steps, _MOST_BINS)), xp.nan)
    return state | {name: xp.full(n_starts, xp.nan) for name in fit.results}


def stepped(
    fit: Fit, state: Mapping[str, Array], streams: Streams, *, most: int
) -> tuple[dict[str, Array], int]:
    """Take up to `most` steps, and add the objective of each to the mean of its bin.

    Returns the state, and the number of steps taken: more than one if compiled code takes them together.
    """
    kept = {name: state[name] for name in state if name in (OBJECTIVE, *fit.results)}
    moved, objectives = fit.steps({name: state[name] for name in state if name not in kept}, streams, most)
    kept[OBJECTIVE] = state[OBJECTIVE].copy()
    for number, objective in enumerate(objectives, start=streams.iteration):
        _add_to_bin(kept[OBJECTIVE], number, objective, n_steps=fit.settings.n_steps)
    return {**moved, **kept}, len(objectives)


def _add_to_bin(bins: Array, number: int, objective: Array, *, n_steps: int) -> None:
    """Add the objective (n_starts,) of a step to the mean of its bin; bins is (n_starts, n_bins)."""
    n_bins = bins.shape[1]
    place = (number - 1) * n_bins // n_steps
    first = -(-place * n_steps // n_bins) + 1  # the first step of the bin, counted from 1
    if number == first:
        bins[:, place] = objective
    else:
        bins[:, place] += (objective - bins[:, place]) / (number - first + 1)
