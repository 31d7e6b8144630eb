"""Says in one line why a run waits if Ray has no room for its workers."""

from __future__ import annotations

import logging
import math
import os
import time
from typing import Any

from rayfbnn.errors import ClusterGoneError
from rayfbnn.run.on_ray.nodes import workers_in_words

_QUIET_SECONDS = 10.0  # workers usually start within this time
_DOUBT_SECONDS = 60.0  # workers that seemed to fit have then lost their place to others
_AGAIN_SECONDS = 600.0
_UNITS = {"CPU": ("core", "cores"), "GPU": ("GPU", "GPUs")}
_ADVICE = (
    "; the run goes on once one fits; to go on now, use another cluster, or --workers 0 (in Python workers=0)"
    " to run without Ray"
)
_log = logging.getLogger(__name__)


class Waiting:
    """Says after ten seconds, and rarely again, what workers that have not started wait for."""

    def __init__(
        self, ray: Any, gpus: float = 0, *, doubt: float = _DOUBT_SECONDS, session: str = ""
    ) -> None:
        """Take Ray's module, the GPUs of a worker, and the folder of a Ray that was started here.

        Nobody else takes the cores of that Ray.

        doubt  seconds until workers for which there was room count as waiting
        """
        self._ray, self._doubt, self._session = ray, doubt, session
        self._needs = {"CPU": 1.0} | ({"GPU": gpus} if gpus else {})
        self._fits = self._n_working = 0
        self._since = self._next = 0.0  # on the monotonic clock; 0 if nothing waits
        self._has_spoken = False

    def starting(self) -> None:
        """Note how many workers there is room for, before they are started."""
        if not self._session:
            self._fits = self._room(self._ray.available_resources())

    def note(self, n_waiting: int, n_working: int) -> None:
        """Say what workers wait for, if that is due. Call this again and again.

        Raises ClusterGoneError if none works, and none can start because Ray's folder is gone.
        """
        now = time.monotonic()
        if self._has_spoken and (n_working > self._n_working or not n_waiting):
            _log.warning("the run goes on with %s", workers_in_words(n_working))
            self._has_spoken = False
        self._n_working = n_working
        if not n_waiting:
            self._since = 0.0
        elif not self._since:
            self._since, self._next = now, now + _QUIET_SECONDS
        elif now >= self._next and (line := self._line(n_waiting, n_working, now - self._since)):
            _log.warning("%s", line)
            self._has_spoken = not n_working
            self._next = math.inf if n_working else now + _AGAIN_SECONDS

    def _line(self, n_waiting: int, n_working: int, seconds: float) -> str:
        meanwhile = f"; the run goes on with {workers_in_words(n_working)} meanwhile" if n_working else ""
        if self._session:
            return "" if os.path.isdir(self._session) else self._without_session(meanwhile)
        if n_waiting <= self._fits and seconds < self._doubt:
            return ""
        free, total = self._ray.available_resources(), self._ray.cluster_resources()
        each = " and ".join(f"{need:g} {_UNITS[name][need > 1]}" for name, need in self._needs.items())
        shares = " and ".join(
            f"{free.get(name, 0):g} of {total.get(name, 0):g} {_UNITS[name][1]}" for name in self._needs
        )
        return (
            f"waiting for {workers_in_words(n_waiting)} with {each} each: {shares} of the Ray cluster are"
            f" free{meanwhile or _ADVICE}"
        )

    def _without_session(self, meanwhile: str) -> str:
        gone = f"Ray's folder {self._session} is gone, perhaps by a cleaner of temporary folders"
        if meanwhile:
            return f"{gone}, so that no worker can start{meanwhile}"
        raise ClusterGoneError(
            f"{gone}. Committed work is kept: `resume` continues from there; set RAY_TMPDIR to a folder that"
            " no cleaner empties"
        )

    def _room(self, free: dict[str, float]) -> int:
        return min(int(free.get(name, 0) / need) for name, need in self._needs.items())
