"""The section [methods] of a configuration: the settings of each method that `--method` can name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from rayfbnn.approximate.descent import DescentSettings
from rayfbnn.approximate.laplace import LaplaceSettings
from rayfbnn.approximate.propagation import PropagationSettings
from rayfbnn.approximate.variational import VariationalSettings
from rayfbnn.errors import ConfigError
from rayfbnn.spec.operations import Record
from rayfbnn.spec.sections import PhaseSpec, Positive

ApproximateMethod: TypeAlias = Literal["laplace", "bbb", "vep", "map"]
Method: TypeAlias = Literal["hmc", "sghmc", "laplace", "bbb", "vep", "map"]
METHODS: tuple[Method, ...] = get_args(Method)
APPROXIMATE: tuple[ApproximateMethod, ...] = get_args(ApproximateMethod)

Number = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Starts = Annotated[int, Field(ge=1, le=100_000)]


class PhasesKeys(Record):
    """[[methods.hmc.phase]] and [[methods.sghmc.phase]]: the phases of an ordinary run by this method."""

    phase: Annotated[tuple[PhaseSpec, ...], Field(min_length=1)]


class LaplaceKeys(Record):
    """[methods.laplace]: the settings of approximate/laplace.py, and which starts count.

    starts   number of starts, the chains of the store
    draws    number of draws of each start
    members  number of starts that predictions use: those of the best evidence; left out, all
    weights  "equal", or "evidence" for weights of the members in proportion to their evidence
    """

    starts: Starts = 12
    draws: Number = 1000
    members: Number | None = None
    weights: Literal["equal", "evidence"] = "equal"
    steps: Number = 200
    first: Number = 60
    between: Number = 6
    precisions: Literal["evidence", "integrated", "fixed"] = "evidence"
    curvature: Literal["gauss-newton", "exact"] = "gauss-newton"
    prediction: Literal["linear", "sampled"] = "linear"

    @property
    def n_steps(self) -> int:
        """The most steps of a fit."""
        return self.steps

    @property
    def settings(self) -> LaplaceSettings:
        """The settings of the fit itself."""
        return LaplaceSettings(**_without(self, "starts", "draws", "members", "weights"))

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_members("laplace", self.members, self.starts)
        return self


class BbbKeys(Record):
    """[methods.bbb]: the settings of approximate/variational.py, and which starts count.

    starts   number of starts, the chains of the store
    draws    number of draws of each start
    members  number of starts that predictions use: those of the greatest bound; left out, all
    """

    starts: Starts = 4
    draws: Number = 1000
    members: Number | None = None
    steps: Number = 8000
    samples: Number = 2
    batch: Number | None = None
    rate: Positive = 0.01
    optimizer: Literal["adam", "sgd"] = "adam"
    antithetic: bool = True
    precisions: Literal["expected", "fixed"] = "expected"
    refresh: Number = 50
    initial_sd: Positive = 0.02
    prune: Share = 0.0

    @property
    def n_steps(self) -> int:
        """The number of steps of a fit."""
        return self.steps

    @property
    def settings(self) -> VariationalSettings:
        """The settings of the fit itself."""
        return VariationalSettings(**_without(self, "starts", "draws", "members"))

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_members("bbb", self.members, self.starts)
        if self.antithetic and self.samples % 2:
            raise ConfigError(
                f"methods.bbb.samples: must be even where draws come in pairs, got {self.samples}; give an"
                " even number, or antithetic = false"
            )
        return self


class VepKeys(Record):
    """[methods.vep]: the settings of approximate/propagation.py, and which starts count.

    starts   number of starts, the chains of the store
    draws    number of draws of each start
    members  number of starts that predictions use: those of the greatest evidence; left out, all
    """

    starts: Starts = 4
    draws: Number = 1000
    members: Number | None = None
    sweeps: Number = 100
    damping: Annotated[float, Field(gt=0, le=1)] = 0.3
    mode: Literal["sites", "adf"] = "sites"
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.3
    precisions: Literal["expected", "fixed"] = "expected"
    tolerance: Positive = 1e-6

    @property
    def n_steps(self) -> int:
        """The most sweeps of a fit."""
        return self.sweeps

    @property
    def settings(self) -> PropagationSettings:
        """The settings of the fit itself."""
        return PropagationSettings(**_without(self, "starts", "draws", "members"))

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_members("vep", self.members, self.starts)
        if self.members is not None and self.mode == "adf":
            raise ConfigError(
                'methods.vep.members: needs the evidence of each start, which mode = "adf" does not give, got'
                f' {self.members}; leave it out, or have mode = "sites"'
            )
        return self


class MapKeys(Record):
    """[methods.map]: the settings of approximate/descent.py.

    starts  number of networks, which predict together with equal shares
    draws   number of times that each network is stored
    """

    starts: Starts = 1
    draws: Number = 1
    steps: Number = 5000
    optimizer: Literal["leapfrog", "adam", "lbfgs"] = "leapfrog"
    rate: Positive = 0.1
    first_decay: Share = 0.9
    last_decay: Share = 0.999
    validation: Share = 0.0
    precisions: Literal["expected", "fixed"] = "expected"
    refresh: Number = 50
    rounds: Number = 50

    @property
    def n_steps(self) -> int:
        """The most steps of a fit."""
        return self.settings.n_steps

    @property
    def settings(self) -> DescentSettings:
        """The settings of the fit itself."""
        return DescentSettings(**_without(self, "starts", "draws"))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.validation and self.optimizer == "lbfgs":
            raise ConfigError(
                'methods.map.validation: is for "leapfrog" and "adam", which can be stopped early, got'
                f" {self.validation:g}; leave it out"
            )
        return self


class MethodsSpec(Record):
    """[methods]: a table for each method; a method without one has its defaults."""

    hmc: PhasesKeys | None = None
    sghmc: PhasesKeys | None = None
    laplace: LaplaceKeys | None = None
    bbb: BbbKeys | None = None
    vep: VepKeys | None = None
    map: MapKeys | None = None


FitKeys: TypeAlias = LaplaceKeys | BbbKeys | VepKeys | MapKeys
FIT_KEYS: dict[str, type[FitKeys]] = {
    "laplace": LaplaceKeys,
    "bbb": BbbKeys,
    "vep": VepKeys,
    "map": MapKeys,
}


def fit_phases(keys: FitKeys) -> tuple[PhaseSpec, PhaseSpec]:
    """Return a fit as the phases of a run: its steps, and then its draws, without any operation."""
    return (
        PhaseSpec.model_construct(iterations=keys.n_steps, operations=(), keep=False),
        PhaseSpec.model_construct(iterations=keys.draws, operations=(), keep=True),
    )


def _check_members(method: str, members: int | None, starts: int) -> None:
    if members is not None and members > starts:
        raise ConfigError(
            f"methods.{method}.members: must be at most {starts}, the number of starts, got {members}"
        )


def _without(keys: Record, *names: str) -> dict[str, Any]:
    return keys.model_dump(exclude=set(names))


def keys_of_method(
    written: Mapping[str, Any], methods: MethodsSpec, name: str | None, *, recorded: str | None
) -> dict[str, Any]:
    """Return the keys of a run by one method, without the settings of all others.

    written   the keys of the whole configuration
    name      of the method; None for a run of Markov chains with the configuration's own phases
    recorded  the method that the configuration is of already, if any

    A run of Markov chains has the phases of its method, if there are any, in place of its own.
    """
    if name is not None and name not in METHODS:
        raise ConfigError(f'method: must be one of {", ".join(METHODS)}, got "{name}"')
    keys = {key: value for key, value in written.items() if key not in ("method", "methods")}
    section = None if name is None else getattr(methods, name)
    if name in APPROXIMATE:
        settings = {} if section is None else section.model_dump(mode="json", exclude_none=True)
        defaults = FIT_KEYS[name]().model_dump(exclude_none=True)
        keys = {key: value for key, value in keys.items() if key not in ("phase", "iterations")}
        return keys | {"method": name, "methods": {name: defaults | settings}}
    if isinstance(section, PhasesKeys):
        keys.pop("iterations", None)
        phases = section.model_dump(mode="json", exclude_none=True)["phase"]
        return keys | {"method": name, "phase": phases}
    if name == "sghmc":
        if recorded != "sghmc":
            raise ConfigError("methods.sghmc: missing; it must have at least one [[methods.sghmc.phase]]")
        return keys | {"method": name}  # a run that has its phases already
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
