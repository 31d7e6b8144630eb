"""Typed records for the JSON files of a study, with bounds that keep files from elsewhere harmless."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rayfbnn.store.checking.documents import Count, Digest, Document, Draws, Name, Plain, Seal, Whole
from rayfbnn.study.grid import MOST_CONFIGURATIONS

FORMAT_VERSION = 2
MOST_SEEDS = 10_000
LARGEST_SEED = 2**32 - 1

Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Seeds = Annotated[list[Seed], Field(min_length=1, max_length=MOST_SEEDS)]
SeedText = Annotated[str, Field(pattern=r"^(?:0|[1-9][0-9]{0,9})$")]  # the key of a JSON object


class ConfigurationDocument(Document):
    """A configuration of the plan. `RunSpec` checks its keys."""

    varied: list[Name]
    keys: dict[str, Any]


class RuleDocument(Document):
    """The limits of the plan's rule. `rule.Rule` checks their ranges."""

    max_rhat: float
    max_mcse: float
    least_draws: Whole
    looks: Whole
    cases: Whole


class PlanDocument(Document):
    """The content of study.json; see `plan.Plan`."""

    format: Literal["rayfbnn study"]
    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]
    version: Plain
    configurations: Annotated[
        list[ConfigurationDocument], Field(min_length=1, max_length=MOST_CONFIGURATIONS)
    ]
    seeds: Seeds
    rule: RuleDocument
    data_hash: Digest
    seal: Seal


class JudgedDocument(Document):
    """A quantity at a look; see `rule.Judged`."""

    mean: float | None
    sd: float | None
    rhat: float | None
    mcse: float | None
    drift: float | None
    late: float | None
    growth: float | None
    stuck: list[Seed]
    ok: bool
    apart: list[Seed]


class NumberedDocument(Document):
    """A record in a log of the study with the identity `study`."""

    study: Digest
    number: Count
    seal: Seal


class LookDocument(NumberedDocument):
    """The record of a look; see `looks.Look`."""

    iterations: Whole
    draws: Draws
    seeds: Seeds
    quantities: dict[Name, JudgedDocument]
    failed: dict[SeedText, Name]
    digests: dict[SeedText, Digest]
    ok: bool
    reasons: list[Name]
    action: Literal["stop", "continue", "end"]


class AdditionDocument(NumberedDocument):
    """Seeds that were added, and the number of looks that each configuration had then."""

    seeds: Seeds
    after_looks: list[Whole]


class FailureDocument(Document):
    """The reason that a member cannot be sampled."""

    study: Digest
    member: Plain
    reason: Name
    seal: Seal
