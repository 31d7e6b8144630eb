"""Reads the parts and the home of a run from its store, each with only the training cases that it needs."""

from __future__ import annotations

from collections.abc import Sequence

from rayfbnn.arrays import Array
from rayfbnn.model import quantities
from rayfbnn.model.parts import columns_of_parts
from rayfbnn.model.posterior import Keep
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.ring.parts import Part, part_of
from rayfbnn.ring.ring import Ring
from rayfbnn.ring.shared_posterior import SharedPosterior
from rayfbnn.store.store import Store


def parts_of_run(store: Store, numbers: Sequence[int]) -> list[Part]:
    """Return some parts of a run's training cases. This reads all cases once, and keeps those of these parts.

    numbers  numbers of the parts, in ascending order
    """
    n_parts = store.spec.n_parts

    def columns(n_columns: int, starts: Array | None) -> Array:
        return columns_of_parts(n_columns, starts, numbers=numbers, n_parts=n_parts).ravel()

    cases = _read(store, columns)
    length = cases.inputs.shape[1] // len(numbers)
    return [
        part_of(
            cases,
            number,
            n_parts,
            recorded=store.root.kernel,
            inputs=cases.inputs[:, place * length : (place + 1) * length],
        )
        for place, number in enumerate(numbers)
    ]


def home_of_run(store: Store, ring: Ring) -> SharedPosterior:
    """Return the posterior of a run as a home sees it. This reads all cases once, for their constants."""
    cases = _read(store, lambda n_columns, starts: quantities.some_columns(n_columns))
    return SharedPosterior.from_whole(cases, ring, inputs=cases.inputs)


def _read(store: Store, keep: Keep) -> SampledPosterior:
    """Read all cases, and keep all targets and the inputs of some columns.

    Only piecewise hazards briefly hold all inputs, because their cells follow from the targets.
    """
    spec = store.spec
    pieces, targets = store.standardized_cases()
    posterior = SampledPosterior.from_pieces(
        spec.network, spec.model, pieces, targets, dtype=spec.dtype, keep=keep
    )
    return posterior.tempered(1 / spec.temperature)
