"""Signals: the first stops a run after its iterations, one soon after it counts as the first."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from rayfbnn.run.signals import STOPPING, interrupt_on_signal, postponed_signals, stop_on_signal

pytestmark = pytest.mark.usefixtures("usual_signals")


class Recorder:
    """Counts what a run is asked to do, with a clock that the test moves."""

    def __init__(self) -> None:
        self.stops, self.now = 0, 100.0
        self.notes: list[str] = []

    def stop(self) -> None:
        self.stops += 1


def send(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def test_signals_within_two_seconds_of_the_first_count_as_one() -> None:
    run = Recorder()
    with stop_on_signal(run.stop, run.notes.append, clock=lambda: run.now):
        for run.now in (100.0, 100.001, 101.9):
            send()
    assert run.stops == 1 and len(run.notes) == 1
    assert "after 2 seconds to stop at once" in run.notes[0]


@pytest.mark.parametrize("number", STOPPING)
def test_every_signal_stops_a_run(number: signal.Signals) -> None:
    run = Recorder()
    with stop_on_signal(run.stop, run.notes.append):
        send(number)
    assert run.stops == 1


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2])
def test_a_later_signal_that_only_warns_changes_nothing(number: signal.Signals) -> None:
    """The system sends SIGXCPU every second, until the process ends or the hard limit is reached."""
    run = Recorder()
    with stop_on_signal(run.stop, run.notes.append, clock=lambda: run.now):
        for run.now in (100.0, 103.0, 200.0):
            send(number)
    assert run.stops == 1


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1])
@pytest.mark.parametrize("before", [signal.SIG_IGN, lambda number, frame: None])
def test_a_signal_that_is_ignored_or_handled_by_others_stays_so(number: signal.Signals, before: Any) -> None:
    """`nohup` ignores SIGHUP; a program that uses the package may have a handler of its own."""
    previous = signal.signal(number, before)
    try:
        run = Recorder()
        with interrupt_on_signal(), stop_on_signal(run.stop, run.notes.append):
            send(number)
            assert signal.getsignal(number) is before
        assert run.stops == 0
    finally:
        signal.signal(number, previous)


@pytest.mark.parametrize("number", STOPPING)
def test_a_postponed_signal_comes_at_the_end(number: signal.Signals) -> None:
    is_done = False
    with pytest.raises(KeyboardInterrupt), interrupt_on_signal(), postponed_signals():
        send(number)
        is_done = True
    assert is_done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_later_signal_interrupts(number: signal.Signals) -> None:
    run = Recorder()
    with pytest.raises(KeyboardInterrupt), stop_on_signal(run.stop, run.notes.append, clock=lambda: run.now):
        send(number)
        run.now += 2.1
        send(number)
    assert run.stops == 1


@pytest.mark.parametrize("handler", [signal.SIG_DFL, lambda number, frame: None])
def test_an_alarm_that_would_end_the_process_is_cancelled(handler: Any) -> None:
    before, alarm = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    signal.signal(signal.SIGALRM, handler)
    try:
        signal.alarm(60)
        with stop_on_signal(lambda: None, lambda text: None):
            send()
        assert (signal.alarm(0) > 0) == callable(handler)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *alarm)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    run = Recorder()
    with interrupt_on_signal(), stop_on_signal(run.stop, run.notes.append):
        pass
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_outside_of_the_sampling_the_first_signal_interrupts_and_others_do_not() -> None:
    n_interrupts = 0
    with interrupt_on_signal():
        for _ in range(3):
            try:
                send()
            except KeyboardInterrupt:
                n_interrupts += 1
    assert n_interrupts == 1
