"""Pictures of how a run proceeds: energy errors, errors by iteration, ladders, and the objective of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.errors_by_iteration import Course, ErrorsByIteration
from rayfbnn.arrays import Array
from rayfbnn.draws.fits import fit_summary
from rayfbnn.draws.ladders import LadderDraws, ladder_draws
from rayfbnn.draws.subsets import thinned
from rayfbnn.pictures.figures import BLUE, GREY, RED, SKY, Axes, Panel, arrange, chain_style, series_colour
from rayfbnn.pictures.panels import logarithmic, opacity
from rayfbnn.store.catalogue import FAMILIES
from rayfbnn.store.rounds import MEASURES

if TYPE_CHECKING:
    from rayfbnn.answers.judging.ladder_evidence import LadderEvidence
    from rayfbnn.draws.view import Draws


_WIDE, _NARROW = (4.9, 3.2), (3.3, 3.2)  # sizes of two panels
_MOST_POINTS = 20_000
_MOST_BINS, _LEAST_IN_BIN = 20, 40
_LEAST_SIZE, _GREATEST_SIZE = 1e-10, 1e4  # errors beyond these are rounding, or always rejected


@dataclass(frozen=True)
class ErrorsByStepsize:
    """Energy errors of trajectories in bins of neighbouring stepsizes, with equal numbers of trajectories.

    stepsizes, errors  (n,) in the order of the stepsizes
    middles            (n_bins,) median stepsize
    quantiles          (3, n_bins): 10 %, 50 % and 90 % quantile of the absolute error
    acceptance         (n_bins,) mean of min(1, exp(-error))
    """

    stepsizes: Array
    errors: Array
    middles: Array
    quantiles: Array
    acceptance: Array


def errors_by_stepsize(run: Draws) -> ErrorsByStepsize | None:
    """Return the energy errors of about 20,000 trajectories; None unless they have several stepsizes.

    A trajectory that diverged has an infinite error.
    """
    if run.kind != "mcmc":
        return None
    some = thinned(run, max(1, _MOST_POINTS // run.n_chains))
    stepsizes, errors = some.stat("stepsize").ravel(), some.stat("energy_change").ravel()
    is_known = np.isfinite(stepsizes) & ~np.isnan(errors)
    order = np.argsort(stepsizes[is_known], kind="stable")
    stepsizes, errors = stepsizes[is_known][order], errors[is_known][order]
    if len(errors) == 0 or stepsizes[0] == stepsizes[-1]:
        return None
    n_bins = int(np.clip(len(errors) // _LEAST_IN_BIN, 1, _MOST_BINS))
    bins = np.array_split(errors, n_bins)
    return ErrorsByStepsize(
        stepsizes,
        errors,
        np.array([np.median(one) for one in np.array_split(stepsizes, n_bins)]),
        np.array([np.quantile(np.abs(one), [0.1, 0.5, 0.9], method="lower") for one in bins]).T,
        np.array([np.exp(-np.maximum(one, 0)).mean() for one in bins]),
    )


def energy_errors(by_stepsize: ErrorsByStepsize, path: str | Path) -> Path:
    """Plot the absolute energy error by stepsize on logarithmic axes, and the acceptance probability.

    Neal (1996) fig. 3.3. The error rises with the square of the stepsize until trajectories become unstable.
    """
    title = f"energy error of {len(by_stepsize.errors):,} trajectories"
    panels = [
        Panel(_draw_energy_errors, (by_stepsize,), title=title, size=_WIDE),
        Panel(_draw_acceptance, (by_stepsize,), title="mean acceptance probability", size=_NARROW),
    ]
    return arrange(path, panels, columns=2)


def _draw_energy_errors(axis: Axes, by_stepsize: ErrorsByStepsize) -> None:
    sizes = np.abs(by_stepsize.errors)
    axis.plot(by_stepsize.stepsizes, sizes, ".", color=GREY, ms=2, mew=0, alpha=opacity(len(sizes)), zorder=0)
    quantiles = np.clip(by_stepsize.quantiles, _LEAST_SIZE, _GREATEST_SIZE)
    low, median, high = quantiles
    axis.fill_between(by_stepsize.middles, low, high, color=SKY, alpha=0.4, lw=0, label="10 % to 90 %")
    axis.plot(by_stepsize.middles, median, "o-", color=BLUE, ms=3, label="median")
    axis.set_ylabel("absolute error")
    ends = np.array([quantiles.min() / 3, quantiles.max() * 3])
    logarithmic(axis, ends)
    axis.set_ylim(*ends)
    axis.legend(loc="upper left")
    _set_stepsizes(axis, by_stepsize)


def _draw_acceptance(axis: Axes, by_stepsize: ErrorsByStepsize) -> None:
    axis.plot(by_stepsize.middles, by_stepsize.acceptance, "o-", color=BLUE, ms=3)
    axis.set_ylim(0, 1.02)
    _set_stepsizes(axis, by_stepsize)


def _set_stepsizes(axis: Axes, by_stepsize: ErrorsByStepsize) -> None:
    logarithmic(axis, by_stepsize.stepsizes, which="x")
    axis.set_xlabel("stepsize, as a factor on the heuristic")


def plot_errors_by_iteration(errors: ErrorsByIteration, path: str | Path, numbers: Sequence[int]) -> Path:
    """Plot the error of each draw alone on the left, and that of the predictive mean so far on the right.

    Draws of the warm-up come first, and dashed lines separate the phases. The mean has no draws of the
    warm-up in it.

    numbers  the numbers that the chains have
    """
    title, args = f"{_in_words(errors)} of single draws, {errors.n_cases:,} cases", (errors, numbers)
    panels = [
        Panel(_draw_errors_of_draws, args, title=title, size=_WIDE),
        Panel(_draw_errors_so_far, args, title="of the mean of the draws so far", size=_NARROW),
    ]
    return arrange(path, panels, columns=2)


def _in_words(errors: ErrorsByIteration) -> str:
    sign = "minus " if errors.measure == "log_probability" else ""
    return sign + errors.measure.replace("_", " ")


def _draw_errors_of_draws(axis: Axes, errors: ErrorsByIteration, numbers: Sequence[int]) -> None:
    courses = [course for course in (errors.warmup, errors.kept) if course is not None]
    for course in courses:
        _draw_chains(axis, course, course.of_draws, numbers)
    axis.set_ylabel(_in_words(errors))
    _set_scales(axis, errors, courses, [course.of_draws for course in courses])


def _draw_errors_so_far(axis: Axes, errors: ErrorsByIteration, numbers: Sequence[int]) -> None:
    kept = errors.kept
    _draw_chains(axis, kept, kept.so_far, numbers)
    axis.plot(kept.iterations, kept.together, color="black", lw=1.6, label="all chains")
    axis.legend(loc="upper right")
    _set_scales(axis, errors, [kept], [kept.so_far, kept.together])


def _draw_chains(axis: Axes, course: Course, values: Array, numbers: Sequence[int]) -> None:
    for number, of_chain in zip(numbers, values, strict=True):
        axis.plot(course.iterations, of_chain, **chain_style(number), lw=0.7, alpha=0.8)


def _set_scales(axis: Axes, errors: ErrorsByIteration, courses: list[Course], drawn: list[Array]) -> None:
    """Mark the phases, and set the scales; a linear one ends where all but a tenth of a warm-up fits."""
    first, last = courses[0].iterations[0], courses[-1].iterations[-1]
    for start in errors.starts:
        if first < start <= last:
            axis.axvline(start - 0.5, color=GREY, lw=0.8, ls="--", zorder=0)
    axis.set_xlim(first - 0.5, last + 0.5)
    axis.set_xlabel("iteration")
    finite = [values[np.isfinite(values)] for values in drawn]
    every = np.concatenate(finite)
    if errors.measure == "squared_error" and every.size and every.min() > 0:
        logarithmic(axis, every)
    elif every.size:
        top = max(finite[-1].max(initial=-np.inf), float(np.quantile(finite[0], 0.9)))
        margin = 0.05 * ((top - every.min()) or 1.0)
        axis.set_ylim(every.min() - margin, top + margin)


_WORDS = dict(zip(FAMILIES, ("from chains", "from the prior"), strict=True))
_COLOURS = dict(zip(FAMILIES, (BLUE, RED), strict=True))
_WANTED = 0.6  # the largest rejection that the adaptation leaves
_MOST_SHOWN, _MOST_NAMED = 2_000, 16  # draws of the paths of replicas, and ladders with a path or a name


def ladder_panels(run: Draws, evidence: LadderEvidence) -> list[Panel]:
    """Return four panels on the levels of ladders and on their evidence."""
    levels = ladder_draws(run)
    measure = MEASURES[levels.measured].removeprefix("the ")
    panels = (
        (_draw_rejection, levels, "rejection of exchanges between neighbouring levels"),
        (_draw_measures, levels, f"{measure} by level"),
        (_draw_replicas, levels, "replica at the posterior, and round trips"),
        (_draw_evidence, evidence, "log Z from the common level, two standard errors"),
    )
    return [Panel(draw, (of,), title=title, size=(4.3, 3.0)) for draw, of, title in panels]


def _draw_rejection(axis: Axes, levels: LadderDraws) -> None:
    for values in levels.rejection:
        axis.plot(np.arange(levels.n_levels - 1) + 0.5, values, color=GREY, lw=0.7)
    axis.axhline(_WANTED, color="black", lw=0.7, ls=":")
    axis.set_ylim(0, 1)
    _name_levels(axis, levels)


def _draw_measures(axis: Axes, levels: LadderDraws) -> None:
    """Draw the mean of each ladder's measure by level, in the colour of its family."""
    for ladder, (values, family) in enumerate(zip(levels.measure, levels.families, strict=True)):
        label = None if family in levels.families[:ladder] else _WORDS[family]
        axis.plot(values.mean(axis=0, dtype=float), color=_COLOURS[family], lw=0.9, label=label)
    axis.legend()
    _name_levels(axis, levels)


def _draw_replicas(axis: Axes, levels: LadderDraws) -> None:
    """Draw which replica is at the posterior in the first ladders; changes show that replicas travel."""
    for ladder, values in enumerate(levels.replica[:_MOST_NAMED, -_MOST_SHOWN:]):
        height = ladder + 0.1 + 0.8 * values / (levels.n_levels - 1)
        axis.plot(height, color=_COLOURS[levels.families[ladder]], lw=0.5)
    pairs = zip(levels.ladders[:_MOST_NAMED], levels.trips[:_MOST_NAMED], strict=True)
    names = [f"{number}: {trips} trips" for number, trips in pairs]
    axis.set_yticks(np.arange(len(names)) + 0.5, names)
    axis.set_ylim(0, len(names))
    axis.set_xlabel("draw")


def _draw_evidence(axis: Axes, evidence: LadderEvidence) -> None:
    for place, (z, error, family) in enumerate(
        zip(evidence.log_z, evidence.errors, evidence.families, strict=True)
    ):
        bar = 2 * error if np.isfinite(error) else 0.0
        axis.errorbar(place, z, yerr=bar, fmt="o", color=_COLOURS[family], ms=4)
    step = -(-len(evidence.ladders) // _MOST_NAMED)
    named = range(0, len(evidence.ladders), step)
    axis.set_xticks(named, [str(evidence.ladders[place]) for place in named])
    axis.set_xlabel("ladder")


def _name_levels(axis: Axes, levels: LadderDraws) -> None:
    shown = np.unique(np.linspace(0, levels.n_levels - 1, 5).round().astype(int))
    names = [levels.name_of(level).removeprefix(f"{levels.kind.rstrip('s')} ") for level in shown]
    axis.set_xticks(shown, ["posterior" if name == "the posterior" else name for name in names])
    axis.set_xlabel("noise of the level" if levels.kind == "noise" else "power of the likelihood")


def objective_panel(run: Draws) -> Panel:
    """Return the objective of each start of an approximation by step, averaged over a few steps at a time."""
    words = "The objective of each start by step"
    caption = f"{words}; thin lines are starts without weight in predictions"
    return Panel(draw_objective, (run,), caption=caption, alt=words, size=(5.5, 3.4))


def draw_objective(axis: Axes, run: Draws) -> None:
    """Draw the objective of each start; starts without weight in predictions are thin.

    The range of the vertical axis is that of the objective after the first tenth of the steps.
    """
    summary = fit_summary(run.store)
    approximation = summary.approximation
    objective, n_bins = summary.objective, summary.objective.shape[1]
    if approximation.is_objective_evidence:
        objective = objective - run.data.log_scale  # on the scale of the log evidences in tables
    steps = (np.arange(n_bins) + 1) * approximation.n_steps / n_bins
    for start, (values, weight) in enumerate(zip(objective, summary.weight, strict=True)):
        colour = series_colour(start)
        axis.plot(steps, values, color=colour, lw=1.2 if weight > 0 else 0.5)
    late = objective[:, n_bins // 10 :]
    late = late[np.isfinite(late)]
    if late.size:
        margin = 0.05 * (np.ptp(late) or 1.0)
        axis.set_ylim(late.min() - margin, late.max() + margin)
    axis.set_xlabel("step")
    axis.set_ylabel(approximation.objective)
