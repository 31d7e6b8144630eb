"""The sections [ladder] and [methods] of a configuration: other ways to sample than the usual run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_type_hints

from pydantic import AfterValidator, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from rayfbnn.approximate.approximation import Approximation
from rayfbnn.approximate.keys import Limits, limits_of
from rayfbnn.approximate.registry import APPROXIMATIONS
from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import NetworkSpec, PriorSpec
from rayfbnn.spec.messages import MAX_WORD, short
from rayfbnn.spec.sections import MOST_PHASES, Count, PhaseSpec, Positive, StrictModel

MOST_LEVELS = 500
_MOST_AUTOMATIC = 64
_FIRST_ROUND, _GROWTH = 16, 1.5  # iterations, and a factor
USUAL_ITERATIONS = 2000
_LEAST_LADDERS = 4
_MOST_IN_ALL = 1_000_000  # levels of all ladders: the record of a round has two numbers for each
LADDERS_PER_BATCH = 2
_BYTES_ON_DEVICE = 8 * 2**30  # a card has 16 GiB and more


class LadderSpec(StrictModel):
    """A ladder of levels for each chain of the run, between which states are exchanged.

    levels      number of levels of a ladder, from the hottest to the posterior; "auto" lets the adaptation
                choose as many as it needs, at most 64
    hot         noise of the hottest level in standard deviations of the targets, or the power of the
                likelihood there if the targets have no noise; "auto" lets the adaptation find it
    warmup      iterations of the phase that tunes the default schedule, which half of the ladders start with;
                by default as many as in a run without ladder
    annealing   iterations that bring the levels of the other half from the prior to their noise, while the
                chains of the first half continue
    adaptation  iterations that find the levels and the stepsizes; they are not kept
    """

    levels: Annotated[int, Field(ge=3, le=MOST_LEVELS)] | Literal["auto"] = "auto"
    hot: Positive | Literal["auto"] = "auto"
    warmup: Count | None = None
    annealing: Annotated[int, Field(ge=4, le=MAX_WORD)] = 200
    adaptation: Annotated[int, Field(ge=8, le=MAX_WORD)] = 800

    @property
    def most_levels(self) -> int:
        """The most levels that a ladder may get; the store has room for so many."""
        return _MOST_AUTOMATIC if self.levels == "auto" else self.levels

    @property
    def n_measuring(self) -> int:
        """Iterations of annealing's phase that measure the noise of the chains before annealing begins."""
        return max(1, self.annealing // 10)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The iterations of each round of the adaptation, each round about half as long again as the last."""
        lengths: list[int] = []
        left = self.adaptation
        while left >= 2.5 * (length := int(_FIRST_ROUND * _GROWTH ** len(lengths))):
            lengths.append(length)
            left -= length
        return (*lengths, left)


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
    kept = PhaseSpec(iterations=iterations or USUAL_ITERATIONS, operations=default[-1].operations)
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


def check_ladder(
    written: Collection[str],
    *,
    phases: int,
    method: str | None,
    temperature: float,
    parts: int | str | None,
    chains: int,
    chains_per_batch: int,
    most_levels: int,
) -> None:
    """Raise ConfigError, naming the key, for settings that [ladder] excludes.

    written  the keys that were given
    """
    if "phase" in written:
        raise ConfigError(
            f"phase: a ladder has its own schedule, got {phases} with [ladder]; leave [[phase]] out, and give"
            " iterations, ladder.warmup and ladder.adaptation"
        )
    if method is not None:
        raise ConfigError(
            f'method: a ladder is a method of its own, got "{method}" with [ladder]; leave out one'
        )
    if temperature != 1:
        raise ConfigError(
            f"temperature: must be 1 with [ladder], whose levels change it, got {temperature:g}"
        )
    if parts not in (None, 1):
        raise ConfigError(
            f"data.parts: a ladder needs all cases in one place, got {short(parts)}; leave it out"
        )
    if chains < _LEAST_LADDERS or chains % 2:
        raise ConfigError(
            f"chains: must be an even number of at least {_LEAST_LADDERS} with [ladder], got {chains};"
            " half of the ladders start from chains and half from the prior, and only two or more from each"
            " side show whether the sides and their ladders agree"
        )
    if chains * most_levels > _MOST_IN_ALL:
        raise ConfigError(
            f"chains: all ladders together may have {_MOST_IN_ALL} levels, and {chains} ladders of up to"
            f" {most_levels} have {chains * most_levels}; it must be at most"
            f" {_MOST_IN_ALL // most_levels // 2 * 2}"
        )
    if "chains_per_batch" in written and chains_per_batch % 2:
        raise ConfigError(
            f"chains_per_batch: must be even with [ladder], got {chains_per_batch}; a batch has as many"
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


RUNS = ("hmc", "sghmc")
"""The methods that are runs of Markov chains with phases of their own."""

METHODS = (*RUNS, *APPROXIMATIONS)
"""The names of all methods, in the order in which messages list them."""


class PhasesKeys(StrictModel):
    """[[methods.hmc.phase]] and [[methods.sghmc.phase]]: the phases of a run of Markov chains."""

    phase: Annotated[tuple[PhaseSpec, ...], Field(min_length=1, max_length=MOST_PHASES)]


class ApproximationKeys(StrictModel):
    """[methods.NAME] of an approximation: its keys are the fields of its record."""

    kind: ClassVar[type[Approximation]]

    @property
    def approximation(self) -> Approximation:
        """The approximation with these settings; ConfigError if they do not go together."""
        return self.kind(**dict(self))

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ = self.approximation
        return self


def _keys_of(kind: type[Approximation]) -> type[ApproximationKeys]:
    """Make the pydantic record that checks the types and the limits of an approximation's settings."""
    types, limits = get_type_hints(kind), limits_of(kind)
    keys: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        checked = types[field.name]
        if field.name in limits:
            checked = Annotated[checked, AfterValidator(partial(_within, limits[field.name]))]
        keys[field.name] = (checked, field.default)
    record = create_model(f"{kind.__name__}Keys", __base__=ApproximationKeys, **keys)
    record.kind = kind
    return record


def _within(limits: Limits, value: float | None) -> float | None:
    if value is not None and not limits.allow(value):
        raise PydanticCustomError("outside_limits", "outside its limits")
    return value


APPROXIMATION_KEYS = {name: _keys_of(kind) for name, kind in APPROXIMATIONS.items()}

if TYPE_CHECKING:
    Method: TypeAlias = str
    MethodsSpec: TypeAlias = StrictModel
else:
    Method = Literal[METHODS]
    MethodsSpec = create_model(
        "MethodsSpec",
        __base__=StrictModel,
        **dict.fromkeys(RUNS, (PhasesKeys | None, None)),
        **{name: (keys | None, None) for name, keys in APPROXIMATION_KEYS.items()},
    )
    """[methods]: a table for each method; a method without one has its defaults."""


def approximation_of(methods: MethodsSpec, name: str | None) -> Approximation | None:
    """Return an approximation with its settings, or its defaults; None for a run of Markov chains."""
    keys = _approximation_keys(methods, name)
    return None if keys is None else keys.approximation


def _approximation_keys(methods: MethodsSpec, name: str | None) -> ApproximationKeys | None:
    if name not in APPROXIMATION_KEYS:
        return None
    keys: ApproximationKeys | None = getattr(methods, name)
    return APPROXIMATION_KEYS[name]() if keys is None else keys


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
    settings = _approximation_keys(methods, name)
    if settings is not None:
        keys = {key: value for key, value in keys.items() if key not in ("phase", "iterations")}
        table = settings.model_dump(mode="json", exclude_none=True)
        return keys | {"method": name, "methods": {name: table}}
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
