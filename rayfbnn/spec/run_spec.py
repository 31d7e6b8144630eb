"""The record of a whole configuration, `RunSpec`: its reading, its writing, and differences between two."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError

from rayfbnn.approximate.approximation import Approximation
from rayfbnn.data.dataset import INPUTS_TOGETHER
from rayfbnn.data.encoding import Encoding, log_exposure
from rayfbnn.data.keys import KEYS_OF_NEW_CASES, MAX_WORD, is_pattern
from rayfbnn.data.paths import check_on_disk
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operation import AUTO
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.spec.defaults import (
    FEW_CHAINS_PER_BATCH,
    HIDDEN_OF_MANY,
    default_hidden,
    default_phases,
    default_priors,
    default_sigma,
    n_sigmas,
    size_of_batches,
    size_of_table,
)
from rayfbnn.spec.messages import messages, short
from rayfbnn.spec.methods import (
    LADDERS_PER_BATCH,
    approximation_of,
    automatic_parts,
    check_ladder,
    check_levels,
    check_partitions,
    check_parts,
    check_schedule,
    even_batch,
    fit_phases,
    keys_of_method,
    keys_of_phases,
    ladder_phases,
    ladders_on_device,
    tuning_phases,
)
from rayfbnn.spec.model_keys import NO_DISPERSION, check_columns, check_model, read_model
from rayfbnn.spec.network_keys import check_gradient, check_network, read_network, with_tables
from rayfbnn.spec.text import override, plain, read_toml, to_toml
from rayfbnn.spec.written import SECTIONS, Written
from rayfbnn.state import LadderEnds


@dataclass(frozen=True)
class _Source:
    """The keys, folder, and encoding behind a configuration.

    keys       the keys that were written, as plain values
    base_dir   the folder that paths in them are relative to
    encoding   the record of how the training table's columns are converted; None before `resolved`
    per_batch  default number of chains in a batch, if phases that were filled in decided it and are now
               among the keys
    """

    keys: dict[str, Any]
    base_dir: Path
    encoding: Encoding | None = None
    per_batch: int | None = None


class RunSpec(Written):
    """A validated configuration: everything but the data that determines a run's draws, bit for bit.

    It is made by `from_toml`, `from_dict` and `from_json`. They raise ConfigError with a line for each wrong
    key: `key.path: problem, got value; remedy`. Whatever the configuration leaves out is filled in;
    `model_fields_set` and that of each section have the keys that were written.

    model and network are the records that are sampled. model_keys and network_keys are the sections [model]
    and [network] as written; `to_dict`, `to_json` and `to_toml` return them in this form. A configuration
    without any [[phase]] has the phases of spec/defaults.py, the last with `iterations`, as if they had been
    written. Without [network] or its priors, it has those of spec/defaults.py.

    The network's inputs may depend on the training cases: inputs may be left out or be patterns, text becomes
    several inputs, and the number of classes may follow from the labels. `resolved` returns the configuration
    with this information from the cases. Until then the inputs are the named columns, as numbers. If these do
    not determine the network (`is_resolved` is False), it has neither a network nor default phases yet.
    """

    _source: _Source = PrivateAttr()

    @staticmethod
    def from_toml(path: str | Path, overrides: Sequence[str] = ()) -> RunSpec:
        """Read a configuration file, and apply "key.path=value" overrides to it."""
        path = Path(path)
        return RunSpec.from_dict(read_toml(path), overrides, base_dir=path.parent)

    @staticmethod
    def from_dict(
        raw: Mapping[str, Any], overrides: Sequence[str] = (), *, base_dir: str | Path = "."
    ) -> RunSpec:
        """Read a configuration given as nested dictionaries, and apply "key.path=value" overrides to it.

        base_dir  the folder that the paths in the configuration are relative to
        """
        keys: dict[str, Any] = plain(raw)
        for text in overrides:
            override(keys, text)
        return RunSpec._from(_Source(with_tables(keys, Path(base_dir)), Path(base_dir)))

    @staticmethod
    def _from(source: _Source) -> RunSpec:
        try:
            # For JSON, pydantic's strict mode accepts arrays as tuples, but still refuses "16" for 16.
            written = Written.model_validate_json(json.dumps(source.keys))
        except ValidationError as exc:
            raise ConfigError("\n".join(messages(exc, SECTIONS))) from exc
        spec = RunSpec.model_construct(_fields_set=written.model_fields_set, **dict(written))
        spec._source = source
        return spec._completed()

    def _with(self, **changes: Any) -> RunSpec:
        """Return the configuration from a source with changes; all defaults are filled in again."""
        return RunSpec._from(replace(self._source, **changes))

    def filled(self, **values: Any) -> Self:
        """Return a copy with values that were left out; they do not count as written."""
        spec = super().filled(**values)
        spec._source = self._source
        return spec

    @staticmethod
    def from_json(text: str) -> RunSpec:
        """Read the text that `to_json` returned. No file is opened, whatever the text names."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"configuration: is not valid JSON: {exc}") from exc
        if not isinstance(raw, dict):
            raise ConfigError(f"configuration: must be a JSON object, got {short(raw)}")
        return RunSpec._from(_Source(plain(raw), Path()))

    def resolved(self, encoding: Encoding | None) -> RunSpec:
        """Return the configuration with the training cases' `encoding`, and check it against the encoding.

        All defaults are filled in again. ConfigError names a key that does not fit. `encoding` is None for a
        store without one: its inputs are numbers and are named.
        """
        return self._with(encoding=encoding)

    def written(self) -> dict[str, Any]:
        """Return the keys that were given, without those filled in."""
        return copy.deepcopy(self._source.keys)

    def to_dict(self) -> dict[str, Any]:
        """Return every key with its value, defaults included, as dictionaries, lists, text and numbers."""
        keys = self.model_dump(mode="json", exclude_none=True, by_alias=True)
        if not self.initial.shared:  # stores and files stay as they were before the key existed
            del keys["initial"]["shared"]
        for name in ("omit", "connections"):
            if not keys["network"][name]:
                del keys["network"][name]
        if not keys["methods"]:
            del keys["methods"]
        # Beside written priors it says nothing, and stores from before it was a word stay equal.
        if keys["model"].get("dispersion") == NO_DISPERSION and self.network_keys.priors:
            del keys["model"]["dispersion"]
        # Default phases and priors are filled in once the network is known, default batches from the chains.
        if not self.phase or self.fit is not None or self.ladder is not None:
            keys.pop("phase")
        if self.has_default_batches and (not self.phase or self.device == "gpu"):
            del keys["chains_per_batch"]
        if not self.network_keys.priors and self.network_keys.has_default_priors:
            del keys["network"]["priors"]
            if "hidden" not in self.network_keys.model_fields_set:
                del keys["network"]["hidden"]
        return keys

    def to_json(self) -> str:
        """Return the configuration as one JSON object, defaults included; stores keep this text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_toml(self) -> str:
        """Return the configuration as the text of a TOML file, defaults included."""
        return to_toml(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.to_json())

    @cached_property
    def fit(self) -> Approximation | None:
        """The approximation that the run fits, with its settings; None for a run of Markov chains."""
        return approximation_of(self.methods, self.method)

    def for_method(self, method: str | None) -> RunSpec:
        """Return the run by one method, without the settings of all others; None for the key `method`.

        A run of Markov chains has the phases of its method, if there are any, instead of its own.
        """
        keys = keys_of_method(self._source.keys, self.methods, method or self.method, recorded=self.method)
        return self._with(keys=keys, per_batch=None)

    @property
    def train_path(self) -> Path | None:
        """The file of training cases: data.train, relative to the configuration file's folder."""
        return None if self.data.train is None else self._source.base_dir / self.data.train

    @property
    def encoding(self) -> Encoding | None:
        """The record of how the training table's columns are converted; None before `resolved`."""
        return self._source.encoding

    @property
    def is_resolved(self) -> bool:
        """True if the inputs and outputs of the network are known."""
        from_labels = self.model_keys.data_model.from_labels
        if from_labels is not None and getattr(self.model_keys, from_labels) is None:
            return self.encoding is not None
        are_named = self.data.inputs is not None and not any(map(is_pattern, self.data.inputs))
        return are_named or self.encoding is not None

    def check_resolved(self) -> None:
        """Raise ConfigError if the inputs or outputs of the network are not known yet."""
        if not self.is_resolved:
            raise ConfigError(
                "data: the inputs or labels depend on the training cases, which have not been read"
            )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs that come from the data, in the order of the network's inputs."""
        if self.encoding is not None:
            return self.encoding.input_names
        self.check_resolved()
        exposures = () if self.data.exposure is None else (log_exposure(self.data.exposure),)
        return (*(self.data.inputs or ()), *exposures)

    @cached_property
    def model(self) -> ModelSpec:
        """The settings in [model]."""
        labels = {} if self.encoding is None else self.encoding.labels
        of_targets = [labels.get(name, ()) for name in self.data.targets]
        return read_model(self.model_keys, of_targets if labels else ())

    @cached_property
    def data_model(self) -> DataModel:
        """The data model that [model] describes."""
        self.check_resolved()
        return data_model_from_spec(self.model)

    @cached_property
    def network(self) -> NetworkSpec:
        """The network that [network] describes, with the inputs and outputs that data and model need."""
        n_outputs = self.data_model.n_outputs(len(self.data.targets))
        exposure = self.data.exposure
        return read_network(
            self.network_keys,
            inputs=self.network_inputs,
            n_outputs=n_outputs,
            added_input=None if exposure is None else log_exposure(exposure),
        )

    @property
    def network_inputs(self) -> tuple[str, ...]:
        """The names of the network's inputs: first those of the data model, then those of the data."""
        return self.data_model.added_inputs + self.input_names

    @cached_property
    def kept_draws(self) -> int:
        """Number of posterior draws of each chain."""
        return sum(phase.iterations for phase in self.phase if phase.keep is True)

    @property
    def warmup_draws(self) -> int:
        """Number of draws of each chain that are stored apart as warm-up."""
        return sum(phase.iterations for phase in self.phase if phase.keep == "warmup")

    @property
    def has_open_length(self) -> bool:
        """True for a run of Markov chains, or of ladders, whose configuration has no phases or iterations."""
        return self.fit is None and not {"phase", "iterations"} & self._source.keys.keys()

    @property
    def length_key(self) -> str:
        """The key with the number of iterations of the last phase."""
        return f"phase[{len(self.phase) - 1}].iterations" if self.ladder is None else "iterations"

    @property
    def tuning_phases(self) -> tuple[int, ...]:
        """The numbers of the phases that may tune: all before the first one with kept draws."""
        return tuning_phases(self.phase)

    @property
    def ladder_ends(self) -> LadderEnds:
        """The quantity that differs between levels of the run's ladders, and where the ladders end."""
        from rayfbnn.model.ladder_path import ends_of

        return ends_of(self.model, len(self.data.targets))

    @property
    def annealing_phase(self) -> int:
        """The number of the phase in which levels of ladders are annealed; ladders adapt in the next one."""
        return len(self.phase) - 3

    @cached_property
    def total_iterations(self) -> int:
        """Number of iterations of all phases together."""
        return sum(phase.iterations for phase in self.phase)

    def with_iterations(self, iterations: int) -> RunSpec:
        """Return the same run with a last phase of `iterations`; ConfigError if that is too many."""
        raw = self.to_dict()
        of_last = raw if self.ladder is not None else raw["phase"][-1]
        of_last["iterations"] = iterations
        per_batch = self.chains_per_batch if self.has_default_batches else None
        if per_batch is not None:
            raw.pop("chains_per_batch", None)
        return self._with(keys=raw, per_batch=per_batch)

    def with_tuning_of(self, stored: RunSpec) -> RunSpec:
        """Return the same run with the default tuning of `stored`, if some length gives it.

        Default tuning is half as long as the run was planned to be when its store was created. Phases that
        are written stay as they are.
        """
        if self.fit is not None or "phase" in self._source.keys or len(stored.phase) != len(self.phase):
            return self
        of_tuning = stored.phase[-2 if self.ladder is None else -4].iterations
        keys = {**self._source.keys, "iterations": min(2 * of_tuning, MAX_WORD)}
        return self._with(keys=keys).with_iterations(self.phase[-1].iterations)

    def with_train(self, path: Path | None) -> RunSpec:
        """Return the same run with another file of training cases, or none."""
        data = {key: value for key, value in self._source.keys["data"].items() if key != "train"}
        train = {} if path is None else {"train": str(path)}
        return self._with(keys={**self._source.keys, "data": train | data}, base_dir=Path())

    def for_new_cases(self, overrides: Sequence[str]) -> RunSpec:
        """Return the same run with other keys for reading new cases, such as "data.unknown=ignore".

        Raises ConfigError for a key that would change more than this.
        """
        keys = self.written()
        for text in overrides:
            key = text.partition("=")[0].strip()
            if key.removeprefix("data.") not in KEYS_OF_NEW_CASES or not key.startswith("data."):
                known = ", ".join(f"data.{name}" for name in KEYS_OF_NEW_CASES)
                raise ConfigError(f"set: the keys for reading new cases are {known}, got {short(text)}")
            override(keys, text)
        return self._with(keys=keys) if overrides else self

    @property
    def n_parts(self) -> int:
        """Number of parts of the training cases; 1 while "auto" is not resolved."""
        return self.data.parts if isinstance(self.data.parts, int) else 1

    @property
    def has_default_batches(self) -> bool:
        """True if the configuration leaves the number of chains in a batch open."""
        return "chains_per_batch" not in self.model_fields_set

    def with_batches_for(self, n_gpus: int) -> RunSpec:
        """Return the same run with a batch of chains for each GPU; a configured size of batches stays.

        Batches of ladders have an even number of them.
        """
        if self.device == "cpu" or not self.has_default_batches or n_gpus == 1:
            return self
        size = -(-self.chains // min(n_gpus, self.chains))
        if self.ladder is not None:
            size = min(even_batch(size), self.chains_per_batch)
        return self._with(keys={**self._source.keys, "chains_per_batch": size})

    def with_batches_for_cores(self, n_workers: int, *, is_asked: bool) -> RunSpec:
        """Return the same run of Markov chains with batches for the workers of this machine.

        A configured size of batches stays, as do the batches of cases in parts. No draw depends on the sizes.

        is_asked  whether the user chose the number of workers
        """
        is_chains = self.fit is None and self.ladder is None
        is_fixed = self.device == "gpu" or not is_chains or self.n_parts > 1
        if is_fixed or not self.has_default_batches:
            return self
        units = sum(layer.units for layer in self.network.hidden)
        size = size_of_batches(
            self.chains,
            n_workers=n_workers,
            n_hidden_values=self._n_cases * units,
            is_large=self._is_large,
            is_asked=is_asked,
        )
        return self._with(keys={**self._source.keys, "chains_per_batch": size})

    def check_data(self, n_cases: int) -> None:
        """Raise ConfigError for anything that does not fit `n_cases` training cases."""
        if self.n_parts > n_cases:
            raise ConfigError(
                f"data.parts: must be at most {n_cases}, the number of training cases, got {self.n_parts}"
            )
        with keys_of_phases(self.method):
            check_partitions(self.phase, n_cases)

    def check_gradient(self) -> None:
        """Raise ConfigError for units that only draws from the prior can have, such as step units."""
        check_gradient(self.network)

    def _completed(self) -> RunSpec:
        """Return the configuration with all that it leaves out, and check that its keys go together."""
        if self.data.train is not None:
            check_on_disk(self.data.train, "data.train")
        spec = self._with_fit()._with_sections()
        if spec.ladder is not None:
            check_ladder(spec, spec.ladder)
        spec = spec._with_parts()
        check_columns(spec.data, spec.model_keys)
        check_model(spec.model_keys, spec.data, spec.input_names if spec.is_resolved else ())
        if spec.phase and spec.iterations is not None:
            raise ConfigError(
                "iterations: applies only to a configuration without phases, got"
                f" {spec.iterations} with [[phase]]; give each phase its own, or leave the phases out"
            )
        if self._source.per_batch is not None and spec.has_default_batches:
            spec = spec.filled(chains_per_batch=self._source.per_batch)
        elif spec.device == "gpu" and spec.has_default_batches:
            # A device runs one batch at a time, and only thousands of chains keep it busy.
            spec = spec.filled(chains_per_batch=spec.chains)
        elif spec.ladder is not None and spec.has_default_batches:
            spec = spec.filled(chains_per_batch=LADDERS_PER_BATCH)
        return spec._with_network() if spec.is_resolved else spec

    def _with_fit(self) -> RunSpec:
        """Fill in the keys that an approximation decides: chains are starts, phases are steps and draws."""
        fit = self.fit
        if fit is None:
            return self
        phases, dtype = fit_phases(fit), fit.dtype or self.dtype
        return self.filled(phase=phases, iterations=None, chains=fit.starts, dtype=dtype)

    def _with_sections(self) -> RunSpec:
        """Fill in what comes with default priors: standardised columns, and settings of the data model."""
        if not self.network_keys.has_default_priors:
            return self
        chosen, n_targets = self.model_keys.data_model, len(self.data.targets)
        data, network, model = self.data, self.network_keys, dict[str, Any]()
        if "standardize" not in data.model_fields_set:
            inputs = INPUTS_TOGETHER if self._are_readings else "inputs"
            data = data.filled(standardize=(inputs, "targets") if chosen.is_real else (inputs,))
        if "hidden" not in network.model_fields_set:
            network = network.filled(hidden=self._default_hidden)
        if "noise" in chosen.required and self.model_keys.noise is None:
            model["noise"] = default_sigma("0.2", n_targets)
        # Approximations have no distribution for a dispersion.
        if "dispersion" in chosen.settings and self.model_keys.dispersion is None and self.fit is None:
            model["dispersion"] = default_sigma("0.3", n_targets)
        if "hazard" in chosen.required and self.model_keys.hazard is None:
            model["hazard"] = "constant" if self.model_keys.time_points is None else "piecewise"
        return self.filled(data=data, network_keys=network, model_keys=self.model_keys.filled(**model))

    def _with_parts(self) -> RunSpec:
        """Fill in the number of parts once the training cases are known, and shuffling for several parts."""
        spec = self
        if self.data.parts == AUTO and self.encoding is not None:
            parts = automatic_parts(n_cases=self.encoding.n_cases, n_inputs=len(self.input_names))
            spec = self.filled(data=self.data.filled(parts=parts))
        if spec.data.shuffle is None and spec.n_parts > 1:
            spec = spec.filled(data=spec.data.filled(shuffle=True))
        return spec

    def _with_priors(self) -> RunSpec:
        """Fill in the default priors, once the network's inputs are known."""
        if not self.network_keys.has_default_priors:
            return self
        chosen = self.model_keys.data_model
        priors = default_priors(
            self.network_keys.hidden,
            n_inputs=len(self.network_inputs) - (self.data.exposure is not None),
            bias=chosen.usual_bias,
            is_real=chosen.is_real,
            relevance=chosen.usual_relevance,
            are_readings=self._are_readings,
        )
        return self.filled(network_keys=self.network_keys.filled(priors=priors))

    def _with_network(self) -> RunSpec:
        """Fill in priors and phases, and check the network and the schedule."""
        spec = self._with_priors()
        check_network(spec.network, spec.network_keys.priors)
        if spec.ladder is not None and spec.device == "gpu" and spec.has_default_batches:
            size = ladders_on_device(
                spec.chains,
                spec.network,
                most_levels=spec.ladder.most_levels,
                n_cases=spec._n_cases,
                bytes_of_number=4 if spec.dtype == "float32" else 8,
            )
            spec = spec.filled(chains_per_batch=size)
        spec = spec if spec.phase else spec._with_phases()
        if spec.fit is None:
            with keys_of_phases(spec.method):
                check_schedule(
                    spec.phase, network=spec.network, model=spec.data_model, temperature=spec.temperature
                )
                check_parts(spec.phase, spec.n_parts, device=spec.device)
        return spec

    def _with_phases(self) -> RunSpec:
        """Fill in the default schedule, and the size of batches that suits it."""
        phases = default_phases(
            self.network,
            self.data_model,
            is_tempered=self.temperature != 1,
            iterations=self.iterations,
            size=self._size,
            bytes_per_draw=self._bytes_per_draw,
            is_wide=self._is_wide,
            is_divided=self.n_parts > 1,
            is_stochastic=self.method == "sghmc",
        )
        if self.ladder is not None:
            check_levels(self.ladder, self.ladder_ends.kind, self.model.noise, self.model_keys.noise)
            phases = ladder_phases(self.ladder, phases, self.iterations)
            ladder = self.ladder.filled(warmup=phases[-4].iterations)
            return self.filled(phase=phases, ladder=ladder, iterations=phases[-1].iterations)
        is_few = (self._is_large or self._is_wide) and self.has_default_batches and self.device == "cpu"
        per_batch = FEW_CHAINS_PER_BATCH if is_few else self.chains_per_batch
        return self.filled(phase=phases, iterations=None, chains_per_batch=per_batch)

    @property
    def _are_readings(self) -> bool:
        """True for classes as targets, and inputs that are readings in one unit, such as pixels."""
        return self.model_keys.kind == "class" and self.encoding is not None and self.encoding.have_one_unit

    @property
    def _n_cases(self) -> int:
        """Number of training cases; 0 while it is not known."""
        return 0 if self.encoding is None else self.encoding.n_cases

    @property
    def _size(self) -> float:
        """The size of the training table; it is large from 1 on."""
        return size_of_table(n_cases=self._n_cases, n_inputs=len(self.input_names), is_wide=self._is_wide)

    @property
    def _bytes_per_draw(self) -> int:
        """Approximate size of the parameters and sigmas of all chains in one iteration."""
        parameters = sum(group.size for group in self.network.groups())
        of_parameters = parameters * (4 if self.dtype == "float32" else 8)
        return self.chains * (of_parameters + 8 * n_sigmas(self.network))

    @property
    def _is_large(self) -> bool:
        return self._size >= 1

    @property
    def _is_wide(self) -> bool:
        """True for many cases with the default layers for them, written or not."""
        return self.network_keys.hidden == self._default_hidden == HIDDEN_OF_MANY

    @property
    def _default_hidden(self) -> tuple[LayerSpec, ...]:
        is_real = self.model_keys.data_model.is_real
        return default_hidden(n_cases=self._n_cases, is_real=is_real, are_readings=self._are_readings)


def differences(stored: RunSpec, asked: RunSpec) -> list[str]:
    """Return a line, with both values, for every key that differs between two configurations.

    No key is ignored: equal configurations give an empty list, and others do not.
    """
    old, new = settings(stored), settings(asked)
    keys = list(dict.fromkeys([*old, *new]))
    return [
        f"{key}: was {short(old[key]) if key in old else 'absent'}, "
        f"now {short(new[key]) if key in new else 'absent'}"
        for key in keys
        if key not in old or key not in new or old[key] != new[key]
    ]


def settings(spec: RunSpec) -> dict[str, Any]:
    """Return every value of a configuration by its full key, such as "phase[0].iterations"."""
    return _leaves(spec.to_dict(), "")


def _leaves(value: Any, key: str) -> dict[str, Any]:
    """Return every value below `key` that is neither a table nor a list of tables, by its full key."""
    if isinstance(value, dict):
        items = [(f"{key}.{name}" if key else name, inner) for name, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        items = [(f"{key}[{index}]", inner) for index, inner in enumerate(value)]
    else:
        return {key: value}
    return {name: leaf for path, inner in items for name, leaf in _leaves(inner, path).items()}
