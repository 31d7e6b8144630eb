"""After any operations on a store in any order, its draws are the first of an undisturbed run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreBusyError, StoreError
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.protocol import PARTIAL
from rayfbnn.store.store import Store
from tests.support.store.crashes import choices
from tests.support.store.disks import Crash, Failing, flipped
from tests.support.store.toy import (
    PATH,
    TOY,
    contents,
    create,
    empty_disk,
    next_block,
    opened,
    run_to_end,
    step,
    toy_spec,
)

N_DRAWS, N_LONGER = 5, 9
ENDS = tuple(range(1, 13))


def whole_run() -> Array:
    """Draws of an undisturbed run of the longest plan, (n_chains, n_draws, n_parameters)."""
    spec = toy_spec(phase=[*TOY["phase"][:2], {**TOY["phase"][2], "iterations": N_LONGER}])
    store = create(FileSystem(empty_disk()), spec=spec)
    run_to_end(store, ends=ENDS)
    return store.read_positions()


WHOLE = whole_run()


class StoreMachine(RuleBasedStateMachine):
    """The model: how many draws of each batch are committed, and how many are planned."""

    @initialize()
    def start(self) -> None:
        self.disk = empty_disk()
        self.store = create(FileSystem(self.disk))
        self.draws = {0: 0, 1: 0}
        self.planned = N_DRAWS
        self.is_damaged = False

    @precondition(lambda self: not self.is_damaged)
    @rule(batch=st.integers(0, 1), length=st.integers(1, 3))
    def commit(self, batch: int, length: int) -> None:
        """Commit a block of any length that a chunk holds, as if a run had been stopped within one."""
        self._step(self.store, batch, length)
        self.draws[batch] = self.store.progress(batch).draws

    @precondition(lambda self: not self.is_damaged)
    @rule(batch=st.integers(0, 1))
    def commit_twice(self, batch: int) -> None:
        block = next_block(self.store, batch, ends=self._ends(batch, 2))
        if block is not None:
            assert self.store.commit(batch, block) == self.store.commit(batch, block)
            self.draws[batch] = self.store.progress(batch).draws

    @precondition(lambda self: not self.is_damaged)
    @rule(batch=st.integers(0, 1), length=st.integers(1, 3), at=st.integers(0, 160), power=st.booleans())
    def killed_in_a_commit(self, batch: int, length: int, at: int, power: bool) -> None:
        self._disturbed(lambda store: self._step(store, batch, length), at, "crash", power)

    @precondition(lambda self: not self.is_damaged)
    @rule(
        batch=st.integers(0, 1), at=st.integers(0, 160), fault=st.sampled_from(["EIO", "ENOSPC", "EIO after"])
    )
    def failed_commit(self, batch: int, at: int, fault: str) -> None:
        self._disturbed(lambda store: self._step(store, batch, 2), at, fault, False)

    @precondition(lambda self: not self.is_damaged)
    @rule(at=st.integers(0, 300), power=st.booleans())
    def killed_in_an_extension(self, at: int, power: bool) -> None:
        longer = toy_spec().with_iterations(N_LONGER)
        self._disturbed(lambda store: store.extend(longer, N_LONGER), at, "crash", power)

    @precondition(lambda self: not self.is_damaged)
    @rule(batch=st.integers(0, 1), everything=st.booleans())
    def gather(self, batch: int, everything: bool) -> None:
        """Gather the single blocks of a batch, those of chunks that are not complete as well or not."""
        self.store.gather(batch, everything=everything)

    @precondition(lambda self: not self.is_damaged)
    @rule(batch=st.integers(0, 1), at=st.integers(0, 160), power=st.booleans())
    def killed_in_a_gathering(self, batch: int, at: int, power: bool) -> None:
        self._disturbed(lambda store: store.gather(batch, everything=True), at, "crash", power)

    @precondition(lambda self: not self.is_damaged)
    @rule()
    def resume(self) -> None:
        """Open the store in another process."""
        self.store = opened(self.disk)
        with self.store.lock():
            try:
                with opened(self.disk).lock():
                    raise AssertionError("two hold the lock")
            except StoreBusyError:
                pass

    @precondition(lambda self: not self.is_damaged)
    @rule()
    def finish(self) -> None:
        run_to_end(self.store, ends=ENDS[: 3 + self._planned()])
        self.draws = dict.fromkeys(self.draws, self._planned())

    @precondition(lambda self: not self.is_damaged)
    @rule(which=st.integers(0, 10**6), bit=st.integers(0, 10**6))
    def damage(self, which: int, bit: int) -> None:
        """Flip one bit of a record, or of a file that a record names."""
        folders = ("posterior", "sample_stats")
        files = [
            (path, file)
            for path, file in self.disk.files().items()
            if file.live and (path.parent.name.startswith("batch") or path.parts[3] in folders)
        ]
        path, file = files[which % len(files)]
        before = file.live
        file.live = file.durable = flipped(before, bit % (8 * len(before)))
        report = Store.verify(self.store)
        if report.ok:  # litter of a crash, which nobody reads: a chunk that no record names, a block that was
            # gathered, or a temporary file
            assert path.name.startswith("c.") or path.name.endswith((".block", PARTIAL))
            return
        assert {str(PATH / problem.file) for problem in report.problems} == {str(path)}
        if report.problems[0].batch is None:  # metadata and coordinates are restored from a copy
            file.live = file.durable = before
        else:
            self.is_damaged = True

    @precondition(lambda self: self.is_damaged)
    @rule()
    def repair(self) -> None:
        store = Store.open(PATH, fs=FileSystem(self.disk), check_records=False)
        store.repair()
        self.is_damaged = False
        self.store = opened(self.disk)
        for batch in self.draws:
            assert self.store.progress(batch).draws <= self.draws[batch]
            self.draws[batch] = self.store.progress(batch).draws

    @precondition(lambda self: not self.is_damaged)
    @invariant()
    def draws_are_the_first_of_the_whole_run(self) -> None:
        if not hasattr(self, "disk"):
            return
        store = opened(self.disk)
        n_draws = min(self.draws.values())
        assert store.committed_draws == n_draws
        assert (store.read_positions() == WHOLE[:, :n_draws]).all()
        tree = store.datatree()
        assert (tree["posterior"]["io"].values[..., 0, 0] == WHOLE[:, :n_draws, 0]).all()

    @precondition(lambda self: not self.is_damaged)
    @invariant()
    def nothing_is_damaged(self) -> None:
        if hasattr(self, "disk"):
            assert opened(self.disk).verify().ok

    def teardown(self) -> None:
        if hasattr(self, "disk") and not self.is_damaged:
            run_to_end(opened(self.disk), ends=ENDS[: 3 + self._planned()])
            assert (opened(self.disk).read_positions() == WHOLE[:, : self._planned()]).all()
            assert contents(opened(self.disk))

    def _planned(self) -> int:
        return opened(self.disk).root.header.n_draws

    def _ends(self, batch: int, length: int) -> tuple[int, ...]:
        """Where the next block ends: `length` iterations on, or at the end of its phase."""
        iteration = self.store.progress(batch).iteration
        phase_end = next((end for end in (1, 3, 3 + self._planned()) if end > iteration), 0)
        return (min(iteration + length, phase_end),)

    def _step(self, store: Store, batch: int, length: int) -> None:
        step(store, batch, ends=self._ends(batch, length))

    def _disturbed(self, work: Callable[[Store], None], at: int, fault: str, power: bool) -> None:
        """End the process during or after its work; another process must find at least the earlier draws."""
        calls = Failing(self.disk)
        store = opened(calls)
        calls.at, calls.fault = len(calls.log) + at, fault
        try:
            work(store)
        except (Crash, StoreError):
            pass
        self.disk.reboot()
        if power:
            self.disk = self.disk.after_power_loss(choices(at))
        self.store = opened(self.disk)
        for batch in self.draws:
            assert self.store.progress(batch).draws >= self.draws[batch]
            self.draws[batch] = self.store.progress(batch).draws


@pytest.mark.parametrize(("n_examples", "n_steps"), [(4, 8), pytest.param(30, 25, marks=pytest.mark.long)])
def test_no_order_of_commits_kills_failures_damage_and_repairs_changes_a_draw(
    n_examples: int, n_steps: int
) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        StoreMachine,
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=n_steps,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],  # a step takes 50 ms: shrinking would take minutes
        ),
    )
