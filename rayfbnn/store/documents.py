"""The JSON files of a store as typed records with bounds, so a file from elsewhere can do no harm.

A file with an unknown key, a value of the wrong type or a number out of range is refused as damaged before
anything else happens.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayfbnn.errors import StoreCorruptError, visible_name
from rayfbnn.mcmc.automatic import BITS

MOST_VALUES = 3_000_000  # in a JSON file: each takes up to a hundred bytes once it is parsed
MOST_CHAINS = 1_000_000
MOST_LEVELS = 1_000  # of a ladder
MOST_STEPS = 128  # of a trajectory of a ladder, see mcmc.ladder.adaptation
MOST_DRAWS = 10_000_000  # of a chain in one section; their numbers are a coordinate held in memory
_MOST_ERRORS = 1_000  # that pydantic is asked to describe, which takes long for millions

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
DigestOrNone = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Name = Annotated[str, Field(max_length=1_000_000), AfterValidator(visible_name)]  # of columns and labels
Plain = Annotated[str, Field(pattern=r"^[ -~]{1,200}$")]  # shown to people
ChunkFile = Annotated[str, Field(pattern=r"^(?:[A-Za-z0-9_]{1,200}/){1,2}c(?:\.[0-9]{1,9}){1,8}$")]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Draws = Annotated[int, Field(ge=0, le=MOST_DRAWS)]
Count = Annotated[int, Field(ge=1, le=2**31)]
Sum = Annotated[int, Field(ge=-(2**120), le=2**120)]  # of values of at most 2**50, in units of 2**-40
Sums = Annotated[list[Sum], Field(max_length=100_000)]
Seal = Annotated[Digest, Field(alias="sha256_of_this_file")]

Model = TypeVar("Model", bound="Document")


class Document(BaseModel):
    """A JSON object with exactly these keys; text and numbers are not converted into each other."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class HeaderDocument(Document):
    """`header` of the root metadata, see `catalogue.Header`."""

    kind: Literal["mcmc", "exact", "prior", "approximate"]
    chains: Annotated[int, Field(ge=1, le=MOST_CHAINS)]
    chains_per_batch: Annotated[int, Field(ge=1, le=MOST_CHAINS)]
    draws_per_block: Count | None
    n_draws: Draws
    n_warmup_draws: Draws
    n_blocks: Whole
    n_cases: Whole
    coordinate_chunk: Count
    data_hash: Digest
    draws_per_chunk: Count
    cases_per_chunk: Count
    fit_state: Annotated[dict[Plain, list[Whole]], Field(max_length=100)] | None = None

    @model_validator(mode="after")
    def _has_state(self) -> HeaderDocument:
        if (self.kind == "approximate") != (self.fit_state is not None):
            raise ValueError("approximations need fit_state, and nothing else has it")
        return self


class InputColumnDocument(Document):
    """A column of the training table, see `data.encoding.InputColumn`."""

    name: Name
    kind: Literal["number", "levels", "ordered", "missing", "exposure"]
    levels: list[Name]
    n_missing: Whole
    median: float | None


class EncodingDocument(Document):
    """`encoding` of the root metadata, see `data.encoding.Encoding`."""

    columns: list[Name]
    inputs: Annotated[list[InputColumnDocument], Field(min_length=1)]
    constant: dict[Name, Name]
    labels: dict[Name, list[Name]]
    n_cases: Whole
    have_one_unit: bool = False


RESULTS_BEFORE = 1
"""The results (`rayfbnn.version`) of stores and studies from before their number was recorded."""


class RootAttributes(Document):
    """The attributes of the root metadata; `spec` is checked where configurations are."""

    format: Literal["rayfbnn"]
    format_version: Whole
    rayfbnn_version: Plain
    results: Whole = RESULTS_BEFORE
    header: HeaderDocument
    spec: dict[str, Any]
    fixed_chunks: dict[ChunkFile, Digest]
    kernel: Plain
    head_records: Literal[True]
    encoding: EncodingDocument | None = None
    seal: Seal


class RootDocument(Document):
    """The root's zarr.json."""

    zarr_format: Literal[3]
    node_type: Literal["group"]
    attributes: RootAttributes


class ExtensionDocument(Document):
    """A record that changes the length of the run."""

    store: Digest
    number: Whole
    n_draws: Draws
    n_blocks: Whole
    spec: dict[str, Any]
    seal: Seal


class MeasuredDocument(Document):
    """Sums over measured trajectories, see `mcmc.automatic.Measured`."""

    trajectories: Annotated[int, Field(ge=1, le=2**53)]
    lengths: Annotated[list[Count], Field(min_length=1, max_length=100)]
    acceptance: Sums
    jumps: Annotated[list[Sums], Field(max_length=100_000)]
    sums: Sums
    squares: Sums
    slopes: Sums
    diverged: Whole

    @model_validator(mode="after")
    def _fits(self) -> MeasuredDocument:
        if len(self.acceptance) != len(self.lengths) or len(self.jumps) not in (0, len(self.lengths)):
            raise ValueError("acceptance and jumps need one entry for each length")
        n_quantities = {len(self.sums), len(self.squares), *map(len, self.jumps)}
        if len(n_quantities) > 1:
            raise ValueError("sums, squares and jumps are of different numbers of quantities")
        if not all(0 <= total <= self.trajectories << BITS for total in self.acceptance):
            raise ValueError("acceptance is not between 0 and 1")
        if self.diverged > self.trajectories:
            raise ValueError("more trajectories diverged than were run")
        return self


class SettingsDocument(Document):
    """Settings that tuning found, see `mcmc.operation.Settings`."""

    stepsize: Annotated[float, Field(gt=0)]
    steps: Count
    longest: Count
    scales: Annotated[list[float], Field(max_length=100_000)]


class TunedDocument(Document):
    """The measurements of a round of tuning for one operation, and the settings found."""

    op: Plain
    measured: MeasuredDocument
    settings: SettingsDocument


class LadderSettingsDocument(Document):
    """The settings of ladders, see `mcmc.ladder.records.LadderSettings`."""

    levels: Annotated[list[float], Field(min_length=1, max_length=MOST_LEVELS)]
    stepsizes: Annotated[list[Annotated[float, Field(gt=0)]], Field(max_length=MOST_LEVELS)]
    steps: Annotated[list[Annotated[int, Field(ge=1, le=MOST_STEPS)]], Field(max_length=MOST_LEVELS)]
    scales: Annotated[list[float], Field(max_length=100_000)]
    multipliers: Annotated[list[Annotated[float, Field(gt=0)]], Field(max_length=100_000)]

    @model_validator(mode="after")
    def _fits(self) -> LadderSettingsDocument:
        if {len(self.stepsizes), len(self.steps)} != {len(self.levels) + 1}:
            raise ValueError("stepsizes and steps need one entry for each level")
        return self


class LadderSumsDocument(Document):
    """Sums over the iterations of ladders, see `mcmc.ladder.adaptation.MeasuredLadders`."""

    iterations: Count
    ladders: Count
    rejection: Sums
    accepted: Sums
    top: Sums
    measure: list[Sums]
    squares: list[Sums]
    diverged: Sums = []

    @model_validator(mode="after")
    def _fits(self) -> LadderSumsDocument:
        n_levels = len(self.accepted)
        if len(self.rejection) != n_levels - 1 or len(self.diverged) not in (0, n_levels):
            raise ValueError("accepted, rejection and diverged are of different numbers of levels")
        if not len(self.measure) == len(self.squares) == self.ladders:
            raise ValueError("measure and squares need one entry for each ladder")
        if {len(row) for row in (*self.measure, *self.squares)} != {n_levels}:
            raise ValueError("measure and squares need one number for each level")
        most = self.iterations * self.ladders << BITS
        if not all(0 <= total <= most for total in (*self.rejection, *self.accepted, *self.diverged)):
            raise ValueError("rejection, accepted and diverged are not between 0 and 1")
        return self


class LadderMeasuredDocument(Document):
    """The measurements of ladders in a block, see `rounds.LadderMeasured`."""

    settings: LadderSettingsDocument
    measured: LadderSumsDocument

    @model_validator(mode="after")
    def _fits(self) -> LadderMeasuredDocument:
        if len(self.measured.accepted) != len(self.settings.levels) + 1:
            raise ValueError("measured and settings are of different numbers of levels")
        return self


class LadderStartsDocument(Document):
    """The noise of the chains that ladders start from, see `rounds.LadderStarts`."""

    n_starts: Annotated[int, Field(ge=1, le=2**53)]
    top: Sums


class LadderDocument(Document):
    """A round of ladders, see `rounds.LadderRound`."""

    measured: LadderStartsDocument | LadderMeasuredDocument
    settings: LadderSettingsDocument


class TuningDocument(Document):
    """The record of a round of tuning; `operations` is empty in a round of a ladder's adaptation."""

    store: Digest
    round: Whole
    iterations: Annotated[list[Whole], Field(min_length=2, max_length=2)]
    previous: DigestOrNone
    operations: list[TunedDocument]
    ladder: LadderDocument | None = None
    seal: Seal


class ProgressDocument(Document):
    """The progress of a batch, see `records.BatchProgress`; null is a number that is not finite."""

    iteration: Whole
    draws: Draws
    warmup_draws: Draws
    blocks: Whole
    totals: dict[Name, float | None]
    last: dict[Name, float | None]


class SegmentDocument(Document):
    """The blocks of a segment, see `records.Segment`."""

    first_block: Whole
    last: Digest


class RecordDocument(Document):
    """A commit record, see `records.Record`."""

    store: Digest
    batch: Whole
    block: Whole
    previous: DigestOrNone
    first_iteration: Whole
    n_iterations: Whole
    section: Literal["posterior", "warmup"] | None
    first_draw: Draws
    n_draws: Draws
    chunks: dict[ChunkFile, Digest]
    state: Annotated[dict[str, str], Field(max_length=0)]
    progress: ProgressDocument
    tuning: list[MeasuredDocument | LadderStartsDocument | LadderMeasuredDocument] = []
    segment: SegmentDocument | None = None
    payload: Digest
    seal: Seal


class Head(Document):
    """The number of blocks of a batch, and the digest of the last.

    store   digest of the store's root metadata
    blocks  number of published blocks
    last    digest of the last block, "" before the first
    """

    store: Digest
    batch: Whole
    blocks: Whole
    last: DigestOrNone


class HeadDocument(Head):
    """The file with the head of a batch."""

    seal: Seal


class RoundVerdict(Document):
    """The verdict after one round, and the decision.

    iterations       planned length of the last phase when the round ended
    draws            committed draws of each chain when the round ended
    decisive         the verdict that decides, "predictions" or "all"
    predictions, hyperparameters  the grades; "no draws" before the first draw
    ok               whether the deciding verdict is ok
    seconds          duration of the round
    next_iterations  new length of the last phase; None if the run was not extended
    """

    iterations: Whole
    draws: Draws
    decisive: Plain
    predictions: Plain
    hyperparameters: Plain
    ok: bool
    seconds: float
    next_iterations: Whole | None


class VerdictDocument(RoundVerdict):
    """The file with the verdict on a run in rounds."""

    store: Digest
    number: Whole
    seal: Seal


class HolderDocument(Document):
    """The process that runs the store."""

    host: Plain
    pid: Whole
    seal: Seal


def parse_json(raw: bytes, path: object) -> dict[str, Any]:
    """Return the JSON object in a file; StoreCorruptError, naming `path`, if there is none or it is too big.

    The values are counted before the file is parsed, because a value may take more memory than it has bytes.
    """
    n_values = values_in(raw)
    if n_values > MOST_VALUES:
        raise StoreCorruptError(
            f"{path}: has about {n_values} values, but a file of a store has at most {MOST_VALUES}"
        )
    try:
        document = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise StoreCorruptError(f"{path}: is not JSON ({exc})") from exc
    if not isinstance(document, dict):
        raise StoreCorruptError(f"{path}: is not a JSON object")
    return document


def values_in(raw: bytes) -> int:
    """Return an upper bound on the number of values in a JSON file."""
    return sum(raw.count(mark) for mark in (b",", b"[", b"{"))


def as_document(model: type[Model], document: dict[str, Any], path: object, what: str) -> Model:
    """Return a parsed file as a typed record; StoreCorruptError names the first key that is wrong.

    what  the expected content in words, such as "a commit record"
    """
    try:
        return model.model_validate(document)
    except ValidationError as exc:
        reason = f"{exc.error_count()} values are wrong"
        if exc.error_count() <= _MOST_ERRORS:
            first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
            key = ".".join(str(part) for part in first["loc"])[:200]
            reason = f"{key or 'document'}: {first['msg'][:200]}"
        raise StoreCorruptError(f"{path}: damaged: it is not {what} of this format ({reason})") from exc


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
