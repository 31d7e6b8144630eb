"""The section on the chains: thinned traces of the quantities with the least agreement between chains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rayfbnn.answers.mixing import Ranks, ranks_of_chains
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import adjustments, sigmas
from rayfbnn.draws.subsets import evenly_spaced, thinned
from rayfbnn.output import tables
from rayfbnn.pictures.chains import describe_quantity
from rayfbnn.pictures.chosen_quantities import least_converged, log_densities
from rayfbnn.pictures.panels import Axes
from rayfbnn.pictures.traces import draw_rank_differences, draw_trace, points_of_each
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun

_ROWS = 6
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
    for name in least_converged(candidates, _ROWS):
        words, values = describe_quantity(name), candidates[name][chains]
        ranks = ranks_of_chains(values)
        pictures += [
            picture(
                partial(_draw_trace, values=values, name=name, outlying=ranks.outlying, numbers=numbers),
                alt=f"Trace of {words}",
                caption=words,
                width=4.6,
                height=1.7,
            ),
            picture(
                partial(_draw_ranks, ranks=ranks, numbers=numbers),
                alt=f"Ranks of each chain's draws of {name}",
                caption=f"Ranks; a chain is worth {ranks.effective:,.0f} independent draws.",
                width=2.6,
                height=1.7,
            ),
        ]
    which = f"The {_ROWS} of {len(candidates)} quantities whose chains agree least"
    if len(candidates) <= _ROWS:
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


def _draw_trace(
    axis: Axes, values: Array, name: str, outlying: Sequence[int], numbers: Sequence[int]
) -> None:
    draw_trace(axis, values, name, outlying=outlying, numbers=numbers)
    axis.set_xlabel("draw shown")


def _draw_ranks(axis: Axes, ranks: Ranks, numbers: Sequence[int]) -> None:
    draw_rank_differences([axis], [ranks], numbers=numbers)
    axis.set_title("")
    axis.set_xlabel("rank")
