"""The sections on the verdicts, with their tables and the ladders, and on the traces of the chains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rayfbnn.answers.fit_diagnosis import diagnose_fit
from rayfbnn.answers.judging.ladder_verdict import ladders_named
from rayfbnn.answers.mixing import Ranks, ranks_of_chains
from rayfbnn.draws.ladders import ladder_draws
from rayfbnn.draws.quantities import adjustments, sigmas
from rayfbnn.draws.subsets import evenly_spaced, thinned
from rayfbnn.output import tables
from rayfbnn.pictures.chains import (
    describe_quantity,
    draw_rank_differences,
    draw_trace,
    least_converged,
    log_densities,
    points_of_each,
)
from rayfbnn.pictures.panels import Axes
from rayfbnn.pictures.predicted import draw_pit
from rayfbnn.pictures.sampling import (
    draw_evidence,
    draw_measures,
    draw_objective,
    draw_rejection,
    draw_replicas,
)
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun
from rayfbnn.store.store import word_for_chains

_ROWS = 15


def verdicts_section(run: ReportedRun) -> str:
    """Return the verdicts with their advice, and the table of quantities behind them."""
    if run.draws.kind == "approximate":
        return _of_approximation(run)
    if run.diagnosis is None:
        return tables.paragraph(run.note) + _fit(run)
    diagnosis = run.diagnosis
    word = word_for_chains(run.draws.store)
    counts = tables.pairs(
        {
            word: run.draws.n_chains,
            f"draws of each {word[:-1]}": run.draws.n_draws,
            "share of updates accepted": diagnosis.acceptance,
            "updates that diverged": diagnosis.divergences,
            "updates that diverged in the warm-up": diagnosis.warmup_divergences,
        }
    )
    n_all = len(diagnosis.quantities)
    shown = f"The {_ROWS} of {n_all} quantities with the largest R-hat" if n_all > _ROWS else ""
    every = ""
    if n_all > _ROWS:
        every = f"<details><summary>All {n_all} quantities</summary>{diagnosis.quantities_html()}</details>"
    return "".join(
        [
            tables.paragraph(run.progress),
            ladders_part(run),
            diagnosis.predictions._repr_html_(),
            diagnosis.hyperparameters._repr_html_(),
            _fit(run),
            counts,
            tables.paragraph(shown),
            diagnosis.quantities_html(at_most=_ROWS),
            every,
        ]
    )


def _of_approximation(run: ReportedRun) -> str:
    """Return the diagnosis of an approximation, with the picture of its objective."""
    objective = picture(
        partial(draw_objective, run=run.draws),
        alt="The objective of each start by step",
        caption="The objective of each start by step; thin lines are starts without weight in predictions",
        width=4.6,
        height=2.7,
    )
    return tables.paragraph(run.note) + diagnose_fit(run.draws)._repr_html_() + objective + _fit(run)


def _fit(run: ReportedRun) -> str:
    """Return the verdict on fit, with the places of the training cases that are left out; "" without one."""
    if run.fit is None:
        return ""
    pictures = [
        picture(
            partial(draw_pit, places=places),
            alt=f"Histogram of the places of {name} in the predictive distributions of all other cases",
            caption=f"{name} at the training cases, each predicted without itself. If the model is right,"
            " 95 % of the bars end in the grey band. A valley in the middle means that intervals are too"
            " narrow, a hill that they are too wide, and a slope that predictions are too low or too high.",
        )
        for name, places in run.left_out.items()
        if len(places.low)
    ]
    return run.fit._repr_html_() + beside(pictures)


_MOST_LISTED = 32
_WIDTH, _HEIGHT = 4.4, 2.8  # inches


def ladders_part(run: ReportedRun) -> str:
    """Return the verdict on ladders with tables of ladders and phases, and pictures; "" for other runs."""
    verdict = None if run.diagnosis is None else run.diagnosis.ladders
    if verdict is None:
        return ""
    if verdict.evidence is None:
        return verdict._repr_html_()
    evidence, levels = verdict.evidence, ladder_draws(run.draws)
    ladders = tables.table(
        ("ladder", "from", "log Z", "standard error", "round trips", "weight"),
        [
            (str(number), *values)
            for number, *values in zip(
                evidence.ladders,
                evidence.families,
                evidence.log_z,
                evidence.errors,
                evidence.trips,
                evidence.weights,
                strict=True,
            )
        ][:_MOST_LISTED],
    )
    more = len(evidence.ladders) - _MOST_LISTED
    if more > 0:
        ladders += tables.paragraph(f"and {more} more ladders")
    phases = tables.table(
        ("phase", "log likelihood", "noise", "log Z", "gap"),
        [
            (ladders_named(one.ladders), one.log_likelihood, one.noise, one.log_z, one.gap)
            for one in evidence.phases
        ],
    )
    pictures = [
        picture(draw, alt=caption, caption=caption, width=_WIDTH, height=_HEIGHT)
        for draw, caption in (
            (partial(draw_rejection, levels=levels), "Rejection of exchanges between neighbouring levels"),
            (partial(draw_measures, levels=levels), "How the ladders of both sides fit at each level"),
            (partial(draw_replicas, levels=levels), "The replica at the posterior, and round trips"),
            (partial(draw_evidence, evidence=evidence), "Log Z of each ladder, with two standard errors"),
        )
    ]
    return verdict._repr_html_() + ladders + phases + beside(pictures)


_TRACES = 6
_CHAINS = 64  # that are drawn; more lines hide each other, and make a page of many megabytes


def traces_section(run: ReportedRun) -> str:
    """Return a trace and the ranks of the chains for some quantities; "" without Markov chains."""
    if run.diagnosis is None:
        return ""
    all_draws = run.draws
    some = thinned(all_draws, points_of_each(all_draws.n_chains))
    candidates = sigmas(some) | adjustments(some) | log_densities(some)
    chains = evenly_spaced(all_draws.n_chains, _CHAINS)
    numbers = [all_draws.chain_numbers[chain] for chain in chains]
    pictures = []
    for name in least_converged(candidates, _TRACES):
        words, values = describe_quantity(name), candidates[name][chains]
        ranks = ranks_of_chains(values)
        pictures += [
            picture(
                partial(draw_trace, values=values, name=name, outlying=ranks.outlying, numbers=numbers),
                alt=f"Trace of {words}",
                caption=words,
                width=4.6,
                height=1.7,
                xlabel="draw shown",
            ),
            picture(
                partial(_draw_ranks, ranks=ranks, numbers=numbers),
                alt=f"Ranks of each chain's draws of {name}",
                caption=f"Ranks; a chain is worth {ranks.effective:,.0f} independent draws.",
                width=2.6,
                height=1.7,
                title="",
                xlabel="rank",
            ),
        ]
    which = f"The {_TRACES} of {len(candidates)} quantities whose chains agree least"
    if len(candidates) <= _TRACES:
        which = "All quantities except the functions"
    of_chains = "each chain"
    if len(chains) < all_draws.n_chains:
        of_chains = f"{len(chains)} of the {all_draws.n_chains:,} chains, evenly spaced"
    text = (
        f"{which}, shown with {some.n_draws:,} of the {all_draws.n_draws:,} draws of {of_chains}. The grey"
        " band in a trace has 80 % of the draws of all chains, and a legend names the chains that differ from"
        " the others by more than chance allows. Next to each trace is the distribution of each chain's ranks"
        " minus the uniform distribution. The grey band there contains a chain with a probability of 95 %,"
        " for as many independent draws as the chain's draws are worth."
    )
    return tables.paragraph(text) + beside(pictures)


def _draw_ranks(axis: Axes, ranks: Ranks, numbers: Sequence[int]) -> None:
    draw_rank_differences([axis], [ranks], numbers=numbers)
