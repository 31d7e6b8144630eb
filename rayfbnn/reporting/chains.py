"""The sections on the verdicts, with their tables and the ladders, and on the traces of the chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rayfbnn.answers.fit_diagnosis import diagnose_fit
from rayfbnn.answers.judging.ladder_verdict import ladders_named
from rayfbnn.draws.quantities import adjustments, sigmas
from rayfbnn.draws.subsets import evenly_spaced, thinned
from rayfbnn.output.facts import Fact, Paragraph, TableFact, tables_last
from rayfbnn.pictures.chains import least_converged, log_densities, points_of_each, trace_panels
from rayfbnn.pictures.predicted import pit_panel
from rayfbnn.pictures.sampling import ladder_panels, objective_panel
from rayfbnn.reporting.page import beside
from rayfbnn.reporting.reported_run import ReportedRun


def verdicts_section(run: ReportedRun) -> Iterator[Fact]:
    """Yield the verdicts with their advice, the quantities behind them, and the pictures of both."""
    yield Paragraph(run.note)
    yield Paragraph(run.progress)
    if run.draws.kind == "approximate":
        yield from tables_last(diagnose_fit(run.draws, run.fit).facts())
        yield beside([objective_panel(run.draws)])
    elif run.diagnosis is not None:
        yield from ladders_part(run)
        yield from tables_last(replace(run.diagnosis, fit=run.fit).facts())
    elif run.fit is not None:
        yield from run.fit.facts()
    yield beside(
        pit_panel(
            places,
            f"{name} at the training cases, each predicted without itself. If the model is right,"
            " 95 % of the bars end in the grey band.",
        )
        for name, places in run.left_out.items()
        if len(places.low)
    )


_MOST_LISTED = 32


def ladders_part(run: ReportedRun) -> Iterator[Fact]:
    """Yield tables of ladders and phases, and pictures of the levels; nothing for other runs."""
    verdict = None if run.diagnosis is None else run.diagnosis.ladders
    if verdict is None or verdict.evidence is None:
        return
    evidence = verdict.evidence
    columns = (
        evidence.ladders,
        evidence.families,
        evidence.log_z,
        evidence.errors,
        evidence.trips,
        evidence.weights,
    )
    rows = [(str(number), *values) for number, *values in zip(*columns, strict=True)]
    yield TableFact(
        ("ladder", "from", "log Z", "standard error", "round trips", "weight"), rows[:_MOST_LISTED]
    )
    if len(rows) > _MOST_LISTED:
        yield Paragraph(f"and {len(rows) - _MOST_LISTED} more ladders")
    yield TableFact(
        ("phase", "log likelihood", "noise", "log Z", "gap"),
        [
            (ladders_named(one.ladders), one.log_likelihood, one.noise, one.log_z, one.gap)
            for one in evidence.phases
        ],
    )
    yield beside(ladder_panels(run.draws, evidence))


_TRACES = 6
_CHAINS = 64  # that are drawn; more lines hide each other, and make a page of many megabytes


def traces_section(run: ReportedRun) -> Iterator[Fact]:
    """Yield a trace and the ranks of the chains for some quantities; nothing without Markov chains."""
    if run.diagnosis is None:
        return
    all_draws = run.draws
    some = thinned(all_draws, points_of_each(all_draws.n_chains))
    candidates = sigmas(some) | adjustments(some) | log_densities(some)
    chains = evenly_spaced(all_draws.n_chains, _CHAINS)
    numbers = [all_draws.chain_numbers[chain] for chain in chains]
    drawn = {name: candidates[name][chains] for name in least_converged(candidates, _TRACES)}
    which = f"The {_TRACES} of {len(candidates)} quantities whose chains agree least"
    if len(candidates) <= _TRACES:
        which = "All quantities except the functions"
    of_chains = "each chain"
    if len(chains) < all_draws.n_chains:
        of_chains = f"{len(chains)} of the {all_draws.n_chains:,} chains, evenly spaced"
    yield Paragraph(
        f"{which}, shown with {some.n_draws:,} of the {all_draws.n_draws:,} draws of {of_chains}. The grey"
        " band in a trace has 80 % of the draws of all chains, and a legend names the chains that differ from"
        " the others by more than chance allows. Next to each trace is the distribution of each chain's ranks"
        " minus the uniform distribution. The grey band there contains a chain with a probability of 95 %,"
        " for as many independent draws as the chain's draws are worth."
    )
    yield beside(trace_panels(drawn, numbers))
