"""The arrays that a store has: their names, axes, shapes and chunks, which follow from the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.shuffling import order_of_cases
from rayfbnn.model.layout import NOISE, ParameterLayout, PrecisionLayout

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec

FORMAT_VERSION = 4
STATS = ("accepted", "energy", "energy_change", "log_likelihood", "log_prior", "diverged")
TOTAL_LOG_LIKELIHOOD = "log_likelihood_total"
LOG_Q = "log_q"  # the log density of a draw under the approximation that it is from
STATE = ("position", "momentum", "precisions")
STATISTICS, STATISTIC = "statistics", "statistic"  # the array of all STATS, and its last axis
PREDICTIVE = ("outputs", "targets")  # at the training inputs, of draws from the prior
# Markov chains, draws by rejection, draws from the prior, draws from an approximation of the posterior
Kind = Literal["mcmc", "exact", "prior", "approximate"]
StateShapes = tuple[tuple[str, tuple[int, ...]], ...]
COMMITS = "commits"  # an array, since readers of Zarr do not look inside an array's folder: records lie there

DISCARDED, TUNING, VERDICTS = "discarded", "tuning", "verdicts"  # folders in that of the commits


@dataclass(frozen=True)
class Header:
    """Sizes of a run as the root metadata has them; with the spec they decide the shapes of all arrays.

    n_draws, n_warmup_draws  planned draws of each chain
    draws_per_chunk          draws of a chunk, and the most of a block
    draws_per_block          most draws of a block; None where blocks end after some seconds
    n_blocks                 planned upper bound of the blocks of a batch
    cases_per_chunk          training cases of a chunk
    fit_state                names and shapes of the arrays of one start's state in a fit; None for what is no
                             fit, whose state has the arrays STATE
    """

    kind: Kind
    chains: int
    chains_per_batch: int
    draws_per_block: int | None
    n_draws: int
    n_warmup_draws: int
    n_blocks: int
    n_cases: int
    coordinate_chunk: int
    data_hash: str
    draws_per_chunk: int
    cases_per_chunk: int
    fit_state: StateShapes | None = None

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of what is known of each draw."""
        return (*STATS, LOG_Q) if self.kind == "approximate" else STATS

    @property
    def n_batches(self) -> int:
        """Number of batches that the chains are divided into."""
        return -(-self.chains // self.chains_per_batch)

    def batch_chains(self, batch: int) -> range:
        """Return the numbers of the chains in a batch; the last batch may have fewer than the others."""
        first = batch * self.chains_per_batch
        return range(first, min(first + self.chains_per_batch, self.chains))


@dataclass(frozen=True, eq=False)
class ArrayPlan:
    """One array of the store. `values` is what it holds from the start, None for what a run fills in.

    A chunk is one file, `<path>/c.<index>.<index>...`: all chunks of an array in one folder, so that one
    fsync makes their names durable.
    """

    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    values: Array | None = None

    @property
    def is_text(self) -> bool:
        """True if the array holds names, whose chunks vary in size."""
        return self.dtype == "string"

    @property
    def chunk_bytes(self) -> int | None:
        """Size of a chunk file, its crc32c included; None for text, whose size varies."""
        if self.is_text:
            return None
        return int(np.prod(self.chunks, dtype=np.int64)) * np.dtype(self.dtype).itemsize + 4

    @property
    def most_bytes(self) -> int:
        """Largest size of a chunk file."""
        if self.chunk_bytes is not None:
            return self.chunk_bytes
        names = () if self.values is None else self.values
        return 8 + sum(len(str(name).encode()) + 4 for name in names)

    def chunk_file(self, *index: int) -> str:
        """Return the file of the chunk whose first indices are given, 0 in the other axes."""
        padded = index + (0,) * (len(self.shape) - len(index))
        return f"{self.path}/c.{'.'.join(str(i) for i in padded)}"

    def files_of_rows(self) -> Iterator[str]:
        """Yield the chunk files of an array of which each chunk has whole rows, the first rows first."""
        return (self.chunk_file(i) for i in range(-(-self.shape[0] // max(1, self.chunks[0]))))

    def ranges(self, *selection: slice) -> tuple[range, ...]:
        """Return the indices that are selected in every axis: whole axes where no slice is given."""
        slices = (*selection, *(slice(None) for _ in self.shape[len(selection) :]))
        return tuple(range(*part.indices(n)) for part, n in zip(slices, self.shape, strict=True))

    def chunk_files(self, *ranges: range) -> Iterator[str]:
        """Yield the files that hold these ranges of the first axes (whole axes where none is given)."""
        spans = [
            range(part.start // size, -(-part.stop // size)) if len(part) else range(0)
            for part, size in zip(
                (*ranges, *(range(n) for n in self.shape[len(ranges) :])), self.chunks, strict=True
            )
        ]
        for index in np.ndindex(*(len(span) for span in spans)):
            yield self.chunk_file(*(span[i] for span, i in zip(spans, index, strict=True)))


@dataclass(frozen=True)
class SigmaPlan:
    """One array of standard deviations, sigma = precision**-1/2, and the columns of precisions it shows."""

    name: str
    columns: slice | int
    dims: tuple[str, ...]


def parameter_dims(group: str) -> tuple[str, ...]:
    """Return the axes of a group of parameters, as the store names them: source, then destination."""

    if group[0] in "bt":  # biases and offsets of one layer
        return {"o": ("output",), "i": ("input",)}.get(group[1:], (f"hidden{group[2:]}",))
    if group == "io":
        return "input", "output"
    if group.startswith("ih"):
        return "input", f"hidden{group[2:]}"
    if group.startswith("ho"):
        return f"hidden{group[2:]}", "output"
    source, destination = group[1:].split("h")  # h0h1
    return f"hidden{source}", f"hidden{destination}"


def sigma_plans(layout: PrecisionLayout) -> list[SigmaPlan]:
    """Return the arrays that show all precisions, each column in one of them."""
    plans = []
    for group in layout.groups:
        name, units = f"sigma_{group.name}", group.units
        if group.name == NOISE:
            if units is None:
                plans.append(SigmaPlan(name, group.common, ()))
            else:
                plans.append(SigmaPlan(f"{name}_common", group.common, ()))
                plans.append(SigmaPlan(name, units, ("target",)))
        else:
            plans.append(SigmaPlan(name, group.common, ()))
            if units is not None:
                dims = (f"input_{group.name}",) if group.omitted else parameter_dims(group.name)[:1]
                plans.append(SigmaPlan(f"{name}_unit", units, dims))
    for adjustments in layout.adjustments:
        dim = "output" if adjustments.name == "ao" else f"hidden{adjustments.name[2:]}"
        plans.append(SigmaPlan(f"adjustment_{adjustments.name}", adjustments.columns, (dim,)))
    return plans


def output_names(spec: RunSpec) -> tuple[str, ...]:
    """Name outputs as targets, or 0, 1, ... for classes; log_precision_y is that of the noise of y."""
    return spec.data_model.output_names(spec.data.targets)


def array_plans(header: Header, spec: RunSpec, data: Dataset | None = None) -> dict[str, ArrayPlan]:
    """Return every array of a store by its path. With `data`, arrays of the data have their values too."""
    plans = [*_section(header, spec, "", header.n_draws)]
    if header.n_warmup_draws:
        plans += _section(header, spec, "warmup_", header.n_warmup_draws)
    if header.kind == "prior":
        plans += _predictive(header, spec)
    plans += _data(header, spec, data)
    firsts = np.arange(header.n_batches, dtype=np.int64) * header.chains_per_batch
    plans.append(_whole(COMMITS, ("batch",), firsts))
    return {plan.path: plan for plan in plans}


def _section(header: Header, spec: RunSpec, prefix: str, n_draws: int) -> Iterator[ArrayPlan]:
    """Yield the arrays of posterior and sample_stats, or those of the warm-up."""
    network = spec.network
    leading = (header.chains, n_draws)
    chunk = (header.chains_per_batch, header.draws_per_chunk)

    def drawn(path: str, dims: tuple[str, ...], shape: tuple[int, ...], dtype: str) -> ArrayPlan:
        return ArrayPlan(path, ("chain", "draw", *dims), leading + shape, chunk + shape, dtype)

    group = f"{prefix}posterior"
    sizes: dict[str, int] = {"target": len(spec.data.targets)}
    for parameters in ParameterLayout.from_network(network).groups:
        dims = parameter_dims(parameters.name)
        if parameters.name in network.connections:
            dims = (f"weight_{parameters.name}",)
        elif parameters.omitted:
            dims = (f"input_{parameters.name}", *dims[1:])
        sizes.update(zip(dims, parameters.shape, strict=True))
        yield drawn(f"{group}/{parameters.name}", dims, parameters.shape, spec.dtype)
    precisions = PrecisionLayout.from_specs(network, spec.model, len(spec.data.targets))
    for sigma in sigma_plans(precisions):
        shape = tuple(sizes[dim] for dim in sigma.dims)
        yield drawn(f"{group}/{sigma.name}", sigma.dims, shape, "float64")
    # ArviZ takes a `log_likelihood` for the log likelihoods of single cases.
    names = [TOTAL_LOG_LIKELIHOOD if name == "log_likelihood" else name for name in header.statistics]
    yield drawn(f"{prefix}sample_stats/{STATISTICS}", (STATISTIC,), (len(names),), "float64")
    yield _whole(f"{prefix}sample_stats/{STATISTIC}", (STATISTIC,), np.array(names, dtype=object))
    for folder in (group, f"{prefix}sample_stats"):
        yield from _chains_and_draws(header, folder, n_draws)
    for dim, values in _names(spec).items():
        if dim in sizes:
            yield _whole(f"{group}/{dim}", (dim,), values)


def _predictive(header: Header, spec: RunSpec) -> Iterator[ArrayPlan]:
    """Yield the functions and data sets that draws from the prior give at the training inputs.

    A hazard of several pieces has one output, whose value in each piece is stored.
    """
    names, folder, model = _names(spec), "prior_predictive", spec.data_model
    names["piece"] = np.arange(model.n_cells, dtype=np.int64)
    leading, chunk = (header.chains, header.n_draws), (header.chains_per_batch, header.draws_per_chunk)
    for name in PREDICTIVE:
        axis = "piece" if name == "outputs" and model.n_cells > 1 else name.removesuffix("s")
        shape = (header.n_cases, len(names[axis]))
        dims = ("chain", "draw", "case", axis)
        yield ArrayPlan(f"{folder}/{name}", dims, leading + shape, chunk + shape, "float64")
        yield _whole(f"{folder}/{axis}", (axis,), names[axis])
    yield from _chains_and_draws(header, folder, header.n_draws)


def _chains_and_draws(header: Header, folder: str, n_draws: int) -> Iterator[ArrayPlan]:
    """Yield the coordinates: the numbers of the chains and of the draws."""
    yield _whole(f"{folder}/chain", ("chain",), np.arange(header.chains, dtype=np.int64))
    numbers = np.arange(n_draws, dtype=np.int64)
    yield ArrayPlan(f"{folder}/draw", ("draw",), (n_draws,), (header.coordinate_chunk,), "int64", numbers)


def _data(header: Header, spec: RunSpec, data: Dataset | None) -> Iterator[ArrayPlan]:
    """Yield the training cases as on file, and how they are standardised."""
    n_inputs, n_targets = len(spec.input_names), len(spec.data.targets)
    for path, dims, shape in (
        ("observed_data/targets", ("case", "target"), (header.n_cases, n_targets)),
        ("constant_data/inputs", ("case", "input"), (header.n_cases, n_inputs)),
        ("constant_data/input_center", ("input",), (n_inputs,)),
        ("constant_data/input_scale", ("input",), (n_inputs,)),
        ("constant_data/target_center", ("target",), (n_targets,)),
        ("constant_data/target_scale", ("target",), (n_targets,)),
    ):
        values: Any = None if data is None else getattr(data, path.split("/")[1])
        chunk = (header.cases_per_chunk, *shape[1:]) if dims[0] == "case" else shape
        yield ArrayPlan(path, dims, shape, chunk, "float64", values)
    names = _names(spec)
    yield _whole("observed_data/target", ("target",), names["target"])
    yield _whole("constant_data/input", ("input",), np.array(spec.input_names, dtype=object))
    yield _whole("constant_data/target", ("target",), names["target"])
    if spec.data.shuffle:
        yield _whole("constant_data/row", ("case",), order_of_cases(header.n_cases))


def _names(spec: RunSpec) -> dict[str, Array]:
    kept = {
        f"input_{group}": np.array(
            [name for number, name in enumerate(spec.network_inputs) if number not in omitted], dtype=object
        )
        for group, omitted in spec.network.omitted.items()
    }
    return kept | {
        "input": np.array(spec.network_inputs, dtype=object),
        "output": np.array(output_names(spec), dtype=object),
        "target": np.array(spec.data.targets, dtype=object),
    }


def _whole(path: str, dims: tuple[str, ...], values: Array) -> ArrayPlan:
    """Return an array in one chunk, complete from the start."""
    dtype = "string" if values.dtype == object else str(values.dtype)
    return ArrayPlan(path, dims, values.shape, values.shape, dtype, values)


def chunk_rows(first: int, n_draws: int, size: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield chunks of draws first .. first + n_draws - 1: number, rows of the block, rows of the chunk."""
    for number in range(first // size, -(-(first + n_draws) // size)):
        start, stop = max(first, number * size), min(first + n_draws, (number + 1) * size)
        yield number, slice(start - first, stop - first), slice(start - number * size, stop - number * size)
