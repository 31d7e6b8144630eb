"""The arrays after the record in a file: the draws of a block, and the state after it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rayfbnn.arrays import Array, to_host
from rayfbnn.errors import StoreCorruptError
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState
from rayfbnn.store.catalogue import STATE, ArrayPlan, Header, Section, StateShapes, layouts, state_shapes
from rayfbnn.store.records import Record
from rayfbnn.store.rounds import Round, measurements_problem, round_of, rounds
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import MOST_BYTES

_START = b"rayfbnn record, bytes: "
_DIGITS = 9
_HEAD_BYTES = len(_START) + _DIGITS + 1


def joined(record: bytes, payload: bytes) -> bytes:
    """Return the content of a file with a record and its arrays.

    The first line has the length of the record, which starts on the second line.
    """
    return _START + f"{len(record):0{_DIGITS}d}\n".encode() + record + payload


def split(raw: bytes, path: Place) -> tuple[bytes, memoryview]:
    """Return the record and the arrays in a file; StoreCorruptError, naming `path`, if it has none."""
    end = size_of_header(raw, path)
    if end > len(raw):
        raise _no_record(path)
    return raw[_HEAD_BYTES:end], memoryview(raw)[end:]


def size_of_header(raw: bytes, path: Place) -> int:
    """Return the offset of the arrays in a file with the start `raw`; StoreCorruptError if it has none."""
    line = raw[:_HEAD_BYTES]
    digits = line[len(_START) : -1]
    n = int(digits) if line.startswith(_START) and digits.isdigit() and line.endswith(b"\n") else -1
    if not 0 <= n <= MOST_BYTES:
        raise _no_record(path)
    return _HEAD_BYTES + n


def _no_record(path: Place) -> StoreCorruptError:
    return StoreCorruptError(f"{path}: damaged: it does not start with a record")


def state_arrays(state: ChainState | Mapping[str, Array] | None) -> dict[str, Array]:
    """Return the arrays of a state, of chains, a fit or ladders, by name and on the host; {} for None."""
    if isinstance(state, ChainState):
        return {name: to_host(getattr(state, name)) for name in STATE}
    return {} if state is None else {name: to_host(values) for name, values in state.items()}


@dataclass(frozen=True)
class PayloadLayout:
    """The order, types and shapes of the arrays in the files of a run's blocks and segments.

    The file of a block has the draws, array after array in the order of the paths, and then the state, all
    little-endian and in C order. A segment has only the state. The state is in float64, which holds float32
    exactly.
    """

    header: Header
    spec: RunSpec
    plans: Mapping[str, ArrayPlan]

    @cached_property
    def named_state(self) -> StateShapes | None:
        """Names and shapes of the state of one fit or ladder; None for chains."""
        return state_shapes(self.header, self.spec)

    @cached_property
    def _chain_state(self) -> StateShapes:
        parameters, precisions = layouts(self.spec)
        return {
            name: (precisions.n_precisions if name == "precisions" else parameters.n_parameters,)
            for name in STATE
        }

    @property
    def most_bytes(self) -> int:
        """Maximum size of the file of a block or segment."""
        n_chains, n_draws = self.header.chains_per_batch, self.header.draws_per_chunk
        sections: tuple[Section, ...] = ("posterior", "warmup")
        draws = max(_n_bytes(self._draws(section, n_chains, n_draws)) for section in sections)
        return _HEAD_BYTES + MOST_BYTES + draws + _n_bytes(self._state(n_chains))

    def encoded(
        self, draws: Mapping[str, Array], section: Section | None, state: Mapping[str, Array]
    ) -> bytes:
        """Return the bytes of the draws, given by path, and of the state, given by name."""
        parts = [] if section is None else [(draws[plan.path], plan.dtype) for plan in self._plans(section)]
        parts += [(state[part.name], "float64") for part in self._state(1) if state]
        return b"".join(
            np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<")).tobytes()
            for values, dtype in parts
        )

    @cached_property
    def _rounds(self) -> tuple[Round, ...]:
        return rounds(self.spec)

    def check_measurements(self, record: Record, path: Place) -> None:
        """Raise StoreCorruptError unless a record has the measurements of its iterations."""
        n_batches, is_sampled = self.header.n_batches, self.header.kind == "mcmc"
        problem = measurements_problem(
            record.tuning,
            round_of(self._rounds, record.first_iteration) if is_sampled else None,
            self.spec,
            ladders=self._n_chains(record) if record.batch < n_batches else 0,
            iterations=record.n_iterations,
        )
        if problem:
            raise StoreCorruptError(f"{path}: damaged: {problem}")

    def check(self, record: Record, payload: memoryview, path: Place) -> None:
        """Raise StoreCorruptError unless these are the arrays of the record."""
        if record.payload != hashlib.sha256(payload).hexdigest():
            raise StoreCorruptError(f"{path}: damaged: not the values that were committed")
        of_draws, of_state = self._draws_of(record), self._state(self._n_chains(record))
        is_without_state = self.header.kind in ("exact", "prior") and len(payload) == _n_bytes(of_draws)
        if not is_without_state and len(payload) != _n_bytes(of_draws) + _n_bytes(of_state):
            raise StoreCorruptError(f"{path}: does not have the size of a block of this run")

    def draws(self, record: Record, payload: memoryview) -> dict[str, Array]:
        """Return the draws of a block by path of the array, (n_chains, n_draws, ...) each."""
        return _decoded(self._draws_of(record), payload, 0)

    def state(self, record: Record, payload: memoryview) -> ChainState | None:
        """Return the state of chains in the file of a block or segment; None if there is none."""
        if len(payload) == _n_bytes(self._draws_of(record)) or self.named_state is not None:
            return None
        state = ChainState(**self.state_by_name(record, payload))
        dtype = self.spec.dtype
        return replace(state, position=state.position.astype(dtype), momentum=state.momentum.astype(dtype))

    def state_by_name(self, record: Record, payload: memoryview) -> dict[str, Array]:
        """Return the state of a fit or of ladders in the file of a block or segment, (n_chains, ...) each."""
        start = _n_bytes(self._draws_of(record))
        values = _decoded(self._state(self._n_chains(record)), payload, start)
        return {name: np.array(array, dtype="float64") for name, array in values.items()}

    def state_bytes(self, record: Record, payload: memoryview) -> bytes:
        """Return the bytes of the state in a block, which are all the bytes of its segment."""
        return bytes(payload[_n_bytes(self._draws_of(record)) :])

    def _plans(self, section: Section) -> list[ArrayPlan]:
        return sorted(
            (plan for plan in self.plans.values() if plan.is_drawn and plan.section == section),
            key=lambda plan: plan.path,
        )

    def _n_chains(self, record: Record) -> int:
        return len(self.header.batch_chains(record.batch))

    def _draws(self, section: Section | None, n_chains: int, n_draws: int) -> list[_Part]:
        if section is None or not n_draws:
            return []
        return [
            _Part(plan.path, (n_chains, n_draws, *plan.shape[2:]), plan.dtype)
            for plan in self._plans(section)
        ]

    def _draws_of(self, record: Record) -> list[_Part]:
        """Return the draws in the file of a record; the file of a segment has none."""
        n_draws = record.n_draws if record.segment is None else 0
        return self._draws(record.section, self._n_chains(record), n_draws)

    def _state(self, n_chains: int) -> list[_Part]:
        shapes = self._chain_state if self.named_state is None else self.named_state
        return [_Part(name, (n_chains, *shape), "float64") for name, shape in shapes.items()]


class _Part(NamedTuple):
    """One array in a file."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def _n_bytes(parts: list[_Part]) -> int:
    return sum(math.prod(part.shape) * np.dtype(part.dtype).itemsize for part in parts)


def _decoded(parts: list[_Part], payload: memoryview, start: int) -> dict[str, Array]:
    arrays = {}
    for part in parts:
        dtype, n = np.dtype(part.dtype).newbyteorder("<"), math.prod(part.shape)
        arrays[part.name] = np.frombuffer(payload, dtype, count=n, offset=start).reshape(part.shape)
        start += n * dtype.itemsize
    return arrays
