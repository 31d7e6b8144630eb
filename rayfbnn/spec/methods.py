"""The sections [ladder] and [methods] of a configuration: other ways to sample than the usual run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rayfbnn.approximate.approximation import Approximation
from rayfbnn.approximate.registry import APPROXIMATIONS
from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import NetworkSpec, PriorSpec
from rayfbnn.spec.messages import short
from rayfbnn.spec.written import METHODS, LadderSpec, MethodsSpec, PhasesKeys, PhaseSpec, Written

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


def check_free_noise(noise: PriorSpec | None, written: str | None) -> None:
    """Raise ConfigError for noise that is fixed, because levels hold it; None for targets without noise.

    written  the prior as written
    """
    if noise is not None and all(math.isinf(alpha) for alpha in noise.alphas[:2]):
        raise ConfigError(
            f'model.noise: a ladder holds the noise at its levels, so it must be free, got "{written}", which'
            ' is fixed; give it an alpha, such as "0.2:0.5"'
        )


def check_power(hot: float | str, kind: str) -> None:
    """Raise ConfigError for a hottest level that is no hotter than the posterior, whose power is 1.

    kind  of the levels: "noise" or "powers"
    """
    if kind == "powers" and isinstance(hot, float) and hot >= 1:
        raise ConfigError(
            f"ladder.hot: levels of this model are powers of the likelihood, below 1, got {hot:g}; give a"
            ' small one, such as 0.01, or "auto"'
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
