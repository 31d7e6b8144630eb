"""The section on the inputs: the change of predictions when each is permuted, and the sigmas of inputs."""

from __future__ import annotations

from functools import partial

import numpy as np

from rayfbnn.answers.effects import columns_of, permutation_shares
from rayfbnn.arrays import Array
from rayfbnn.data.encoding import InputColumn
from rayfbnn.draws.quantities import sigmas
from rayfbnn.output import tables
from rayfbnn.output.lines import all_shortened
from rayfbnn.pictures.chosen_quantities import largest, of_inputs, relevance_groups
from rayfbnn.pictures.colours import BLUE
from rayfbnn.pictures.panels import Axes, draw_relevance
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun

_MAX_COLUMNS = 60
_MAX_BARS = 20


def by_relevance(run: ReportedRun) -> list[tuple[InputColumn, float]]:
    """Return the columns with their shares of the predictions' variance, the largest first.

    At most 60 columns are included: those with the largest sigmas, or the first ones if none has a sigma.
    """
    columns = _looked_at(run)
    shares = permutation_shares(run.fewest, run.cases.some, columns)
    order = np.argsort(-np.nan_to_num(shares), kind="stable")
    return [(columns[place], float(shares[place])) for place in order]


def _looked_at(run: ReportedRun) -> list[InputColumn]:
    columns = list(columns_of(run.draws))
    if len(columns) <= _MAX_COLUMNS:
        return columns
    by_name = sigmas(run.held)
    sizes: dict[str, float] = {}
    for group in relevance_groups(run.draws):
        for name, values in of_inputs(by_name, group).items():
            sizes[name] = max(sizes.get(name, 0.0), float(np.median(values)))
    of_columns = [max(sizes.get(name, 0.0) for name in column.input_names) for column in columns]
    order = np.argsort(-np.array(of_columns), kind="stable")[:_MAX_COLUMNS]
    return [columns[place] for place in order]


def relevance_section(run: ReportedRun, ranked: list[tuple[InputColumn, float]]) -> str:
    """Return a picture of the shares, and one of the sigmas of inputs for each group that has them."""
    shown = ranked[:_MAX_BARS]
    names, shares = [column.name for column, _ in shown], np.array([share for _, share in shown])
    left_out = len(columns_of(run.draws)) - len(ranked)
    pictures = [
        picture(
            partial(_draw_shares, names=names, shares=shares),
            alt="Change of the predictions when each column is permuted: "
            + ", ".join(f"{name} {share:.2f}" for name, share in zip(names[:5], shares, strict=False)),
            caption="Change of the predictions when a column is permuted among the cases, as a share of their"
            " variance (Sobol's total effect, if inputs are independent).",
            height=0.9 + 0.24 * len(names),
        ),
        *_sigma_pictures(run),
    ]
    words = (
        "Two measures show how much an input matters. One is the change of the predictions when a column is"
        " permuted among the cases. The other, if the prior gives each input its own sigma, is that sigma:"
        " the size of the weights from the input."
    )
    if left_out:
        which = "with the largest sigmas" if relevance_groups(run.draws) else "that come first"
        words += f" Only the {_MAX_COLUMNS} columns {which} are permuted; {left_out:,} are left out."
    return tables.paragraph(words) + beside(pictures)


def _sigma_pictures(run: ReportedRun) -> list[str]:
    by_name = sigmas(run.held)
    pictures = []
    for group in relevance_groups(run.draws):
        all_inputs = of_inputs(by_name, group)
        shown = largest(all_inputs, _MAX_BARS)
        if not shown:
            continue
        where = "the outputs" if group == "io" else f"hidden layer {group[2:]}"
        more = f", the {len(shown)} largest of {len(all_inputs)}" if len(shown) < len(all_inputs) else ""
        values = np.stack(list(shown.values()))
        pictures.append(
            picture(
                partial(_draw_sigmas, names=list(shown), values=values),
                alt=f"Posterior of the sigma of each input's weights to {where}",
                caption=f"Sigmas of the weights from each input to {where}{more}: median, 80 % and 98 %"
                " intervals; ticks are the medians of chains.",
                height=0.9 + 0.27 * len(shown),
            )
        )
    return pictures


def _draw_shares(axis: Axes, names: list[str], shares: Array) -> None:
    places = np.arange(len(names))[::-1]
    axis.barh(places, np.nan_to_num(shares), height=0.62, color=BLUE)
    axis.set_yticks(places, all_shortened(names))
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(-0.6, len(names) - 0.4)
    axis.set_xlim(0, max(1.0, 1.05 * float(np.nan_to_num(shares).max(initial=0))))
    axis.set_xlabel("share of the variance of predictions")


def _draw_sigmas(axis: Axes, names: list[str], values: Array) -> None:
    draw_relevance(axis, names, values)
    axis.set_xlabel("sigma")
