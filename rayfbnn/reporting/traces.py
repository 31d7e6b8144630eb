"""The section on the chains: thinned traces of the quantities with the least agreement between chains."""

from __future__ import annotations

from functools import partial

from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import adjustments, sigmas
from rayfbnn.draws.subsets import evenly_spaced, thinned
from rayfbnn.markup import tables
from rayfbnn.pictures.chains import describe_quantity, draw_rank_differences, draw_trace
from rayfbnn.pictures.chosen_quantities import least_converged, log_densities
from rayfbnn.pictures.panels import Axes
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun

_ROWS = 6
_CHAINS = 64  # that are drawn; more lines hide each other, and make a page of many megabytes
_POINTS = 3000  # of one trace, for all chains together


def traces_section(run: ReportedRun) -> str:
    """Return a trace and the ranks of the chains for some quantities; "" without Markov chains."""
    if run.diagnosis is None:
        return ""
    all_draws = run.draws
    at_most = max(50, _POINTS // all_draws.n_chains)
    some = thinned(all_draws, at_most)
    candidates = sigmas(some) | adjustments(some) | log_densities(some)
    chains = evenly_spaced(all_draws.n_chains, _CHAINS)
    pictures = []
    for name in least_converged(candidates, _ROWS):
        words = describe_quantity(name)
        pictures += [
            picture(
                partial(_draw_trace, values=candidates[name][chains], name=name),
                alt=f"Trace of {words}",
                caption=words,
                width=4.6,
                height=1.7,
            ),
            picture(
                partial(_draw_ranks, values=candidates[name][chains]),
                alt=f"Ranks of each chain's draws of {name}",
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
        f"{which}, shown with {some.n_draws:,} of the {all_draws.n_draws:,} draws of {of_chains}. Next to"
        " each trace is the distribution of each chain's ranks minus the uniform distribution. The grey band"
        " contains a chain of independent draws with a probability of 95 %."
    )
    return tables.paragraph(text) + beside(pictures)


def _draw_trace(axis: Axes, values: Array, name: str) -> None:
    draw_trace(axis, values, name)
    axis.set_xlabel("draw shown")


def _draw_ranks(axis: Axes, values: Array) -> None:
    draw_rank_differences([axis], [values])
    axis.set_title("")
    axis.set_xlabel("rank")
