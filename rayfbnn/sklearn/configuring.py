"""Builds the configuration of a run from the parameters of an estimator."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rayfbnn.data import Source, read_training
from rayfbnn.errors import ConfigError
from rayfbnn.model.likelihood.registry import DATA_MODELS
from rayfbnn.spec import RunSpec
from rayfbnn.spec.defaults import default_priors
from rayfbnn.spec.messages import short
from rayfbnn.spec.methods import even_batch
from rayfbnn.spec.network_keys import with_tables
from rayfbnn.spec.text import plain, read_toml
from rayfbnn.spec.written import DEFAULT_HIDDEN, short_names
from rayfbnn.store.store import Store

Keys = dict[str, Any]
_PRIOR_PARAMETERS = ("input_width", "linear_width", "output_width", "alpha", "relevance")


def configuration(
    parameters: Mapping[str, Any],
    table: Source,
    *,
    targets: Sequence[str],
    kinds: Sequence[str],
    seed: int,
    workers: int,
) -> RunSpec:
    """Return the configuration of a run on these training cases.

    parameters  parameters of the estimator, by name
    targets     names of the target columns
    kinds       data models of the estimator; the first is used unless `spec` sets another
    seed        seed of the random numbers, unless `spec` sets one and random_state is None
    workers     number of processes that share the chains, unless `spec` divides the chains into batches

    Parameters that are None have their value in `spec`, or else rayfbnn's default. Raises ConfigError with
    the name of the wrong key.
    """
    parameters = {name: _without_numpy(value) for name, value in parameters.items()}
    base = _base_keys(parameters["spec"])
    keys = copy.deepcopy(base)
    _set_data(keys, parameters, targets)
    _set_model(keys, parameters, kinds)
    _set_run(keys, parameters, seed)
    resolved = _with_hidden(keys, parameters, table)
    constant = {} if resolved.encoding is None else resolved.encoding.constant
    if constant and "inputs" not in keys["data"]:
        keys["data"]["exclude"] = [*keys["data"].get("exclude", []), *constant]
    if workers > 1 and "chains_per_batch" not in keys:
        size = min(resolved.chains_per_batch, -(-resolved.chains // workers))
        keys["chains_per_batch"] = size if resolved.ladder is None else even_batch(size)
    _set_priors(keys, parameters, resolved, has_own="priors" in base.get("network", {}))
    return RunSpec.from_dict(keys)


def _base_keys(spec: Any) -> Keys:
    """Return the keys of a configuration from a TOML file, dictionaries or a RunSpec; {} for None."""
    if isinstance(spec, RunSpec):
        return spec.written()
    if isinstance(spec, str | Path):
        keys = with_tables(read_toml(Path(spec)), Path(spec).parent)
    elif spec is None or isinstance(spec, Mapping):
        keys = plain(spec or {})
    else:
        raise ConfigError(
            f"spec: must be a TOML file, nested dictionaries or a RunSpec, got {type(spec).__name__}"
        )
    for section in ("data", "model", "network"):
        if not isinstance(keys.get(section, {}), dict):
            raise ConfigError(f"spec: {section} must be a table of keys, got {short(keys[section])}")
    return keys


def _without_numpy(value: Any) -> Any:
    """Convert NumPy scalars and arrays, which appear in grids of parameters, to numbers and lists."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _set_data(keys: Keys, parameters: Mapping[str, Any], targets: Sequence[str]) -> None:
    data = {key: value for key, value in keys.get("data", {}).items() if key != "train"}
    if parameters["missing"] is not None:
        data["missing"] = parameters["missing"]
    if parameters["handle_unknown"] not in ("error", "ignore"):
        got = short(parameters["handle_unknown"])
        raise ConfigError(f'handle_unknown: must be "error" or "ignore", got {got}')
    if parameters["handle_unknown"] == "ignore":
        data["unknown"] = "ignore"
    keys["data"] = data | {"targets": list(targets)}


def _set_model(keys: Keys, parameters: Mapping[str, Any], kinds: Sequence[str]) -> None:
    model = keys.setdefault("model", {})
    if model.setdefault("kind", kinds[0]) not in kinds:
        raise ConfigError(
            f'spec: model.kind must be {" or ".join(kinds)} for this estimator, got "{model["kind"]}"'
        )
    if parameters.get("noise") is not None:
        model["noise"] = parameters["noise"]


def _with_hidden(keys: Keys, parameters: Mapping[str, Any], table: Source) -> RunSpec:
    """Write the hidden layers set by parameters into the keys, and return the run on these cases."""
    sizes, activation = parameters["hidden_layer_sizes"], parameters["activation"]
    if sizes is not None:
        sizes = [sizes] if not isinstance(sizes, Sequence) else sizes
        default = DEFAULT_HIDDEN[0].activation
        layers = [{"units": size, "activation": default} for size in sizes]
        keys.setdefault("network", {})["hidden"] = layers
    resolved, _ = read_training(RunSpec.from_dict(keys), table)
    if activation is None:
        return resolved
    layers = _layers(resolved)
    keys.setdefault("network", {})["hidden"] = [{**layer, "activation": activation} for layer in layers]
    return RunSpec.from_dict(keys).resolved(resolved.encoding)


def _layers(spec: RunSpec) -> list[dict[str, Any]]:
    layers: list[dict[str, Any]] = spec.to_dict()["network"]["hidden"]
    return layers


def _set_run(keys: Keys, parameters: Mapping[str, Any], seed: int) -> None:
    if parameters["chains"] is not None:
        keys["chains"] = parameters["chains"]
    if parameters["iterations"] is not None:
        section = keys["phase"][-1] if "phase" in keys else keys
        section["iterations"] = parameters["iterations"]
    if parameters["random_state"] is not None or "seed" not in keys:
        keys["seed"] = seed


def _set_priors(keys: Keys, parameters: Mapping[str, Any], resolved: RunSpec, *, has_own: bool) -> None:
    """Write priors explicitly if any differs from the default, with the keys that default priors imply."""
    named = {name: parameters[name] for name in _PRIOR_PARAMETERS if parameters[name] is not None}
    replaced = parameters["priors"] or {}
    if not named and not replaced:
        return
    if named and has_own:
        raise ConfigError(
            f"{next(iter(named))}: changes the default priors, but spec has network.priors; change those, or"
            " leave them out of spec"
        )
    _check_numbers(named)
    hidden = resolved.network_keys.hidden
    full_names = short_names(len(hidden))
    network = keys.setdefault("network", {})
    if not has_own:
        chosen = DATA_MODELS[resolved.model_keys.kind]
        network["priors"] = default_priors(
            hidden,
            n_inputs=len(resolved.network_inputs),
            bias=chosen.usual_bias,
            is_real=chosen.is_real,
            **{"relevance": chosen.usual_relevance} | named,
        )
        network.setdefault("hidden", _layers(resolved))
        keys["data"].setdefault("standardize", list(resolved.data.standardize))
        for name in ("noise", "dispersion"):
            if getattr(resolved.model_keys, name) is not None:
                keys["model"].setdefault(name, getattr(resolved.model_keys, name))
    priors = {full_names.get(name, name): text for name, text in network["priors"].items()}
    network["priors"] = priors | {full_names.get(name, name): text for name, text in replaced.items()}


def _check_numbers(named: Mapping[str, Any]) -> None:
    """Raise ConfigError for a width or alpha that is not a number or is out of range."""
    for name, value in named.items():
        is_number = isinstance(value, int | float) and (math.isfinite(value) or name == "relevance")
        least = "at least 0" if name == "linear_width" else "above 0"
        if not is_number or not (value > 0 or (value == 0 and name == "linear_width")):
            raise ConfigError(f"{name}: must be a number {least}, got {short(value)}")


def configuration_to_resume(
    path: Path, spec: RunSpec, parameters: Mapping[str, Any]
) -> tuple[RunSpec, int | None]:
    """Return the configuration to compare with that of a store, and the length of its last phase.

    spec        the configuration that a new run would have
    parameters  parameters of the estimator, by name

    Settings that the parameters do not give stay as in the store: the phases (their default depends on the
    number of iterations), the seed, and the division of chains into batches. The length is None if it stays.
    """
    stored = Store.open(path).spec
    keys, base = spec.to_dict(), _base_keys(parameters["spec"])
    if stored.ladder is not None:
        keys["iterations"] = stored.phase[-1].iterations
        if "warmup" not in base.get("ladder", {"warmup": None}):
            keys["ladder"]["warmup"] = stored.ladder.warmup
    else:
        if "phase" not in base:
            keys["phase"] = stored.to_dict()["phase"]
            keys.pop("iterations", None)
        keys["phase"][-1]["iterations"] = stored.phase[-1].iterations
    if parameters["random_state"] is None and "seed" not in base:
        keys["seed"] = stored.seed
    if "chains_per_batch" not in base:
        keys["chains_per_batch"] = stored.chains_per_batch
    iterations = None if parameters["iterations"] is None else int(parameters["iterations"])
    if iterations is not None and parameters["until"] is not None:
        iterations = max(iterations, stored.phase[-1].iterations)
    return RunSpec.from_dict(keys), iterations
