"""Checks that the phases of a configuration fit together, the network, the data model and the parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rayfbnn.data.keys import MAX_WORD
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.model_updates import RandomGrid, SampleSigmas
from rayfbnn.mcmc.operation import AUTO, Operation, TrajectoryOperation, automatic
from rayfbnn.mcmc.operations import Repeat
from rayfbnn.mcmc.sghmc import Sghmc
from rayfbnn.mcmc.tempering.simulated_tempering import SimulatedTempering
from rayfbnn.model.architecture import NetworkSpec
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.output_layer import why_outputs_stay
from rayfbnn.spec.messages import nearest, short
from rayfbnn.spec.written import PhaseSpec

_MAX_UPDATES = 100_000  # in one iteration; each takes memory once `repeat` is written out


def check_schedule(
    phases: Sequence[PhaseSpec], *, network: NetworkSpec, model: DataModel, temperature: float
) -> None:
    """Raise ConfigError for the first setting of the phases that does not fit the network and the model."""
    _check_lengths(phases)
    _check_groups(phases, network, model)
    _check_automatic(phases)
    _check_marginal(phases, network, model, temperature)


def check_partitions(phases: Sequence[PhaseSpec], n_cases: int) -> None:
    """Raise ConfigError if an operation asks for more blocks or larger batches than there are cases."""
    for key, operation in _all_operations(phases):
        if isinstance(operation, TrajectoryOperation) and operation.partitions > n_cases:
            raise ConfigError(
                f"{key}.partitions: must be at most {n_cases}, the number of training cases,"
                f" got {operation.partitions}"
            )
        if isinstance(operation, Sghmc) and operation.batch is not None and operation.batch > n_cases:
            raise ConfigError(
                f"{key}.batch: must be at most {n_cases}, the number of training cases,"
                f" got {operation.batch}; leave it out for the gradient of all cases"
            )


def tuning_phases(phases: Sequence[PhaseSpec]) -> tuple[int, ...]:
    """Return the numbers of the phases that may tune: all before the first one with kept draws."""
    first_kept = next(number for number, phase in enumerate(phases) if phase.keep is True)
    return tuple(range(first_kept))


def _check_lengths(phases: Sequence[PhaseSpec]) -> None:
    if phases[-1].keep is not True:
        raise ConfigError(
            f"phase[{len(phases) - 1}].keep: the last phase must be kept, got {short(phases[-1].keep)}; "
            "use true, or leave it out"
        )
    n_iterations = sum(phase.iterations for phase in phases)
    if n_iterations > MAX_WORD:
        raise ConfigError(
            f"phase: all phases together must have at most {MAX_WORD} iterations, got {n_iterations}"
        )
    for index, phase in enumerate(phases):
        n_updates = _count_updates(phase.operations)
        if n_updates > _MAX_UPDATES:
            raise ConfigError(
                f"phase[{index}].operations: one iteration has {n_updates} updates with repeats written out; "
                f"it must have at most {_MAX_UPDATES}; use more iterations instead"
            )


def _check_groups(phases: Sequence[PhaseSpec], network: NetworkSpec, model: DataModel) -> None:
    """Check that the groups that an operation is restricted to have precisions that it can update."""
    with_precisions = [*network.priors, *([model.governed_by] if model.governed_by else [])]
    for key, operation in _all_operations(phases):
        if not isinstance(operation, SampleSigmas | RandomGrid) or operation.groups is None:
            continue
        known = list(with_precisions)
        if isinstance(operation, SampleSigmas):
            known += network.adjustments
        for name in operation.groups:
            if name not in known:
                raise ConfigError(
                    f'{key}.groups: {operation.op} finds no precisions in "{name}"{nearest(name, known)};'
                    f" the groups here are {', '.join(at_most_ten(known))}"
                )


def _check_automatic(phases: Sequence[PhaseSpec]) -> None:
    """Check that every automatic setting is in an operation of a phase that may tune."""
    tuned = {
        operation for number in tuning_phases(phases) for operation in automatic(phases[number].operations)
    }
    for key, operation in _all_operations(phases):
        if operation.tuned is not None and operation.tuned not in tuned:
            name = "steps" if operation.tuned.steps == AUTO else "stepsize"
            raise ConfigError(
                f'{key}.{name}: got "auto", which is tuned only before the first phase that is kept; give a'
                " number, or add an earlier phase with keep = false and exactly the same operation"
            )


def _check_marginal(
    phases: Sequence[PhaseSpec], network: NetworkSpec, model: DataModel, temperature: float
) -> None:
    """Check that hybrid-marginal integrates the outputs out only where that is possible."""
    at_other_temperatures = tuple(
        f"{key}." for key, operation in _all_operations(phases) if isinstance(operation, SimulatedTempering)
    )
    for key, operation in _all_operations(phases):
        if not (isinstance(operation, HybridMarginal) and "outputs" in operation.over):
            continue
        is_tempered = temperature != 1 or key.startswith(at_other_temperatures)
        reason = why_outputs_stay(network, model, is_tempered=is_tempered)
        if reason:
            raise ConfigError(f'{key}.over: the outputs cannot be integrated out, got "outputs"; {reason}')


def _count_updates(operations: Sequence[Operation]) -> int:
    """Return the number of updates in one iteration, with `repeat` written out."""
    n_updates = 0
    for operation in operations:
        if isinstance(operation, Repeat):
            n_updates += operation.times * _count_updates(operation.operations)
        elif inner := operation.inner:
            n_updates += 2 + _count_updates(inner)
        else:
            n_updates += 1
    return n_updates


def _all_operations(phases: Sequence[PhaseSpec]) -> Iterator[tuple[str, Operation]]:
    """Yield every operation of every phase with its key, including those inside other operations."""
    for index, phase in enumerate(phases):
        yield from _with_keys(f"phase[{index}]", phase.operations)


def _with_keys(key: str, operations: Sequence[Operation]) -> Iterator[tuple[str, Operation]]:
    for index, operation in enumerate(operations):
        inner_key = f"{key}.operations[{index}]"
        yield inner_key, operation
        inner = operation.inner
        yield from _with_keys(inner_key, inner)


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
    for key, operation in _all_operations(phases):
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
