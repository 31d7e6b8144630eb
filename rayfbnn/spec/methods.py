"""The section [methods] of a configuration: the settings of each method that `--method` can name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_type_hints

from pydantic import AfterValidator, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from rayfbnn.approximate.approximation import Approximation
from rayfbnn.approximate.keys import Limits, limits_of
from rayfbnn.approximate.registry import APPROXIMATIONS
from rayfbnn.errors import ConfigError
from rayfbnn.spec.operations import StrictModel
from rayfbnn.spec.sections import MOST_PHASES, PhaseSpec

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
