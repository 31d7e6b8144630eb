"""Lost, doubled, late and reordered messages between parts, and workers that die, change no bit of a draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayfbnn.errors import WorkerError
from rayfbnn.ring import home
from rayfbnn.ring.message import Itinerary, Key, Message
from rayfbnn.ring.questions import DataEnergy
from rayfbnn.ring.transport import InProcess
from tests.support import problems
from tests.support.mutants import mutant
from tests.support.ring.faulty import N_PARTS, Fault, Run, are_equal

RUN = Run()
UNDISTURBED, N_STEPS = RUN.draws([])
SCHEDULES = st.lists(st.sampled_from(Fault), max_size=60)


def check(faults: list[Fault]) -> None:
    draws, _ = RUN.draws(faults)
    assert are_equal(draws, UNDISTURBED)


@settings(max_examples=40, deadline=None)
@given(SCHEDULES)
def test_no_fault_changes_a_bit(faults: list[Fault]) -> None:
    check(faults)


@pytest.mark.long
@settings(max_examples=6_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEDULES)
def test_no_fault_changes_a_bit_in_many_schedules(faults: list[Fault]) -> None:
    check(faults)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.DELIVER])
def test_each_fault_at_each_place_changes_no_bit(fault: Fault) -> None:
    for place in range(0, N_STEPS, 3):
        draws, _ = RUN.draws([*[Fault.DELIVER] * place, fault])
        assert are_equal(draws, UNDISTURBED)


def random_schedules(n: int) -> list[list[Fault]]:
    random = np.random.default_rng(8)
    return [[Fault(fault) for fault in random.integers(len(Fault), size=60)] for _ in range(n)]


MUTANTS = {
    "pieces not told apart": (
        "(key.home, key.piece, key.attempt) == (self._name, self._piece, attempt)",
        "key.home == self._name",
    ),
    "homes not told apart": ("self._name = secrets.token_hex(8)", 'self._name = "home"'),
    "carriages not told apart": ("arrived[key.carriage] = message", "arrived[len(arrived)] = message"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_home_that_takes_the_wrong_message_is_seen(name: str) -> None:
    changed = mutant(home, MUTANTS[name])

    def is_right(faults: list[Fault]) -> bool:
        try:
            return are_equal(RUN.draws(faults, changed)[0], UNDISTURBED)
        except (ValueError, KeyError, AssertionError, WorkerError):  # what came back does not even fit
            return False

    assert not all(map(is_right, random_schedules(60)))


def test_a_home_gives_up_after_its_attempts() -> None:
    class Nowhere:
        n_sent = 0

        def send(self, message: Message) -> None:
            self.n_sent += 1

        def receive(self, seconds: float) -> Message | None:
            return None

    nowhere = Nowhere()
    target = RUN.target(nowhere)
    state = target.initial_state(problems.streams("ring", 3), sigmas=0.4)
    with pytest.raises(WorkerError, match="were lost 200 times in a row"):
        target.potential(state.position, state.precisions)
    assert nowhere.n_sent == 200


def test_an_owner_drops_attempts_that_were_given_up() -> None:
    """This saves work; the draws do not depend on it."""
    owner = RUN.owners()[0]
    first, second = (message_of(attempt) for attempt in (1, 2))
    assert owner.forward(first) is not None
    assert owner.forward(second) is not None
    assert owner.forward(second) is not None
    assert owner.forward(first) is None
    assert owner.forward(first.named(replace(first.key, home="another"))) is not None


def message_of(attempt: int) -> Message:
    position, nothing = np.zeros((1, 4)), np.zeros((1, 4))
    precisions = RUN.target(InProcess([])).initial_state(problems.streams("ring", 1), sigmas=0.4).precisions
    return Message(
        key=Key("home", 1, attempt, 0),
        itinerary=Itinerary("question", N_PARTS),
        question=DataEnergy(),
        rows=np.arange(1),
        over=(),
        position=position,
        momentum=nothing,
        precisions=precisions,
        stepsizes=nothing,
        answers=(None,) * N_PARTS,
    )
