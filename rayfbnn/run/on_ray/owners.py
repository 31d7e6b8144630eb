"""The owners of the parts of the training cases: actors that hold cases, and make visits to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rayfbnn.ring.message import Message
from rayfbnn.ring.owner import Owner
from rayfbnn.run.in_parts import parts_of_run
from rayfbnn.run.on_ray.transport import RemoteOwner
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store


class PartsWorker:
    """The work of an actor that owns parts. It has no state but its cases, so that Ray may start it again."""

    def __init__(self, store_path: str, parts: Sequence[int], niceness: int = 0) -> None:
        """Take the store, the numbers of the parts, and the least niceness of this process."""
        os.nice(max(0, niceness - os.nice(0)))
        self._store_path, self._parts = store_path, parts
        self._owner: Owner | None = None

    def ready(self) -> tuple[int, ...]:
        """Read the parts, if they have not been read; return their numbers."""
        return self._with_parts().parts

    def forward(self, message: Message) -> tuple[bool, Message | None]:
        """Make all visits that are due here; return whether the message goes on, and the message."""
        forwarded = self._with_parts().forward(message)
        return forwarded is not None, forwarded

    def _with_parts(self) -> Owner:
        if self._owner is None:  # not in __init__, where Ray hides the cause of an error
            self._owner = Owner(parts_of_run(Store.open(self._store_path), self._parts))
        return self._owner


class Owners:
    """The actors that own the parts, as the driver has them; Ray starts one that dies again, elsewhere."""

    def __init__(self, ray: Any, n_owners: int, n_parts: int, environment: dict[str, str]) -> None:
        """Divide the parts among the owners in ranges, so that a message passes few times between owners.

        n_owners  0 if every worker has all cases
        """
        self.count = n_owners
        self._ray = ray
        bounds = [n_parts * number // max(1, n_owners) for number in range(n_owners + 1)]
        self._shares = [tuple(range(*pair)) for pair in zip(bounds, bounds[1:], strict=False)]
        # A visit is a function of its message and the part: to make one again is harmless. But a message
        # that ends its owner again and again must end the run, so that the home decides what is repeated.
        remote_class = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0)(PartsWorker)
        options = {"runtime_env": {"env_vars": environment}} if environment else {}
        self._remote_class = remote_class.options(**options)
        self.all: tuple[RemoteOwner, ...] = ()

    def start(self, store_path: Place) -> None:
        """Start the owners, unless they have been started."""
        if not self.all:
            self.all = tuple(
                RemoteOwner(self._remote_class.remote(str(store_path), share, os.nice(0)), share)
                for share in self._shares
            )

    def end(self) -> None:
        """End the owners."""
        for owner in self.all:
            self._ray.kill(owner.handle)
        self.all = ()
