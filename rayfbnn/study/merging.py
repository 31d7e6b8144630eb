"""Merges studies: their members are judged and used together, like those of one study."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from rayfbnn.errors import ConfigError, StoreError, StoreMismatchError, at_most_ten
from rayfbnn.store.store import Store
from rayfbnn.study.files import StudyFiles
from rayfbnn.study.looks import Due, Look, take_look
from rayfbnn.study.members import Member

_log = logging.getLogger(__name__)

_MOST_SEEDS = 8  # that a warning lists


def look_at_committed(studies: Sequence[StudyFiles], configuration: int) -> Look:
    """Judge the draws that every member of a configuration has now, by the rule of the first study.

    The result is not ok if a member failed or has not begun; this is listed among the reasons.
    """
    _check(studies, configuration)
    stores: dict[int, Store] = {}
    failed: dict[int, str] = {}
    for study in studies:
        for seed in study.seeds(configuration):
            member = Member(configuration, seed)
            reason = study.members.failure(member)
            if reason is not None:
                failed[seed] = reason
            elif study.members.is_there(member):
                stores[seed] = study.members.open(member)
            else:
                failed[seed] = "not begun"
    n_draws = min((store.committed_draws for store in stores.values()), default=0)
    if n_draws == 0:
        raise StoreError(f"{studies[0].place}: not every started member has draws; run the study first")
    lengths = {seed: store.committed_draws for seed, store in stores.items()}
    if longer := _different_lengths(lengths):
        _log.warning("%s: %s; the first %d of each are judged", studies[0].place, longer, n_draws)
    number = len(studies[0].looks(configuration)) + 1
    due = Due(number, n_draws, tuple(sorted([*stores, *failed])), is_last=True)
    return take_look(due, n_draws, stores, failed, studies[0].plan.rule)


def stores_with_draws(studies: Sequence[StudyFiles], configuration: int) -> list[str]:
    """Return the stores of a configuration's members that have draws; StoreError if none has."""
    _check(studies, configuration)
    members = [
        (study, Member(configuration, seed)) for study in studies for seed in study.seeds(configuration)
    ]
    lengths = {
        member.seed: study.members.open(member).committed_draws if study.members.is_there(member) else 0
        for study, member in members
    }
    with_draws = {seed: length for seed, length in lengths.items() if length}
    if not with_draws:
        label = studies[0].configurations[configuration].label
        raise StoreError(f"{studies[0].place}: no member of {label} has draws yet; run the study first")
    if len(with_draws) < len(lengths):
        absent = [seed for seed in lengths if seed not in with_draws]
        _log.warning("%s: %s without draws are left out", studies[0].place, _seeds(absent))
    if longer := _different_lengths(with_draws):
        _log.warning("%s: %s; longer members count for more in what is pooled", studies[0].place, longer)
    return [str(study.members.place(member)) for study, member in members if member.seed in with_draws]


def _different_lengths(lengths: Mapping[int, int]) -> str:
    """Return how many draws the chains of which members have, or "" if all have the same number.

    lengths  the number of draws in each chain of a member, by its seed
    """
    different = sorted(set(lengths.values()))
    if len(different) < 2:
        return ""
    parts = [
        f"{length} draws in each chain of {_seeds([seed for seed in lengths if lengths[seed] == length])}"
        for length in different
    ]
    return f"members have different lengths: {', '.join(at_most_ten(parts))}"


def _seeds(seeds: Sequence[int]) -> str:
    """Return the seeds of some members as text, the first few by their numbers."""
    listed = ", ".join(map(str, seeds[:_MOST_SEEDS]))
    more = f" and {len(seeds) - _MOST_SEEDS} more" if len(seeds) > _MOST_SEEDS else ""
    return f"seed{'s' if len(seeds) > 1 else ''} {listed}{more}"


def _check(studies: Sequence[StudyFiles], configuration: int) -> None:
    """Raise an error unless all studies are of the same posterior, and no two have the same seed."""
    first = studies[0]
    first.check_configuration(configuration)
    seeds: dict[int, StudyFiles] = {}
    for study in studies:
        if _data_hashes(study) != _data_hashes(first):
            raise StoreMismatchError(f"{study.place}: the training cases are not those of {first.place}")
        if _keys(study) != _keys(first):
            raise StoreMismatchError(f"{study.place}: the configurations are not those of {first.place}")
        for seed in study.seeds(configuration):
            if seed in seeds:
                raise ConfigError(
                    f"{study.place}: seed {seed} is in {seeds[seed].place} too; the same seed gives the same"
                    " draws, which must not be counted twice"
                )
            seeds[seed] = study


def _data_hashes(study: StudyFiles) -> list[str]:
    return [one.data_hash for one in study.configurations]


def _keys(study: StudyFiles) -> list[dict[str, object]]:
    """Return the keys of all configurations without seed and data; the data's hash is compared instead."""
    return [{**one.keys, "seed": None, "data": None} for one in study.configurations]
