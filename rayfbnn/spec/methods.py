"""The phases of methods and of ladders, and checks that phases fit the network, the model and the parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rayfbnn.approximate.approximation import Approximation
from rayfbnn.approximate.registry import APPROXIMATIONS
from rayfbnn.data.keys import MAX_WORD
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.model_updates import RandomGrid, SampleSigmas
from rayfbnn.mcmc.operation import AUTO, Operation, TrajectoryOperation, automatic
from rayfbnn.mcmc.operations import Repeat
from rayfbnn.mcmc.sghmc import Sghmc
from rayfbnn.mcmc.tempering.simulated_tempering import SimulatedTempering
from rayfbnn.model.architecture import NetworkSpec, PriorSpec
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.spec.messages import nearest, short
from rayfbnn.spec.written import METHODS, LadderSpec, MethodsSpec, PhasesKeys, PhaseSpec, Written

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
    at_other_temperatures = tuple(
        f"{key}." for key, operation in _all_operations(phases) if isinstance(operation, SimulatedTempering)
    )
    for key, operation in _all_operations(phases):
        if not (isinstance(operation, HybridMarginal) and "outputs" in operation.over):
            continue
        is_tempered = temperature != 1 or key.startswith(at_other_temperatures)
        from rayfbnn.model.output_layer import why_outputs_stay

        reason = why_outputs_stay(network, model, is_tempered=is_tempered)
        if reason:
            raise ConfigError(f'{key}.over: the outputs cannot be integrated out, got "outputs"; {reason}')


def _count_updates(operations: Sequence[Operation]) -> int:
    """Return the number of updates in one iteration, with `repeat` written out."""
    n_updates = 0
    for operation in operations:
        inner = _count_updates(operation.inner)
        n_updates += operation.times * inner if isinstance(operation, Repeat) else 2 + inner if inner else 1
    return n_updates


def _all_operations(phases: Sequence[PhaseSpec]) -> Iterator[tuple[str, Operation]]:
    """Yield every operation of every phase with its key, including those inside other operations."""

    def with_keys(key: str, operations: Sequence[Operation]) -> Iterator[tuple[str, Operation]]:
        for index, operation in enumerate(operations):
            inner_key = f"{key}.operations[{index}]"
            yield inner_key, operation
            yield from with_keys(inner_key, operation.inner)

    for index, phase in enumerate(phases):
        yield from with_keys(f"phase[{index}]", phase.operations)


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
        if not isinstance(operation, TrajectoryOperation) or operation.partitions == 1:
            continue
        if operation.partitions != n_parts:
            raise ConfigError(
                f"{key}.partitions: must be {n_parts}, the number of data.parts, or 1 for full gradients, got"
                f" {operation.partitions}"
            )
        if not operation.is_cyclic:
            raise ConfigError(
                f'{key}.order: must be "cyclic" with data.parts = {n_parts}, since chains travel round the'
                " parts"
            )


_USUAL_ITERATIONS = 2000
_LEAST_LADDERS = 4
_MOST_IN_ALL = 1_000_000  # levels of all ladders: the record of a round has two numbers for each
LADDERS_PER_BATCH = 2
_BYTES_ON_DEVICE = 8 * 2**30  # a card has 16 GiB and more


def ladder_phases(
    ladder: LadderSpec, default: Sequence[PhaseSpec], iterations: int | None
) -> tuple[PhaseSpec, ...]:
    """Return the phases of ladders: the default schedule's warm-up, annealing, adaptation, and kept draws.

    The operations are those of the default schedule, at every level. Exchanges follow them in the last two.

    default     the phases of a run without ladder; the last one is kept
    iterations  of the kept phase; None for the usual number
    """
    *held, tuned = default[:-1]
    if ladder.warmup is not None:
        tuned = PhaseSpec(iterations=ladder.warmup, keep=False, operations=tuned.operations)
    annealed, adapted = (
        PhaseSpec(iterations=n, keep=False, operations=default[-1].operations)
        for n in (ladder.annealing, ladder.adaptation)
    )
    kept = PhaseSpec(iterations=iterations or _USUAL_ITERATIONS, operations=default[-1].operations)
    return (*held, tuned, annealed, adapted, kept)


def ladders_on_device(
    ladders: int, network: NetworkSpec, *, most_levels: int, n_cases: int, bytes_of_number: int
) -> int:
    """Return the default size of a batch on a device: all ladders, or as many as take 8 GiB at all levels.

    The memory of a level is an estimate: an update has about 16 vectors as long as the parameters, and a pass
    through the network two arrays of the units at all cases and three of the residuals in float64.
    """
    units = sum(layer.units for layer in network.hidden)
    of_cases = n_cases * (2 * bytes_of_number * units + 3 * 8 * network.outputs)
    bytes_of_level = 16 * bytes_of_number * sum(group.size for group in network.groups()) + of_cases
    most = _BYTES_ON_DEVICE // (most_levels * bytes_of_level) // 2 * 2
    return min(ladders, max(LADDERS_PER_BATCH, most))


def even_batch(ladders: int) -> int:
    """Return the smallest size of a batch for at least this many ladders: half are from either side."""
    return ladders + ladders % 2


def check_ladder(spec: Written, ladder: LadderSpec) -> None:
    """Raise ConfigError, naming the key, for settings that [ladder] excludes."""
    if "phase" in spec.model_fields_set:
        raise ConfigError(
            f"phase: a ladder has its own schedule, got {len(spec.phase)} with [ladder]; leave [[phase]] out,"
            " and give iterations, ladder.warmup and ladder.adaptation"
        )
    if spec.method is not None:
        raise ConfigError(
            f'method: a ladder is a method of its own, got "{spec.method}" with [ladder]; leave out one'
        )
    if spec.temperature != 1:
        raise ConfigError(
            f"temperature: must be 1 with [ladder], whose levels change it, got {spec.temperature:g}"
        )
    if spec.data.parts not in (None, 1):
        raise ConfigError(
            f"data.parts: a ladder needs all cases in one place, got {short(spec.data.parts)}; leave it out"
        )
    if spec.chains < _LEAST_LADDERS or spec.chains % 2:
        raise ConfigError(
            f"chains: must be an even number of at least {_LEAST_LADDERS} with [ladder], got {spec.chains};"
            " half of the ladders start from chains and half from the prior, and only two or more from each"
            " side show whether the sides and their ladders agree"
        )
    if spec.chains * ladder.most_levels > _MOST_IN_ALL:
        raise ConfigError(
            f"chains: all ladders together may have {_MOST_IN_ALL} levels, and {spec.chains} ladders of up to"
            f" {ladder.most_levels} have {spec.chains * ladder.most_levels}; it must be at most"
            f" {_MOST_IN_ALL // ladder.most_levels // 2 * 2}"
        )
    if "chains_per_batch" in spec.model_fields_set and spec.chains_per_batch % 2:
        raise ConfigError(
            f"chains_per_batch: must be even with [ladder], got {spec.chains_per_batch}; a batch has as many"
            " ladders from one side as from the other"
        )


def check_levels(ladder: LadderSpec, kind: str, noise: PriorSpec | None, written: str | None) -> None:
    """Raise ConfigError for fixed noise, which levels hold, or a hottest level no hotter than the posterior.

    kind     of the levels: "noise", or "powers", where that of the posterior is 1
    noise    the prior of the noise; None for targets without it
    written  this prior as written
    """
    if noise is not None and all(math.isinf(alpha) for alpha in noise.alphas[:2]):
        raise ConfigError(
            f'model.noise: a ladder holds the noise at its levels, so it must be free, got "{written}", which'
            ' is fixed; give it an alpha, such as "0.2:0.5"'
        )
    if kind == "powers" and isinstance(ladder.hot, float) and ladder.hot >= 1:
        raise ConfigError(
            "ladder.hot: levels of this model are powers of the likelihood, below 1, got"
            f' {ladder.hot:g}; give a small one, such as 0.01, or "auto"'
        )


def approximation_of(methods: MethodsSpec, name: str | None) -> Approximation | None:
    """Return an approximation with its settings, or its defaults; None for a run of Markov chains."""
    if name not in APPROXIMATIONS:
        return None
    settings: Approximation | None = getattr(methods, name)
    return APPROXIMATIONS[name]() if settings is None else settings


def fit_phases(approximation: Approximation) -> tuple[PhaseSpec, PhaseSpec]:
    """Return a fit as the phases of a run, the steps and then the draws, without any operation."""
    return (
        PhaseSpec.model_construct(iterations=approximation.n_steps, operations=(), keep=False),
        PhaseSpec.model_construct(iterations=approximation.draws, operations=(), keep=True),
    )


def keys_of_method(
    written: Mapping[str, Any], methods: MethodsSpec, name: str | None, *, recorded: str | None
) -> dict[str, Any]:
    """Return the keys of a run by one method, without the settings of all others.

    written   the keys of the whole configuration
    name      name of the method; None for a run of Markov chains with the configuration's own phases
    recorded  name of the method that the configuration belongs to already, if any

    A run of Markov chains has the phases of its method if the configuration has any for it. Without any,
    `hmc` has those of the configuration, and `sghmc` has its default schedule (spec/defaults.py).
    """
    if name is not None and name not in METHODS:
        raise ConfigError(f'method: must be one of {", ".join(METHODS)}, got "{name}"')
    keys = {key: value for key, value in written.items() if key not in ("method", "methods")}
    approximation = approximation_of(methods, name)
    if approximation is not None:
        keys = {key: value for key, value in keys.items() if key not in ("phase", "iterations")}
        settings = {key: value for key, value in asdict(approximation).items() if value is not None}
        return keys | {"method": name, "methods": {name: settings}}
    section = None if name is None else getattr(methods, name)
    if isinstance(section, PhasesKeys):
        keys.pop("iterations", None)
        phases = section.model_dump(mode="json", exclude_none=True)["phase"]
        return keys | {"method": name, "phase": phases}
    if name == "sghmc":
        if recorded != "sghmc":
            keys.pop("phase", None)  # it has a default schedule of its own
        return keys | {"method": name}
    return keys


@contextmanager
def keys_of_phases(method: str | None) -> Iterator[None]:
    """Name wrong phases as they are written: those of a method are in its section, not in `phase`."""
    try:
        yield
    except ConfigError as exc:
        if method is None or not str(exc).startswith("phase"):
            raise
        raise ConfigError(f"methods.{method}.{exc}") from None
