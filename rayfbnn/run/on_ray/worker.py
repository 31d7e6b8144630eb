"""The work of Ray actors: blocks of a batch, or visits to parts of the training cases."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from rayfbnn.memory import give_back_freed_memory
from rayfbnn.ring.message import Message
from rayfbnn.ring.transport import Owner
from rayfbnn.run.executor import follow_length, job_of, worker_name
from rayfbnn.run.fitting.fitter import Fitter
from rayfbnn.run.in_parts import parts_of_run
from rayfbnn.run.on_ray.transport import Division, RayTransport
from rayfbnn.run.sampler import Progress, Sampler
from rayfbnn.store.store import Store


class PartsWorker:
    """The work of an actor that owns parts.

    Its only state is its cases and its division. It reads cases when they are needed, so Ray may restart it.
    """

    def __init__(self, store_path: str, node: Callable[[], str] = lambda: "", niceness: int = 0) -> None:
        """Take the store, a function that asks Ray for the node, and the least niceness of this process."""
        os.nice(max(0, niceness - os.nice(0)))
        self._store_path, self._node = store_path, node
        self._owner = Owner()
        self._division: Division | None = None

    def ready(self) -> str:
        """Return the node of this worker, once it is up."""
        return self._node()

    def hold(self, parts: Sequence[int]) -> None:
        """Read the parts that this worker does not have yet. Their numbers are in ascending order."""
        missing = [number for number in parts if number not in self._owner.parts]
        if missing:
            self._owner.add(parts_of_run(Store.open(self._store_path), missing))
            give_back_freed_memory()

    def follow(self, division: Division, parts: Collection[int]) -> None:
        """Adopt a new division, and keep only the parts that this worker has in it."""
        self._division = division
        self._owner.keep(parts)

    def division(self) -> Division | None:
        """Return the latest division that this worker was told about."""
        return self._division

    def forward(
        self, message: Message, parts: Sequence[int], number: int
    ) -> tuple[bool | Division, Message | None]:
        """Make all visits that are due here. Return whether the message continues, and the message.

        A home that knows an older division gets the latest one instead.

        parts   the parts of this worker, as the home knows them
        number  number of the division that the home knows
        """
        if self._division is not None and number < self._division.number:
            return self._division, None
        self.hold(parts)  # a restarted worker has none
        forwarded = self._owner.forward(message, parts)
        return forwarded is not None, forwarded


NEWS_SECONDS = 0.5  # between two reports of a worker; it may take this long to notice a stop


class Worker:
    """The work of a Ray actor: it runs blocks in its only thread, and reports its progress meanwhile.

    A second thread would get the interpreter a hundred times a second, whenever Ray checks for signals. That
    made two actors 2 to 3 % slower than two processes. This is a plain class, which can be tested without
    Ray. `is_stopped` is called after every iteration.
    """

    def __init__(
        self,
        store_path: str,
        is_stopped: Callable[[], bool] = lambda: False,
        node: Callable[[], str] = lambda: "",
        niceness: int = 0,
    ) -> None:
        """Take the store, two functions that ask Ray, and the least niceness of this process."""
        os.nice(max(0, niceness - os.nice(0)))
        self._store_path = store_path
        self._is_stopped = is_stopped
        self._node = node
        self._transport: RayTransport | None = None
        self._sampler: Sampler | Fitter | None = None
        self._steps: Iterator[Progress] = iter(())  # steps of the block that was run last
        self._is_finishing = False
        self._latest: Progress | None = None

    def ready(self) -> tuple[str, str]:
        """Return the worker's host and process id, and its node, once it is up."""
        return worker_name(), self._node()

    def run_block(
        self, batch: int, division: Division | None = None, until: int | None = None
    ) -> Iterator[Progress]:
        """Run and commit the batch's next block. Yield progress twice a second, and after the commit.

        division  division of the training cases among owners; if given, chains travel to the owners, and the
                  worker has no cases
        until     iterations that the run has at least; it may have become longer since the last block
        """
        if self._sampler is None:  # not in __init__, where Ray hides the cause of an error
            self._sampler = self._job(division)
            give_back_freed_memory()  # used for reading the cases
        elif self._transport is not None and division is not None:
            self._transport.adopt(division)
        follow_length(self._sampler, until)
        self._is_finishing, reported = False, time.monotonic()
        self._steps = self._sampler.run_block(
            batch, should_stop=lambda: self._is_finishing or self.should_stop()
        )
        for self._latest in self._steps:  # noqa: B020, an attribute of self and not self
            if self._latest.committed or time.monotonic() - reported >= NEWS_SECONDS:
                reported = time.monotonic()
                yield self._latest

    def _job(self, division: Division | None) -> Sampler | Fitter:
        store = Store.open(self._store_path)
        if division is None:
            return job_of(store, worker=worker_name())
        self._transport = RayTransport(division)
        n_owners = len(division.owners)
        return job_of(store, worker=worker_name(), transport=self._transport, n_owners=n_owners)

    def should_stop(self) -> bool:
        """Return True to stop. This is called after every iteration; tests kill or delay a worker here."""
        return self._is_stopped()

    def latest(self) -> Progress | None:
        """Return the latest progress of the block that was run last; None before the first block.

        Ray drops the generator of a block that is told to stop while an answer is on its way. The finished
        iterations of such a block are committed here. They cannot be committed as the generator is closed:
        the garbage collector may close it at any moment and in any thread, and nothing may be sampled there.
        """
        self._is_finishing = True
        for self._latest in self._steps:  # noqa: B020, runs on to the commit
            pass
        return self._latest
