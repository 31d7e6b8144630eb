"""Sampling in rounds: a run becomes longer until its verdict is ok, or until its time is over."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from rayfbnn.answers.judging.advice import rounded_up
from rayfbnn.describe.verb_results import duration
from rayfbnn.errors import ConfigError
from rayfbnn.output.printing import say
from rayfbnn.run.resuming import set_length
from rayfbnn.store.extension import RoundVerdict
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import check_decisive

if TYPE_CHECKING:
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.judging.verdicts import Decisive
    from rayfbnn.run.running import RunOptions, RunSummary
    from rayfbnn.spec import RunSpec

# A round adds half of the length at least, to keep the time of all verdicts small, and at most doubles it.
_LEAST_GROWTH, _MOST_GROWTH = 1.5, 2.0
_TIME_MARGIN = 0.9  # share of the remaining time that is planned; speeds vary
_LEAST_ROUND = 0.05  # share of the run's length; a shorter round would hardly change the verdict
_UNLIMITED = 10**9  # iterations
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


@dataclass(frozen=True)
class Until:
    """The goal of a run in rounds.

    decisive  the verdict that must be ok
    seconds   the time limit, whatever the verdict
    """

    decisive: Decisive
    seconds: float


def read_until(until: str | None, max_time: str | float | None, decisive: Decisive) -> Until | None:
    """Return the goal that the arguments describe, or None for an ordinary run.

    ConfigError says which argument is wrong.
    """
    check_decisive(decisive)
    if until is None:
        if max_time is not None:
            raise ConfigError(f'max_time: only for a run with until = "ok", got {max_time}; leave it out')
        return None
    if until != "ok":
        raise ConfigError(f'until: must be "ok", got "{until}"')
    if max_time is None:
        raise ConfigError("max_time: must be given with until, such as 30m; some runs are never ok")
    return Until(decisive, read_seconds(max_time))


def read_seconds(max_time: str | float) -> float:
    """Return a time in seconds, given as a number of them or as text such as "90s", "30m" or "1h30m"."""
    match = _DURATION.fullmatch(str(max_time).replace(" ", ""))
    numbers = [float(number or 0) for number in match.groups()] if match else [0.0]
    seconds = sum(number * unit for number, unit in zip(numbers, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise ConfigError(
            f'max_time: must be a time above 0, such as 90s, 30m, 1h30m or seconds, got "{max_time}"'
        )
    return seconds


def check_can_go_on(spec: RunSpec) -> None:
    """Raise ConfigError for a run that cannot become ok, however many rounds it has."""
    if spec.phase[-1].keep is not True:
        raise ConfigError("until: the last phase keeps no draws of the posterior; add one that does")
    if spec.chains < 2:
        raise ConfigError(f"until: one chain cannot be judged, got chains = {spec.chains}; give at least 4")


def run_until(store: Store, until: Until, options: RunOptions) -> RunSummary:
    """Run the store to its end, and make it longer until it is ok; the store must be locked.

    Each round lengthens the last phase as `resume` does. The draws are therefore those of a run that had the
    final length from the start. After each round the store records the verdict and the decision.
    """
    from rayfbnn.run.in_rounds import KeptWorkers, run_round

    deadline = time.monotonic() + until.seconds
    with KeptWorkers(options) as kept:
        for number in count(1):
            started, before = time.monotonic(), _done(store)
            summary = run_round(store, options, kept, deadline)
            diagnosis = _diagnosis(store, until.decisive)
            now = time.monotonic()
            # The speed is unknown if the run was complete already.
            seconds = (now - started) / (_done(store) - before) if _done(store) > before else 0.0
            affordable = int((deadline - now) / seconds) if seconds else _UNLIMITED
            following = _following(store, diagnosis, affordable)
            verdict = _record(store, until, diagnosis, now - started, following)
            store.verdicts.append(verdict)
            if options.progress:
                reason = "there are no draws" if diagnosis is None else diagnosis.decided_by
                say(_line(number, verdict, store, reason))
            if following is None:
                break
            set_length(store, following)
    return replace(summary, ok=verdict.ok)


def _done(store: Store) -> int:
    """Return the number of iterations that all chains have completed."""
    return min(progress.iteration for progress in store.all_progress())


def _diagnosis(store: Store, decisive: Decisive) -> Diagnosis | None:
    """Return the diagnosis of the committed draws, or None before the first draw."""
    from rayfbnn.answers.diagnostics import diagnose_draws
    from rayfbnn.draws.view import committed

    return diagnose_draws(committed(store), decisive=decisive) if store.committed_draws else None


def _following(store: Store, diagnosis: Diagnosis | None, affordable: int) -> int | None:
    """Return the length of the last phase for the next round, or None if the run ends here.

    affordable  number of iterations that the remaining time allows
    """
    if diagnosis is None or diagnosis.ok or _done(store) < store.spec.total_iterations:
        return None
    length = store.spec.phase[-1].iterations
    verdicts = [diagnosis.predictions]
    if diagnosis.decisive == "all":
        verdicts.append(diagnosis.hyperparameters)
    advised = max(verdict.iterations or _MOST_GROWTH * length for verdict in verdicts)
    wanted = min(max(advised, _LEAST_GROWTH * length), _MOST_GROWTH * length)
    following = min(rounded_up(wanted), length + int(_TIME_MARGIN * affordable))
    return following if following - length > _LEAST_ROUND * length else None


def _record(
    store: Store, until: Until, diagnosis: Diagnosis | None, seconds: float, following: int | None
) -> RoundVerdict:
    return RoundVerdict(
        iterations=store.spec.phase[-1].iterations,
        draws=store.committed_draws,
        decisive=until.decisive,
        predictions="no draws" if diagnosis is None else diagnosis.predictions.grade,
        hyperparameters="no draws" if diagnosis is None else diagnosis.hyperparameters.grade,
        ok=diagnosis is not None and diagnosis.ok,
        seconds=round(seconds, 3),
        next_iterations=following,
    )


def _line(number: int, verdict: RoundVerdict, store: Store, reason: str) -> str:
    """Describe a round and the decision in one line; `reason` says why it is not ok."""
    if verdict.ok:
        decision = "ok"
    elif verdict.next_iterations is not None:
        decision = f"going on to {verdict.next_iterations} iterations"
    else:
        command = f"rayfbnn resume {store.path} --until ok --max-time TIME"
        decision = f"not ok, since {reason}; the time is over; continue with: {command}"
    return (
        f"round {number}: {verdict.draws} draws in each chain, {duration(verdict.seconds)},"
        f" predictions {verdict.predictions}, hyperparameters {verdict.hyperparameters}: {decision}"
    )
