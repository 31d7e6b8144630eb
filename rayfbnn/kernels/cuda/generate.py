"""CUDA C++ source text for one network: its sizes as constants, followed by the source files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rayfbnn.kernels.cuda.launch_plan import LaunchPlan
from rayfbnn.kernels.network_plan import NetworkPlan, RegressionPlan

_SOURCES = Path(__file__).parent / "source"
_SHARED = Path(__file__).parent.parent / "shared"

# The files of each kernel, in order; arithmetic.hpp, network.hpp and cuda.cuh come before them. The file of
# the launched kernel comes last. Files without trajectories have several kernels and need no such file.
_REGRESSION = ("pieces.cuh", "tiles.cuh", "steps.cuh", "cholesky.cuh", "regression.cuh")
_FILES = {
    "warp": ("pieces.cuh", "posterior.cuh", "warp.cu"),
    "block": ("pieces.cuh", "posterior.cuh", "tiles.cuh", "steps.cuh", "block.cu"),
    "marginal": (*_REGRESSION, "marginal.cu"),
    "marginal dual": (*_REGRESSION, "marginal_dual.cu"),
    "wide": ("layers.cuh", "products.cu"),
    "few outputs": ("layers.cuh", "few_outputs.cu"),
    "reduce": ("layers.cuh", "draws.cuh", "guesses.cuh", "reduce.cu"),
}
_WITHOUT_TRAJECTORIES = ("wide", "few outputs", "reduce")


@cache
def source_of(
    network: NetworkPlan,
    plan: LaunchPlan,
    *,
    dtype: str,
    is_weighted: bool,
    more_constants: tuple[str, ...] = (),
    launched: str = "advance",
) -> str:
    """Return the source text of a kernel.

    is_weighted     True if targets have weights, because some are missing
    more_constants  lines of source, such as those of `regression_constants`
    launched        "advance" for a piece of a trajectory, "hybrid" for a whole update by hybrid Monte Carlo;
                    ignored by kernels without trajectories
    """
    constants = {
        "N_LAYERS": len(network.units),
        "N_LINKS": len(network.links),
        "N_PARAMETERS": network.n_parameters,
        "N_INTEGRATED": len(network.integrated),
        "N_TARGETS": network.n_targets,
        "MODEL": network.model,
        "THREADS": plan.threads,
        "TILE": plan.tile,
        "SHARED_BYTES": plan.shared_bytes,
        "MIN_BLOCKS": plan.min_blocks,
    }
    lines = [
        f"typedef {'float' if dtype == 'float32' else 'double'} real;",
        *(f"constexpr int {name} = {value};" for name, value in constants.items()),
        f"constexpr bool IS_WEIGHTED = {str(is_weighted).lower()};",
        f"constexpr double NOISE_ALPHA = {_finite(network.alpha)!r};",
        *_tables(network),
        _alpha_of_parameters(network),
        *more_constants,
    ]
    files = [_SHARED / "arithmetic.hpp", _SHARED / "network.hpp"]
    if plan.kernel == "reduce":
        files += [_SHARED / "predictive.hpp", _SHARED / "dispersed.hpp"]
    files += [_SOURCES / name for name in ("cuda.cuh", *_FILES[plan.kernel])]
    if plan.kernel not in _WITHOUT_TRAJECTORIES:
        files.append(_SOURCES / f"{launched}.cu")
    return "\n".join([*lines, *(file.read_text() for file in files)])


def _tables(network: NetworkPlan) -> list[str]:
    links, integrated = network.links, network.integrated
    return [
        _table("units_of", network.units),
        _table("activation_of", (0, *network.activations, 0)),
        _table("offset_of", (*network.offsets, -1)),
        _table("link_source", [link.source for link in links]),
        _table("link_destination", [link.destination for link in links]),
        _table("link_start", [link.start for link in links]),
        _table("link_units", [link.n_units for link in links]),
        _table("link_rows", [link.n_rows for link in links]),
        _table("integrated_start", [group.start for group in integrated]),
        _table("integrated_stop", [group.stop for group in integrated]),
        _table("integrated_shape", [group.shape for group in integrated], "double"),
        _table("integrated_rate", [group.rate for group in integrated], "double"),
    ]


def _alpha_of_parameters(network: NetworkPlan) -> str:
    """Return the source of a function from a parameter to the degrees of freedom of its prior."""
    ends = [segment.stop for segment in network.segments]
    alphas = [_finite(segment.alpha) for segment in network.segments]
    choices = "".join(
        f"parameter < {end} ? {alpha!r} : " for end, alpha in zip(ends[:-1], alphas[:-1], strict=True)
    )
    return f"__device__ inline double prior_alpha_of(int parameter) {{ return {choices}{alphas[-1]!r}; }}"


def regression_constants(
    regression: RegressionPlan | None, *, n_cases: int, is_uniform: bool
) -> tuple[str, ...]:
    """Return constants of the regression, with the number of cases only if the matrices are over cases."""
    if regression is None:
        return ()
    runs = runs_of(regression.features)
    counts = {
        "N_FEATURES": len(regression.features),
        "N_SYSTEMS": regression.n_systems,
        "N_EACH": regression.n_each,
        "N_MOVED": len(regression.moved),
        "N_RUNS": len(runs),
    } | ({"N_CASES": n_cases} if regression.is_dual else {})
    return (
        *(f"constexpr int {name} = {value};" for name, value in counts.items()),
        f"constexpr bool IS_UNIFORM = {str(is_uniform).lower()};",
        *(
            _table(name, [run[k] for run in runs])
            for k, name in enumerate(("run_start", "run_layer", "run_row", "run_size"))
        ),
        _table("moved_start", [moved.first for moved in regression.moved]),
        _table("moved_stop", [moved.stop for moved in regression.moved]),
        _table("moved_half", [moved.half for moved in regression.moved], "double"),
        _table("moved_mean", [moved.mean for moved in regression.moved], "double"),
    )


def reduction_constants(*, n_guesses: int, starts: Sequence[float], is_fused: bool) -> tuple[str, ...]:
    """Return constants of sums over draws.

    starts    times when the pieces of a hazard start; one number for other data models
    is_fused  whether the kernels evaluate the networks themselves
    """
    return (
        f"constexpr int N_GUESSES = {n_guesses};",
        f"constexpr int N_CELLS = {len(starts)};",
        f"constexpr bool IS_FUSED = {str(is_fused).lower()};",
        _table("piece_start", starts, "double"),
    )


def runs_of(features: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int, int]]:
    """Join features in neighbouring rows of a layer; return (first feature, layer, row, number) of each run.

    The row of ones belongs to no layer. It forms a separate run with layer number -1.
    """
    runs: list[tuple[int, int, int, int]] = []
    for number, (layer, row) in enumerate(features):
        if row < 0:
            runs.append((number, -1, 0, 1))
            continue
        start, of_layer, first, size = runs[-1] if runs else (0, -1, 0, 0)
        if of_layer == layer and row == first + size:
            runs[-1] = (start, layer, first, size + 1)
        else:
            runs.append((number, layer, row, 1))
    return runs


def _finite(alpha: float) -> float:
    """Return alpha, or for infinity a number that C++ can write and arithmetic.hpp takes for infinite."""
    return min(alpha, 1e308)


def _table(name: str, values: Sequence[float], kind: str = "int") -> str:
    """Return a constexpr function from a place to a number. A device cannot read an array of constants."""
    numbers = [float(value) if kind == "double" else value for value in values]
    choices = "".join(f"place == {place} ? {value!r} : " for place, value in enumerate(numbers))
    return f"__host__ __device__ constexpr {kind} {name}(int place) {{ return {choices}0; }}"
