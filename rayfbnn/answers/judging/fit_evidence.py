"""The evidence for the verdict on fit: places of targets at training cases left out, or at other cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.answers.judging.fit_tests import (
    PREDICTED_VALUE,
    LabelCases,
    NumberCases,
    has_order,
    labels_have_order,
)
from rayfbnn.answers.measures import Places, ends_at
from rayfbnn.arrays import Array
from rayfbnn.data.dataset import Dataset
from rayfbnn.draws.subsets import evenly_spaced, hold, thinned, with_chains
from rayfbnn.draws.view import Draws
from rayfbnn.reduce.importance import Placed, is_unreliable, place
from rayfbnn.reduce.passes import TaskExecutor, TasksInProcess
from rayfbnn.reduce.tile import KEPT_BYTES, DrawBlock, Reader, Tile, Unit, bytes_of
from rayfbnn.streams import SHARED, Purpose, Streams

MOST_CASES = 2_000  # more would cost time; a misfit that 2,000 cases do not show is small
_DRAWS, _LEAST_DRAWS = 2_000, 200  # of all chains together, the fewer where networks are large
_MIXED = 250  # draws whose mixture places replicates; it errs by less than 0.01
REPLICATES = 399
_REPLICATED, _LEAST_CASES = 10_000, 200  # targets of all cases together, and cases at least
_MOST_LABELS = 20
_LABEL_REPLICATES = 999
_LEAST_SPREAD = 0.02  # of the predicted values, in predictive standard deviations
_LARGE_K = 0.7
PREDICTED_SPREAD = "the predicted spread"
_ITERATION = 2  # of the random numbers; samples of predictive distributions have 1
_PLACES = 1  # index of the random numbers of the first target; 0 is that of the choice of cases
_UNIFORM = 1 << 17  # index of the places of replicates of the first target


@dataclass(frozen=True)
class JudgedTarget:
    """The cases of a target; of labels there are several, each against the others.

    name    of the target
    label   a description of the label, "" for a number
    cases   the places or probabilities for the tests
    """

    name: str
    label: str
    cases: NumberCases | LabelCases

    @property
    def n_cases(self) -> int:
        """Number of cases with a known target."""
        one = self.cases
        return int((one.low if isinstance(one, NumberCases) else one.has_label).shape[1])


@dataclass(frozen=True)
class FitEvidence:
    """The evidence at some cases.

    is_left_out  whether the cases are training cases, each predicted without itself
    n_all        number of cases before the choice
    n_used       number of cases
    n_large_k    number of cases with unreliable weights
    n_infinite   number of further cases with infinite outputs of networks; these are not used
    targets      every target with its cases
    n_censored   number of times that are censored
    n_labels     number of labels; only the most frequent ones are judged; 0 for numbers
    """

    is_left_out: bool
    n_all: int
    n_used: int
    n_large_k: int
    n_infinite: int
    targets: tuple[JudgedTarget, ...]
    n_censored: int = 0
    n_labels: int = 0

    @property
    def places(self) -> dict[str, Places]:
        """The places of the targets that are numbers, by their names."""
        return {
            target.name: Places(target.cases.low[0], target.cases.high[0])
            for target in self.targets
            if isinstance(target.cases, NumberCases)
        }


def evidence_left_out(runs: Sequence[Draws], *, executor: TaskExecutor | None = None) -> FitEvidence:
    """Return the evidence of the training cases that all runs share, each placed by the other cases alone.

    At most MOST_CASES cases are used, which the seed chooses, and about 2,000 draws.
    """
    data = runs[0].data
    return _evidence(runs, data.inputs, data.standardized_targets, executor, is_left_out=True)


def evidence_at(
    runs: Sequence[Draws], inputs: Array, targets: Array, *, executor: TaskExecutor | None = None
) -> FitEvidence:
    """Return the evidence of cases that no run has learnt from, with replicates.

    Given the training cases, targets of the cases have the distribution of replicates, each drawn with the
    network of one draw. The uncertainty of the networks is therefore the same in both.

    inputs, targets  (n_cases, ...) as in the data file; at most MOST_CASES are used, which the seed chooses
    """
    values = runs[0].data.target_units.to_network(targets)
    return _evidence(runs, inputs, values, executor, is_left_out=False)


def _evidence(
    runs: Sequence[Draws], inputs: Array, targets: Array, executor: TaskExecutor | None, *, is_left_out: bool
) -> FitEvidence:
    """Return the evidence of cases; `inputs` are as in the data file, and targets on the network's scale."""
    run, data, few, executor = runs[0], runs[0].data, _few_draws(runs, _DRAWS), executor or TasksInProcess()
    at_most = MOST_CASES if is_left_out else _REPLICATED // data.n_targets
    chosen = _chosen_cases(len(inputs), run.spec.seed, at_most)
    every = place(
        few, data.standardized(inputs[chosen]), targets[chosen], leaves_out=is_left_out, executor=executor
    )
    placed, at = every.some(every.is_finite), chosen[every.is_finite]
    n_all, inputs, rows = len(inputs), inputs[at], targets[at][None]
    standardized = data.standardized(inputs)
    if not is_left_out:
        rows = np.concatenate([rows, _replicates(few, standardized, rows[0])])
    if run.spec.data_model.has_labels:
        judged = _labels(run, placed, inputs, rows)
    elif is_left_out:
        judged = _numbers(run, placed, inputs, (placed.low[None], placed.high[None]), rows[0])
    else:
        ends = ends_at(_few_draws(runs, _MIXED), standardized, rows, executor)
        judged = _numbers(run, placed, inputs, ends, rows[0])
    return FitEvidence(
        is_left_out=is_left_out,
        n_all=n_all,
        n_used=len(at),
        n_large_k=int(is_unreliable(placed.pareto_k, _LARGE_K).sum()) if is_left_out else 0,
        n_infinite=len(chosen) - len(at),
        targets=tuple(judged),
        n_censored=int((rows[0] < 0).sum()) if run.spec.data_model.are_times else 0,
        n_labels=every.probability.shape[1],
    )


def _chosen_cases(n_cases: int, seed: int, at_most: int) -> Array:
    """Return increasing numbers of some cases, at most MOST_CASES, which depend on the seed alone."""
    at_most = min(max(at_most, _LEAST_CASES), MOST_CASES)
    if n_cases <= at_most:
        return np.arange(n_cases)
    order = _shared(seed).permutation(n_cases, Purpose.PLACE)[0]
    return np.sort(order[:at_most])


def _shared(seed: int) -> Streams:
    return Streams(seed, np.array([SHARED], dtype=np.uint64))


def _few_draws(runs: Sequence[Draws], n_draws: int) -> list[Draws]:
    total = sum(run.total for run in runs)
    size = sum(map(bytes_of, runs)) / total
    n_draws = min(n_draws, max(_LEAST_DRAWS, int(KEPT_BYTES / size)), total)
    few = []
    for run in runs:
        share = max(1, n_draws * run.total // total)
        if run.n_chains > share:
            run = with_chains(run, evenly_spaced(run.n_chains, share))
        some = thinned(run, max(1, share // run.n_chains))
        few.append(hold(some, np.arange(some.n_draws)))
    return few


def _replicates(runs: Sequence[Draws], inputs: Array, targets: Array) -> Array:
    """Return targets drawn for each case, (REPLICATES, n_cases, n_targets), missing where they are missing.

    Each replicate has the network of one draw; the draws are evenly spaced among those of all runs.
    """
    ends = np.linspace(0, REPLICATES, len(runs) + 1).astype(int)
    drawn = []
    for run, first, end in zip(runs, ends[:-1], ends[1:], strict=True):
        model, tile = run.spec.data_model, Tile(run, inputs)
        block = Reader([run]).block(Unit(0, (0, run.n_chains), (0, run.n_draws)))
        chosen = np.resize(evenly_spaced(run.total, end - first), end - first)
        starts = None if block.starts is None else block.starts[chosen]
        some = DrawBlock(np.ascontiguousarray(block.positions[chosen]), block.noise[chosen], starts)
        for at, part, outputs in tile.parts(some):
            rows = outputs.astype(np.float64).reshape(len(part), -1, outputs.shape[2])
            rows = rows.swapaxes(1, 2) if model.n_cells == 1 else rows.reshape(len(part), 1, -1)
            numbers = np.arange(first + at.start, first + at.stop, dtype=np.uint64)
            streams = Streams(run.spec.seed, numbers).at(iteration=_ITERATION)
            drawn.append(model.draw(rows, part.noise, streams).swapaxes(1, 2))
    return np.where(np.isnan(targets), np.nan, np.concatenate(drawn))


def _numbers(
    run: Draws, placed: Placed, inputs: Array, ends: tuple[Array, Array], targets: Array
) -> Iterator[JudgedTarget]:
    """Yield the cases of each target, with a random point in each place.

    Without replicates in `ends`, their places are drawn: if the model is right, they are uniform.
    """
    low, high = ends
    names = frozenset(run.data.input_names)
    for target, name in enumerate(run.data.target_names):
        some = ~np.isnan(targets[:, target])
        low_of_one, high_of_one = low[:, some, target], high[:, some, target]
        random = _shared(run.spec.seed).uniform(Purpose.PLACE, low_of_one.shape, index=_PLACES + target)[0]
        place_of_one = low_of_one + random * (high_of_one - low_of_one)
        if is_alone := len(low) == 1:
            shape = (REPLICATES, low_of_one.shape[1])
            uniform = _shared(run.spec.seed).uniform(Purpose.PLACE, shape, index=_UNIFORM + target)[0]
            low_of_one, high_of_one, place_of_one = (
                np.concatenate([of_target, uniform]) for of_target in (low_of_one, high_of_one, place_of_one)
            )
        covariates = _covariates(run.data, placed, inputs, target, some)
        pull = _pull(placed, target, some) if is_alone else 0.0
        known = targets[some, target]
        order = has_order(np.abs(known) if run.spec.data_model.are_times else known)
        cases = NumberCases(low_of_one, high_of_one, place_of_one, covariates, names, order, pull)
        yield JudgedTarget(name, "", cases)


def _pull(placed: Placed, target: int, some: Array) -> float:
    spread = float(placed.mean[some, target].std()) * np.sqrt(some.sum())
    noise = float(np.median(placed.sd[some, target])) if some.any() else 0.0
    return float(placed.p[some].sum()) * noise / spread if spread > 0 else 0.0


def _covariates(data: Dataset, placed: Placed, inputs: Array, target: int, some: Array) -> dict[str, Array]:
    """Return the covariates of the spread of a target, (n_known_cases,) each.

    A predicted value or spread that hardly varies is left out, because its order would be that of errors.
    """
    mean, sd = placed.mean[some, target], placed.sd[some, target]
    found = {}
    if len(mean) and mean.std() > _LEAST_SPREAD * np.median(sd):
        found[PREDICTED_VALUE] = mean
    if len(sd) and sd.std() > _LEAST_SPREAD * np.median(sd):
        found[PREDICTED_SPREAD] = sd
    return found | {name: column[some] for name, column in zip(data.input_names, inputs.T, strict=True)}


def _labels(run: Draws, placed: Placed, inputs: Array, rows: Array) -> Iterator[JudgedTarget]:
    """Yield the cases of each label. Without replicates in `rows`, some are drawn with the probabilities."""
    model, names = run.spec.data_model, run.data.target_names
    words = model.probability_words(names)
    per_target = len(words) // len(names)
    known = ~np.isnan(rows[0])
    by_row = [[has for has, _ in model.labelled_cases(row)] for row in rows]
    n_parameters = float(placed.p[known.any(axis=1)].sum())
    ends = np.cumsum(placed.probability, axis=1)
    drawn, of_target = None, -1
    for number in _most_frequent(placed.probability):
        target, probability = number // per_target, placed.probability[:, number]
        some = known[:, target]
        has_label = np.stack([row[number] for row in by_row])
        if len(rows) == 1:
            if target != of_target:
                of_target, shape = target, (_LABEL_REPLICATES, len(some))
                drawn = _shared(run.spec.seed).uniform(Purpose.PLACE, shape, index=_PLACES + target)[0]
            high = probability if per_target == 1 else ends[:, number]
            has_label = np.concatenate([has_label, (drawn < high) & (drawn >= high - probability)])
        of_inputs = dict(zip(run.data.input_names, inputs[some].T, strict=True))
        order = labels_have_order(has_label[0, some])
        cases = LabelCases(has_label[:, some], probability[some], n_parameters, of_inputs, order)
        yield JudgedTarget(names[target], words[number], cases)


def _most_frequent(probability: Array) -> list[int]:
    """Return the numbers of the labels that are expected most often, in order, at most _MOST_LABELS.

    probability  (n_cases, n_labels)
    """
    order = np.argsort(-probability.sum(axis=0), kind="stable")
    return sorted(order[:_MOST_LABELS].tolist())
