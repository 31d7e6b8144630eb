"""The number of parts of the training cases, and checks that a schedule works with several parts."""

from __future__ import annotations

from collections.abc import Sequence

from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operation import TrajectoryOperation
from rayfbnn.spec.schedule_checks import all_operations
from rayfbnn.spec.sections import PhaseSpec

# Size of a part's inputs with data.parts = "auto", in float32. More parts make each multi-leap less accurate,
# and fewer do not fit into memory with the chains.
_BYTES_OF_PART = 2**28


def automatic_parts(*, n_cases: int, n_inputs: int) -> int:
    """Return the smallest number of parts that have at most 256 MiB of inputs each, in float32."""
    n_bytes = 4 * n_cases * n_inputs
    return min(max(1, -(-n_bytes // _BYTES_OF_PART)), n_cases)


def check_parts(phases: Sequence[PhaseSpec], n_parts: int, *, device: str) -> None:
    """Raise ConfigError, naming the operation, for anything that is impossible with several parts."""
    if n_parts == 1:
        return
    if device != "cpu":
        raise ConfigError(
            f"data.parts: only the CPU supports cases in several parts, got {n_parts} with device ="
            f' "{device}"; leave data.parts out, or use device = "cpu"'
        )
    for key, operation in all_operations(phases):
        reason = operation.why_undivided()
        if reason is not None:
            raise ConfigError(f"{key}: {reason}")
        if isinstance(operation, TrajectoryOperation):
            _check_partitions(key, operation, n_parts)


def _check_partitions(key: str, operation: TrajectoryOperation, n_parts: int) -> None:
    if operation.partitions not in (1, n_parts):
        raise ConfigError(
            f"{key}.partitions: must be {n_parts}, the number of data.parts, or 1 for full gradients, got"
            f" {operation.partitions}"
        )
    if operation.partitions > 1 and not operation.is_cyclic:
        raise ConfigError(
            f'{key}.order: must be "cyclic" with data.parts = {n_parts}, since chains travel round the parts'
        )
