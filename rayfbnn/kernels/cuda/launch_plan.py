"""Chooses the kernel that runs whole trajectories on the chip, and the division into blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.network_plan import ACTIVATION_CODES, NetworkPlan

WARP = 32
# A thread has 255 registers; this many may hold the units of a case and the gradient of a chain. With three
# blocks on a multiprocessor a thread has 168 registers. The network 1-30-1, with 175 words, then spills; with
# two blocks it does not.
_MAX_WARP_WORDS = 176
_MAX_WARP_WORDS_OF_THREE_BLOCKS = 168
_RESERVED_SHARED_BYTES = 1024  # reserved by the device in each block
_SHARED_BYTES_OF_ANY_DEVICE = 99 * 1024  # for a block, since sm_80
_MOST_BYTES_OF_OUTPUTS = 64  # of a case: 16 outputs in float32
_STORED = {ACTIVATION_CODES[name] for name in ("softplus", "softplus0", "sin")}  # has_kept_slope
QUAD = 4  # as in tiles.cuh
TILES = (64, 32, 16)  # cases; the first that fits is used
_MOST_OF_A_WARP = 128  # parameters, or entries of a matrix: up to four for each thread


@dataclass(frozen=True)
class LaunchPlan:
    """A kernel, as in `generate._FILES`, and the division of its work.

    threads       in a block
    tile          cases that a block holds at a time; 1 in the kernel with one warp per chain, and draws in
                  the kernels of sums over them
    shared_bytes  dynamic shared memory of a block
    min_blocks    number of blocks that must fit in the registers of a multiprocessor at the same time
    """

    kernel: str
    threads: int
    tile: int
    shared_bytes: int
    min_blocks: int = 1

    def n_blocks(self, n_chains: int) -> int:
        """Return the number of blocks in a launch for n_chains."""
        has_a_block_for_a_chain = self.kernel not in ("warp", "wide")
        return n_chains if has_a_block_for_a_chain else -(-n_chains * WARP // self.threads)


# The kernels of pass_kernels.py, which run between the products of network_pass.py.
wide_plan = LaunchPlan("wide", threads=256, tile=1, shared_bytes=0)


def few_outputs_plan(network: NetworkPlan, dtype: str) -> LaunchPlan | None:
    """Return the plan of few_outputs.cu, or None for a network that it does not cover.

    The outputs must depend on the last hidden layer alone, and fit in a thread's registers.
    """
    last, size = len(network.units) - 2, np.dtype(dtype).itemsize
    sources = [link.source for link in network.links if link.destination == last + 1 and link.n_units > 0]
    if last < 1 or sources != [last] or network.units[-1] * size > _MOST_BYTES_OF_OUTPUTS:
        return None
    n_units, n_outputs = network.units[-2:]
    width = -(-(n_outputs + 2) // QUAD) * QUAD
    n_rows = n_units + 1 + n_outputs + (n_units if stores_slopes(network, last) else 0)
    threads = wide_plan.threads
    shared_bytes = size * (n_units * (width + 2) + n_rows * (WARP + QUAD) + n_outputs * threads)
    if shared_bytes > _SHARED_BYTES_OF_ANY_DEVICE:
        return None
    return LaunchPlan("few outputs", threads, tile=WARP, shared_bytes=shared_bytes, min_blocks=4)


def stores_slopes(network: NetworkPlan, layer: int) -> bool:
    """Return True if a hidden layer's slopes are stored because they do not follow from its values."""
    return network.activations[layer - 1] in _STORED or network.offsets[layer] >= 0


def launch_plan(network: NetworkPlan, *, dtype: str, max_shared_bytes: int) -> LaunchPlan | NotCovered:
    """Return the plan for a posterior, or for one with common precisions integrated out."""
    size = np.dtype(dtype).itemsize
    per_thread = -(-network.n_parameters // WARP)
    words = (per_thread * WARP + 2 * sum(network.units) + 5 * per_thread) * size // 4
    if words <= _MAX_WARP_WORDS and not network.integrated:
        min_blocks = 3 if size == 4 and words <= _MAX_WARP_WORDS_OF_THREE_BLOCKS else 2
        return LaunchPlan("warp", threads=4 * WARP, tile=1, shared_bytes=0, min_blocks=min_blocks)
    threads = _threads_for(network.n_parameters)
    for tile in TILES:
        shared_bytes = block_bytes(network, tile, threads, size)
        if shared_bytes <= max_shared_bytes:
            # A multiprocessor has the shared memory of its largest block plus the reserved bytes.
            of_two = 2 * (shared_bytes + _RESERVED_SHARED_BYTES)
            min_blocks = 2 if of_two <= max_shared_bytes + _RESERVED_SHARED_BYTES else 1
            return LaunchPlan("block", threads, tile, shared_bytes, min_blocks)
    return _does_not_fit(f"{network.n_parameters} parameters", shared_bytes, max_shared_bytes)


def launch_plan_of_regression(
    network: NetworkPlan, *, dtype: str, n_cases: int, is_uniform: bool, max_shared_bytes: int
) -> LaunchPlan | NotCovered:
    """Return the plan for a network that ends in a regression.

    is_uniform  True if all cases have the same noise
    """
    regression = network.regression
    assert regression is not None
    if network.n_parameters == 0:
        return NOTHING_KEPT
    if regression.is_dual and n_cases > max(TILES):
        return NotCovered(f"more than {max(TILES)} cases in the dual form")
    n_features, bytes_of_real = len(regression.features), np.dtype(dtype).itemsize
    size = max(network.n_parameters, n_features * (n_cases if regression.is_dual else n_features))
    threads = WARP if size <= _MOST_OF_A_WARP else _threads_for(size)
    # The dual form takes the smallest tile that holds all cases.
    tiles = (min(tile for tile in TILES if tile >= n_cases),) if regression.is_dual else TILES
    for tile in tiles:
        if regression.is_dual:
            shared_bytes = dual_bytes(network, tile, threads, bytes_of_real, n_cases=n_cases)
        else:
            shared_bytes = marginal_bytes(network, tile, threads, bytes_of_real, is_uniform=is_uniform)
        if shared_bytes <= max_shared_bytes:
            kernel = "marginal dual" if regression.is_dual else "marginal"
            return LaunchPlan(kernel, threads, tile, shared_bytes)
    what = f"{network.n_parameters} parameters and a regression on {n_features} features"
    return _does_not_fit(what, shared_bytes, max_shared_bytes)


NOTHING_KEPT = NotCovered("no parameters are kept")


def _threads_for(n_numbers: int) -> int:
    """Return the threads in a block for this many numbers; idle threads would use up registers."""
    return 64 if n_numbers <= 512 else 128 if n_numbers <= 2048 else 256


def _does_not_fit(what: str, shared_bytes: int, max_shared_bytes: int) -> NotCovered:
    return NotCovered(
        f"{what}: their state takes {shared_bytes // 1024} KiB, and a block has"
        f" {max_shared_bytes // 1024} KiB of shared memory"
    )


def block_bytes(network: NetworkPlan, tile: int, threads: int, size: int) -> int:
    """Return the shared memory of block.cu with reals of `size` bytes; steps.cuh asserts that it suffices."""
    rounded = -(-network.n_parameters // QUAD) * QUAD
    with_offsets = sum(n for n, start in zip(network.units, network.offsets, strict=False) if start >= 0)
    rows = sum(network.units[:-1]) + sum(network.units[1:]) + with_offsets
    reals = 2 * rounded + rows * (tile + QUAD)
    squares = len(network.integrated) * threads // WARP
    return max(8 * (-(-reals * size // 8) + squares), 16 * threads)


def marginal_bytes(network: NetworkPlan, tile: int, threads: int, size: int, *, is_uniform: bool) -> int:
    """Return the shared memory of marginal.cu with reals of `size` bytes, which the source checks."""
    regression = network.regression
    assert regression is not None
    n, n_all = len(regression.features), regression.n_systems * regression.n_each
    n_blocks = 1 if is_uniform else regression.n_systems
    weights = n_blocks * (n + (n_all if is_uniform else regression.n_each)) * n + n_all * n
    matrices = n_blocks + (is_uniform and regression.n_systems > 1)
    vectors = 2 + regression.n_each + 2 * n_all + regression.n_systems
    ones = _bytes_with_ones(network, tile, threads, size)
    reals = _rounded(ones + (n_all * (tile + QUAD) + weights) * size, 8)
    return reals + 8 * (matrices * n * (n | 1) + vectors * n)


def dual_bytes(network: NetworkPlan, tile: int, threads: int, size: int, *, n_cases: int) -> int:
    """Return the shared memory of marginal_dual.cu, with reals of `size` bytes."""
    regression = network.regression
    assert regression is not None
    n, n_all = len(regression.features), regression.n_systems * regression.n_each
    of_cases = regression.n_systems * (1 + ((n_cases + 1) | 1)) + 3 * n_all + n
    of_features = regression.n_systems + 1
    reals = _rounded(_bytes_with_ones(network, tile, threads, size), 8)
    return reals + 8 * (of_cases * n_cases + of_features * n)


def _bytes_with_ones(network: NetworkPlan, tile: int, threads: int, size: int) -> int:
    """Return END_OF_ONES of regression.cuh."""
    return _rounded(block_bytes(network, tile, threads, size), QUAD * size) + (tile + QUAD) * size


def _rounded(n_bytes: int, multiple: int) -> int:
    return -(-n_bytes // multiple) * multiple
