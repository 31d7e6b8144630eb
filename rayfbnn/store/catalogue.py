"""The plan of a store's arrays: their names, axes, shapes and chunks, which follow from the run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.dataset import order_of_cases
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.store.documents import Chains, Count, Digest, Draws, Shapes, Whole

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec

FORMAT_VERSION = 4
STATS = ("accepted", "energy", "energy_change", "log_likelihood", "log_prior", "diverged")
_TOTAL_LOG_LIKELIHOOD = "log_likelihood_total"
LOG_Q = "log_q"  # the log density of a draw under the approximation that it was drawn from
STATE = ("position", "momentum", "precisions")
STATISTICS, STATISTIC = "statistics", "statistic"  # the array of all STATS, and its last axis
PREDICTIVE = ("outputs", "targets")  # at the training inputs, of draws from the prior
# Markov chains, draws by rejection, draws from the prior, draws from an approximation of the posterior
Kind = Literal["mcmc", "exact", "prior", "approximate"]
Section = Literal["posterior", "warmup"]
StateShapes = dict[str, tuple[int, ...]]
# An array, because readers of Zarr do not look inside an array's folder. The commit records lie there.
COMMITS = "commits"
# A run with a ladder has in the group LADDER: the measure of each level (`measure_name`), the energy
# differences between neighbours (mcmc/ladder), and the replica and the round trips at the top.
LADDER = "ladder"
LOG_RSS, LOG_SCALE, DATA_ENERGY = "log_rss", "log_scale", "data_energy"
FORWARD, REVERSE, REPLICA, ROUND_TRIPS = "forward", "reverse", "replica", "round_trips"
FAMILIES = ("chains", "prior")  # of ladders with even and with odd numbers
DISCARDED, TUNING, VERDICTS = "discarded", "tuning", "verdicts"  # folders in COMMITS


@dataclass(frozen=True)
class Header:
    """Sizes of a run as recorded in the root metadata; together with the spec they determine all shapes.

    n_draws, n_warmup_draws  planned draws of each chain
    draws_per_chunk          draws of each chain in a chunk, and the maximum in a block
    draws_per_block          maximum number of draws in a block; None if blocks end after some seconds
    n_blocks                 upper bound on the number of blocks of a batch
    cases_per_chunk          training cases in a chunk
    coordinate_chunk         numbers of draws in a chunk of the coordinate `draw`
    data_hash                SHA-256 of the training cases
    fit_state                names and shapes of the arrays in the state of one start of a fit; None for all
                             other runs; their state has the arrays STATE
    """

    kind: Kind
    chains: Chains
    chains_per_batch: Chains
    draws_per_block: Count | None
    n_draws: Draws
    n_warmup_draws: Draws
    n_blocks: Whole
    n_cases: Whole
    coordinate_chunk: Count
    data_hash: Digest
    draws_per_chunk: Count
    cases_per_chunk: Count
    fit_state: Shapes | None = None

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics stored for each draw."""
        return (*STATS, LOG_Q) if self.kind == "approximate" else STATS

    def planned(self, section: Section | None) -> int:
        """Return the number of draws of each chain that are planned for a section."""
        return self.n_warmup_draws if section == "warmup" else self.n_draws

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return -(-self.chains // self.chains_per_batch)

    def batch_chains(self, batch: int) -> range:
        """Return the numbers of the chains in a batch; the last batch may have fewer than the others."""
        first = batch * self.chains_per_batch
        return range(first, min(first + self.chains_per_batch, self.chains))


@dataclass(frozen=True)
class Root:
    """The root metadata, with the extensions laid over it.

    identity      digest of the root's metadata file, which never changes and thus identifies the store
    fixed_chunks  chunk file -> SHA-256 of its content, for all chunks written at creation
    n_extensions  number of times that the run was lengthened
    before        the header before the last extension; after a crash some arrays may still have its sizes
    version       version of rayfbnn that created the store
    results       number of its results (`rayfbnn.version`)
    kernel        name of the code that ran the first leapfrog steps
    """

    identity: str
    header: Header
    spec: RunSpec
    fixed_chunks: dict[str, str]
    n_extensions: int
    before: Header
    version: str
    results: int
    kernel: str


@dataclass(frozen=True, eq=False)
class ArrayPlan:
    """The plan of one array. `values` is its content from the start, or None if the run fills it in.

    A chunk is one file, `<path>/c.<index>.<index>...`. All chunks of an array are in one folder, and one
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
        """True for an array of names."""
        return self.dtype == "string"

    @property
    def chunk_bytes(self) -> int | None:
        """Size of a chunk file with its crc32c; None for text, whose size varies."""
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

    @property
    def is_drawn(self) -> bool:
        """True for an array that has values for each draw of each chain."""
        return self.dims[:2] == ("chain", "draw")

    @property
    def is_draw_coordinate(self) -> bool:
        """True for the coordinate with the numbers of the draws, which an extension lengthens."""
        return self.path.endswith("/draw")

    @property
    def section(self) -> Section:
        """The section that the draws of the array belong to."""
        return "warmup" if self.path.startswith("warmup_") else "posterior"

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Type of the numbers in files, which are little-endian."""
        return np.dtype(self.dtype).newbyteorder("<")

    def decoded(self, raw: bytes) -> Array:
        """Return the values in a chunk file of numbers, read-only, as Zarr reads them."""
        values: Array = np.frombuffer(raw, self.stored_dtype, count=math.prod(self.chunks))
        return values.reshape(self.chunks)

    def chunk_file(self, *index: int) -> str:
        """Return the file of a chunk from its first indices; the other indices are 0."""
        padded = index + (0,) * (len(self.shape) - len(index))
        return f"{self.path}/c.{'.'.join(str(i) for i in padded)}"

    def files_of_rows(self) -> Iterator[str]:
        """Yield the chunk files of an array with whole rows in each chunk, in the order of the rows."""
        return (self.chunk_file(i) for i in range(-(-self.shape[0] // max(1, self.chunks[0]))))

    def ranges(self, *selection: slice) -> tuple[range, ...]:
        """Return the selected indices of every axis; axes without a slice are selected whole."""
        slices = (*selection, *(slice(None) for _ in self.shape[len(selection) :]))
        return tuple(range(*part.indices(n)) for part, n in zip(slices, self.shape, strict=True))

    def chunk_files(self, *ranges: range) -> Iterator[str]:
        """Yield the files that hold these ranges of the first axes; axes without a range are taken whole."""
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
    """One array of standard deviations, sigma = precision**-1/2, and its columns in the precisions."""

    name: str
    columns: slice | int
    dims: tuple[str, ...]


def parameter_dims(group: str) -> tuple[str, ...]:
    """Return the store's names for the axes of a group of parameters: source, then destination."""

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
    """Return the arrays that hold all precisions; each column is in exactly one of them."""
    plans = []
    for group in layout.groups:
        name, units = f"sigma_{group.name}", group.units
        if group.is_of_targets:
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


def layouts(spec: RunSpec) -> tuple[ParameterLayout, PrecisionLayout]:
    """Return the columns of the parameters and of the precisions of a run."""
    precisions = PrecisionLayout.from_specs(spec.network, spec.model, len(spec.data.targets))
    return ParameterLayout.from_network(spec.network), precisions


def array_plans(header: Header, spec: RunSpec, data: Dataset | None = None) -> dict[str, ArrayPlan]:
    """Return every array of a store by its path; with `data`, arrays of the data have their values too."""
    plans = [*_section(header, spec, "", header.n_draws)]
    if header.n_warmup_draws:
        plans += _section(header, spec, "warmup_", header.n_warmup_draws)
    if header.kind == "prior":
        plans += _predictive(header, spec)
    if spec.ladder is not None and header.kind == "mcmc":
        plans += _ladder(header, spec, spec.ladder.most_levels)
    plans += _data(header, spec, data)
    firsts = np.arange(header.n_batches, dtype=np.int64) * header.chains_per_batch
    plans.append(_whole(COMMITS, ("batch",), firsts))
    return {plan.path: plan for plan in plans}


def _section(header: Header, spec: RunSpec, prefix: str, n_draws: int) -> Iterator[ArrayPlan]:
    """Yield the arrays of posterior and sample_stats, or of warmup_posterior and warmup_sample_stats."""
    network = spec.network
    drawn = partial(_drawn, header, n_draws)
    group = f"{prefix}posterior"
    sizes: dict[str, int] = {"target": len(spec.data.targets)}
    layout, precisions = layouts(spec)
    for parameters in layout.groups:
        dims = parameter_dims(parameters.name)
        if parameters.name in network.connections:
            dims = (f"weight_{parameters.name}",)
        elif parameters.omitted:
            dims = (f"input_{parameters.name}", *dims[1:])
        sizes.update(zip(dims, parameters.shape, strict=True))
        yield drawn(f"{group}/{parameters.name}", dims, parameters.shape, spec.dtype)
    for sigma in sigma_plans(precisions):
        shape = tuple(sizes[dim] for dim in sigma.dims)
        yield drawn(f"{group}/{sigma.name}", sigma.dims, shape, "float64")
    # ArviZ expects the log likelihoods of single cases under the name `log_likelihood`.
    names = [_TOTAL_LOG_LIKELIHOOD if name == "log_likelihood" else name for name in header.statistics]
    yield drawn(f"{prefix}sample_stats/{STATISTICS}", (STATISTIC,), (len(names),), "float64")
    yield _whole(f"{prefix}sample_stats/{STATISTIC}", (STATISTIC,), np.array(names, dtype=object))
    for folder in (group, f"{prefix}sample_stats"):
        yield from _chains_and_draws(header, folder, n_draws)
    for dim, values in _names(spec).items():
        if dim in sizes:
            yield _whole(f"{group}/{dim}", (dim,), values)


def measure_name(spec: RunSpec) -> str:
    """Return the name of the measure of each level of a ladder.

    It is the log of the residual sum of squares, for t noise that of the scale of the residuals, and for
    powers the energy of the data.
    """
    if spec.ladder_ends.kind == "powers":
        return DATA_ENERGY
    assert spec.model.noise is not None
    return LOG_RSS if math.isinf(spec.model.noise.alphas[2]) else LOG_SCALE


def ladder_shapes(spec: RunSpec, n_levels: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a ladder for one draw, by name."""
    between = (n_levels - 1,)
    return {measure_name(spec): (n_levels,), FORWARD: between, REVERSE: between, REPLICA: (), ROUND_TRIPS: ()}


def _ladder(header: Header, spec: RunSpec, n_levels: int) -> Iterator[ArrayPlan]:
    """Yield the arrays of a ladder, in float32, which is enough for verdicts; unused levels are NaN."""
    for name, shape in ladder_shapes(spec, n_levels).items():
        dims = ("pair" if name in (FORWARD, REVERSE) else "level",) if shape else ()
        yield _drawn(header, header.n_draws, f"{LADDER}/{name}", dims, shape, "float32")
    yield _whole(f"{LADDER}/level", ("level",), np.arange(n_levels, dtype=np.int64))
    families = [FAMILIES[chain % 2] for chain in range(header.chains)]
    yield _whole(f"{LADDER}/family", ("chain",), np.array(families, dtype=object))
    yield from _chains_and_draws(header, LADDER, header.n_draws)


def state_shapes(header: Header, spec: RunSpec) -> StateShapes | None:
    """Return the names and shapes of the arrays in the state of one fit or ladder; None for other runs."""
    if spec.ladder is None or header.kind != "mcmc":
        return header.fit_state
    return ladder_state(spec, spec.ladder.most_levels)


def ladder_state(spec: RunSpec, n_levels: int) -> StateShapes:
    """Return the names and shapes of the arrays in the state of one ladder."""
    parameters, precisions = layouts(spec)
    return {
        "position": (n_levels, parameters.n_parameters),
        "precisions": (n_levels, precisions.n_precisions),
        "replica": (n_levels,),
        "end": (n_levels,),
        "trips": (),
    }


def _predictive(header: Header, spec: RunSpec) -> Iterator[ArrayPlan]:
    """Yield the arrays of functions and data sets at the training inputs, for draws from the prior.

    A hazard with several pieces has one output, and its value in each piece is stored.
    """
    names, folder, model = _names(spec), "prior_predictive", spec.data_model
    names["piece"] = np.arange(model.n_cells, dtype=np.int64)
    for name in PREDICTIVE:
        axis = "piece" if name == "outputs" and model.n_cells > 1 else name.removesuffix("s")
        shape = (header.n_cases, len(names[axis]))
        yield _drawn(header, header.n_draws, f"{folder}/{name}", ("case", axis), shape, "float64")
        yield _whole(f"{folder}/{axis}", (axis,), names[axis])
    yield from _chains_and_draws(header, folder, header.n_draws)


def _chains_and_draws(header: Header, folder: str, n_draws: int) -> Iterator[ArrayPlan]:
    yield _whole(f"{folder}/chain", ("chain",), np.arange(header.chains, dtype=np.int64))
    numbers = np.arange(n_draws, dtype=np.int64)
    yield ArrayPlan(f"{folder}/draw", ("draw",), (n_draws,), (header.coordinate_chunk,), "int64", numbers)


def _data(header: Header, spec: RunSpec, data: Dataset | None) -> Iterator[ArrayPlan]:
    """Yield the arrays of the training cases, as on file, and of the centers and scales."""
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
    # Outputs are named as their targets, or 0, 1, ... for classes. The output for the log precision of the
    # noise of target y is log_precision_y.
    outputs = spec.data_model.output_names(spec.data.targets)
    return kept | {
        "input": np.array(spec.network_inputs, dtype=object),
        "output": np.array(outputs, dtype=object),
        "target": np.array(spec.data.targets, dtype=object),
    }


def _drawn(
    header: Header, n_draws: int, path: str, dims: tuple[str, ...], shape: tuple[int, ...], dtype: str
) -> ArrayPlan:
    """Return the plan of an array that has values of this shape for each draw of each chain."""
    leading, chunk = (header.chains, n_draws), (header.chains_per_batch, header.draws_per_chunk)
    return ArrayPlan(path, ("chain", "draw", *dims), leading + shape, chunk + shape, dtype)


def _whole(path: str, dims: tuple[str, ...], values: Array) -> ArrayPlan:
    """Return the plan of an array that is one chunk and complete from the start."""
    dtype = "string" if values.dtype == object else str(values.dtype)
    return ArrayPlan(path, dims, values.shape, values.shape, dtype, values)


def chunk_index(file: str) -> list[int]:
    """Return the indices of a chunk from the name of its file."""
    return [int(part) for part in file.rpartition("/")[2].split(".")[1:]]


def chunk_rows(first: int, n_draws: int, size: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield for each chunk of n_draws draws from `first` on: number, rows of the draws, rows of the chunk."""
    for number in range(first // size, -(-(first + n_draws) // size)):
        start, stop = max(first, number * size), min(first + n_draws, (number + 1) * size)
        yield number, slice(start - first, stop - first), slice(start - number * size, stop - number * size)
