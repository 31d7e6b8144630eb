"""Lost, doubled, late and reordered messages between parts, and workers that die, change no bit of a draw."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayfbnn.arrays import Array
from rayfbnn.errors import WorkerError
from rayfbnn.mcmc.heatbath import heatbath
from rayfbnn.mcmc.hybrid import hybrid
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.ring import rounds
from rayfbnn.ring.message import Itinerary, Key, Message
from rayfbnn.ring.parts import Part, parts_of
from rayfbnn.ring.rounds import Ring
from rayfbnn.ring.shared_posterior import RingAdvance, SharedPosterior
from rayfbnn.ring.transport import LocalTransport, Owner, Transport
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams
from tests.support import problems
from tests.support.mutants import mutant

N_PARTS = 3
OWNERS = ((0, 2), (1,))


class Fault(IntEnum):
    """A fault at one step of a transport; DELIVER is none."""

    DELIVER = 0
    OVERTAKE = 1
    LOSE = 2
    DOUBLE = 3
    TIME_OUT = 4
    OWNER_DIES = 5
    HOME_DIES = 6


class HomeDied(Exception):
    """The process in which the home was is gone; what was under way still is."""


class Faulty:
    """Carries messages between owners as a schedule of faults says, and without faults after its end."""

    def __init__(self, new_owners: Callable[[], list[Owner]], faults: Iterable[Fault]) -> None:
        self._new_owners = new_owners
        self._owners = new_owners()
        self._faults = iter(faults)
        self._under_way: deque[Message] = deque()
        self.n_steps = 0

    def send(self, message: Message) -> None:
        self._under_way.append(message)

    def receive(self, seconds: float) -> Message | None:
        while self._under_way:
            fault = next(self._faults, Fault.DELIVER)
            self.n_steps += 1
            if fault == Fault.HOME_DIES:
                raise HomeDied
            if fault == Fault.TIME_OUT:
                return None
            message = self._under_way.pop() if fault == Fault.OVERTAKE else self._under_way.popleft()
            if fault == Fault.LOSE:
                continue
            if fault == Fault.DOUBLE:
                self._under_way.append(message)
            if message.part is None:
                return message
            number = self._owner_of(message.part)
            if fault == Fault.OWNER_DIES:
                self._replace(number)
                continue
            forwarded = self._owners[number].forward(message)
            if forwarded is not None:
                self.send(forwarded)
        return None

    def _owner_of(self, part: int) -> int:
        return next(number for number, owner in enumerate(self._owners) if part in owner.parts)

    def _replace(self, number: int) -> None:
        """Lose an owner and all that was on its way to it; a new one reads the same parts."""
        parts = self._owners[number].parts
        self._under_way = deque(message for message in self._under_way if message.part not in parts)
        self._owners[number] = self._new_owners()[number]


class Run:
    """Iterations of a few chains whose cases are divided among two owners, with a commit after each."""

    def __init__(self, n_iterations: int = 1) -> None:
        spec = problems.network(
            {"ih0": "0.5:4", "ho0": "0.5"}, inputs=1, outputs=1, units=(2,), activations=("tanh",)
        )
        self.whole: SampledPosterior = problems.problem("t", spec=spec)
        self.n_iterations = n_iterations
        self._parts, _ = parts_of(self.whole, N_PARTS, recorded="plain NumPy")

    def draws(self, faults: Sequence[Fault], module: ModuleType = rounds) -> tuple[list[Array], int]:
        """Return the positions and precisions of every iteration, and the steps of the transport."""
        transport = Faulty(self.owners, faults)
        random = problems.streams("ring", 3)
        target = self.target(transport, module)
        state = target.initial_state(random, sigmas=0.4)
        committed: list[Array] = []
        for iteration in range(1, self.n_iterations + 1):
            while True:
                try:
                    after = _iteration(target, state, random.at(iteration=iteration))
                    break
                except HomeDied:
                    target = self.target(transport, module)
            state = after
            committed += [state.position, state.precisions]
        return committed, transport.n_steps

    def owners(self) -> list[Owner]:
        """New owners of the same parts."""
        chosen: list[list[Part]] = [[self._parts[number] for number in share] for share in OWNERS]
        return [Owner(parts) for parts in chosen]

    def target(self, transport: Transport, module: Any = rounds) -> SharedPosterior:
        """The posterior as a new home sees it."""
        return SharedPosterior.from_whole(
            self.whole, Ring(module.Home(transport, most_attempts=200), N_PARTS)
        )


def _iteration(target: SharedPosterior, state: ChainState, random: Streams) -> ChainState:
    state, _ = target.sample_noise(state, random)
    state, _ = heatbath(state, random.at(iteration=random.iteration, operation=1), decay=0.0)
    state, _ = hybrid(
        state, random.at(iteration=random.iteration, operation=2), target=target, steps=2, stepsize=0.2,
        window=2, partitions=N_PARTS, partition_order="cyclic", advance=RingAdvance(),
    )  # fmt: skip
    return state


def are_equal(these: list[Array], those: list[Array]) -> bool:
    """Return True if two runs have the same bits."""
    return len(these) == len(those) and all(np.array_equal(a, b) for a, b in zip(these, those, strict=True))


RUN = Run()
UNDISTURBED, N_STEPS = RUN.draws([])
SCHEDULES = st.lists(st.sampled_from(Fault), max_size=60)


@pytest.mark.parametrize("n_examples", [40, pytest.param(6_000, marks=pytest.mark.long)])
def test_no_fault_changes_a_bit(n_examples: int) -> None:
    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(SCHEDULES)
    def check(faults: list[Fault]) -> None:
        assert are_equal(RUN.draws(faults)[0], UNDISTURBED)

    check()


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
    changed = mutant(rounds, MUTANTS[name])

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
    precisions = (
        RUN.target(LocalTransport([])).initial_state(problems.streams("ring", 1), sigmas=0.4).precisions
    )
    return Message(
        key=Key("home", 1, attempt, 0),
        itinerary=Itinerary("question", N_PARTS),
        question=Part.data_energy,
        rows=np.arange(1),
        over=(),
        position=position,
        momentum=nothing,
        precisions=precisions,
        stepsizes=nothing,
        answers=(None,) * N_PARTS,
    )
