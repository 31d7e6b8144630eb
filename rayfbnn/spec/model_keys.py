"""The data model that [model] describes, and checks of [model], of [data] with it, and of priors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from rayfbnn.data.dataset import INPUTS_TOGETHER
from rayfbnn.data.keys import DataSpec, ModelKeys
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.model.likelihood.registry import DATA_MODELS
from rayfbnn.numerals import read_number
from rayfbnn.spec.messages import short
from rayfbnn.spec.written import SCALE_RANGE

NO_DISPERSION = "none"
"""The dispersion of counts that are Poisson although the priors are the default ones."""


def read_model(keys: ModelKeys, labels: Sequence[Sequence[str]] = ()) -> ModelSpec:
    """Return the data model that [model] describes; ConfigError if a prior cannot be read.

    labels  the labels of each target, () for one that is a number; empty if no target is text
    """
    has_classes = "classes" in keys.data_model.settings
    return ModelSpec(
        keys.kind,
        None if keys.noise is None else PriorSpec.parse(keys.noise, key="model.noise"),
        len(labels[0]) if has_classes and labels and keys.classes is None else keys.classes,
        times=keys.time_points or (),
        log_time=bool(keys.log_time),
        noise_floor=keys.noise_floor or 0.0,
        labels=tuple(map(tuple, labels)),
        dispersion=_read_dispersion(keys.dispersion),
    )


def check_model(keys: ModelKeys, data: DataSpec, inputs: Sequence[str]) -> None:
    """Raise ConfigError if [model] lacks a key that its kind needs or has one that its kind does not have.

    inputs  names of the inputs, if they are known
    """
    chosen = keys.data_model
    for name, needed in chosen.required.items():
        if getattr(keys, name) is None:
            raise ConfigError(f"model.{name}: missing; {chosen.kind} targets need {needed}")
    for owner in DATA_MODELS.values():
        for name, words in owner.settings.items():
            value = getattr(keys, name)
            if value is not None and name not in chosen.settings:
                raise ConfigError(
                    f"model.{name}: only {owner.kind} targets have {words}, got {short(value)}; leave it out"
                )
    if chosen.has_single_target and len(data.targets) != 1:
        names = ", ".join(at_most_ten(data.targets))
        raise ConfigError(f"data.targets: {chosen.kind} models have exactly one target, got {names}")
    for key, column in (("censored", data.censored), ("event", data.event)):
        if column is not None and not chosen.are_times:
            raise ConfigError(
                f'data.{key}: only survival targets are censored, got "{column}" with model.kind ='
                f' "{keys.kind}"; leave it out'
            )
    if data.exposure is not None and not chosen.has_exposure:
        raise ConfigError(
            f'data.exposure: only counts have an exposure, got "{data.exposure}" with model.kind ='
            f' "{keys.kind}"; leave it out'
        )
    _check_noise_floor(keys)
    if keys.hazard is not None:
        _check_hazard(keys, inputs)
    _check_noise(keys)
    dispersion = _read_dispersion(keys.dispersion)
    if keys.dispersion is not None and dispersion is not None:
        check_prior("model.dispersion", keys.dispersion, dispersion, n_sources=1)


def _check_noise_floor(keys: ModelKeys) -> None:
    floor, (low, high) = keys.noise_floor, SCALE_RANGE
    if floor is not None and not low <= floor <= high:
        raise ConfigError(
            f"model.noise_floor: out of range, got {floor:g}; it must be from {low:g} to {high:g}"
        )


def _check_hazard(keys: ModelKeys, inputs: Sequence[str]) -> None:
    if keys.hazard == "piecewise":
        _check_time_points(keys, inputs)
        return
    for name in ("time_points", "log_time"):
        value = getattr(keys, name)
        if value is not None:
            raise ConfigError(
                f"model.{name}: a constant hazard does not depend on time, got {short(value)};"
                ' leave it out, or use hazard = "piecewise"'
            )


def _check_time_points(keys: ModelKeys, inputs: Sequence[str]) -> None:
    if keys.time_points is None:
        raise ConfigError(
            "model.time_points: missing; a piecewise hazard needs"
            f" {ModelKeys.model_fields['time_points'].description}"
        )
    for before, after in itertools.pairwise(keys.time_points):
        if not before < after:
            raise ConfigError(f"model.time_points: must increase, got {after:g} after {before:g}")
    low, high = SCALE_RANGE
    for time in keys.time_points:
        if not low <= time <= high:
            raise ConfigError(
                f"model.time_points: out of range, got {time:g}; they must be from {low:g} to {high:g}"
            )
    if "time" in inputs:
        raise ConfigError(
            'data.inputs: "time" is the name of the input that a piecewise hazard adds; rename the column'
        )


def _check_noise(keys: ModelKeys) -> None:
    if keys.noise is None:
        return
    prior = PriorSpec.parse(keys.noise, key="model.noise")
    if prior.scaled:
        raise ConfigError(f'model.noise: x (scaling) is for weights, got "{keys.noise}"; leave out the x')
    if prior.mixture is not None or prior.rectified is not None:
        raise ConfigError(
            f'model.noise: must be width[:group[:unit[:parameter]]], such as "0.1:0.2", got "{keys.noise}"'
        )
    check_prior("model.noise", keys.noise, prior, n_sources=1)


def _read_dispersion(text: str | None) -> PriorSpec | None:
    """Return the prior of the shapes of counts, which has the levels of all targets and of each target."""
    if text is None or text == NO_DISPERSION:
        return None
    prior = PriorSpec.parse(text, key="model.dispersion")
    is_other = prior.scaled or prior.mixture is not None or prior.rectified is not None
    if is_other or math.isfinite(prior.alphas[2]):
        raise ConfigError(
            f'model.dispersion: must be width[:group[:target]], such as "0.3:0.5", or "none", got "{text}"'
        )
    return prior


def check_columns(data: DataSpec, model: ModelKeys) -> None:
    """Raise ConfigError for a column that is listed twice, or for settings that exclude each other."""
    for key in ("inputs", "exclude", "targets", "categorical", "standardize"):
        names = getattr(data, key) or ()
        for place, name in enumerate(names):
            if name in names[:place]:
                raise ConfigError(f'data.{key}: "{name}" is listed twice')
    if {"inputs", INPUTS_TOGETHER} <= set(data.standardize):
        raise ConfigError(
            f'data.standardize: inputs are standardised one by one or together, got "inputs" and'
            f' "{INPUTS_TOGETHER}"; give only one'
        )
    for name in data.targets:
        if name in (data.inputs or ()):
            raise ConfigError(f'data.targets: "{name}" is also an input; a column is an input or a target')
    _check_other_columns(data)
    _check_transform(data, model)
    for name, levels in (data.ordered or {}).items():
        for place, level in enumerate(levels):
            if level in levels[:place]:
                raise ConfigError(f'data.ordered.{name}: "{level}" is listed twice')
    if "targets" in data.standardize and not model.data_model.is_real:
        raise ConfigError(
            f'data.standardize: only real targets can be standardised, got "targets" with model.kind = '
            f'"{model.kind}"; leave "targets" out'
        )


def _check_other_columns(data: DataSpec) -> None:
    if data.censored is not None and data.event is not None:
        raise ConfigError(
            f'data.event: says the opposite of data.censored, got "{data.event}" with data.censored ='
            f' "{data.censored}"; give only one of them'
        )
    for key in ("censored", "event", "exposure"):
        column = getattr(data, key)
        if column is not None and column in (*data.targets, *(data.inputs or ())):
            raise ConfigError(f'data.{key}: "{column}" is also an input or a target')


def _check_transform(data: DataSpec, model: ModelKeys) -> None:
    for name in data.transform or {}:
        if name not in data.targets:
            possible = ", ".join(at_most_ten(data.targets))
            raise ConfigError(f'data.transform: "{name}" is not a target; name one of {possible}')
        if not model.data_model.is_real:
            raise ConfigError(
                f'data.transform: only real targets have a log scale, got "{name}" with model.kind ='
                f' "{model.kind}"; leave it out'
            )


_ALPHA_RANGE = (1e-6, 1e6)  # below, a precision's logarithm overflows; above, alpha is practically infinite


def check_prior(key: str, text: str, prior: PriorSpec, *, n_sources: int) -> None:
    """Raise ConfigError naming `key` if a prior's width, alphas or scaled mean precision are out of range.

    text  the prior as written, for the message
    """
    low, high = SCALE_RANGE
    if not low <= prior.width <= high:
        raise ConfigError(f'{key}: width out of range, got "{text}"; it must be from {low:g} to {high:g}')
    other = prior.rectified if prior.mixture is None else prior.mixture[1]
    if other is not None and not low <= other <= high:
        raise ConfigError(f'{key}: number out of range, got "{text}"; it must be from {low:g} to {high:g}')
    low, high = _ALPHA_RANGE
    if not all(low <= alpha <= high or math.isinf(alpha) for alpha in prior.alphas):
        raise ConfigError(
            f'{key}: alpha out of range, got "{text}"; it must be from {low:g} to {high:g}, '
            "or left out for infinity"
        )
    try:
        is_finite = 1e-30 < prior.mean_precision(n_sources) < 1e30
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise ConfigError(
            f"{key}: scaling for {n_sources} source units takes the mean precision out of the range 1e-30 to "
            f'1e30, got "{text}"; use a larger alpha or no x'
        )


def adjustment_alpha(text: str, *, key: str) -> float:
    """Return the alpha of a layer's adjustments. They have only an alpha, because their mean is one."""
    low, high = _ALPHA_RANGE
    try:
        alpha = read_number(text)
    except ValueError:
        alpha = math.nan
    if not low <= alpha <= high:
        raise ConfigError(
            f'{key}: adjustments have only an alpha, got "{text}"; it must be a number from {low:g} to '
            f'{high:g}, such as 3, or "-" for none'
        )
    return alpha
