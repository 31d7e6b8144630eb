"""Starts Ray on this machine, or joins a running cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from rayfbnn.errors import ConfigError, WorkerError
from rayfbnn.run.on_ray.guard import Guard
from rayfbnn.run.on_ray.machine import WITHOUT_RAY, check_machine
from rayfbnn.run.on_ray.nodes import cluster_is_gone
from rayfbnn.run.on_ray.output import log_what_ray_reports
from rayfbnn.run.on_ray.token import check_token, make_token
from rayfbnn.run.signals import GRACE_SECONDS, cancel_alarm, postponed_signals

# One thread a worker: two workers with two BLAS threads each were up to 15 times slower than one thread each.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
WORKER_ENVIRONMENT = {
    **ONE_THREAD,
    # Ray makes its workers nicer by 15 than the process that starts them: other work starves them.
    "RAY_worker_niceness": "0",
    # Chains that travel between owners of parts: through Ray's object store, which takes what is above 100 kB
    # if nothing is said, a message costs 1 ms more. From about 1 MB on the store is cheaper.
    "RAY_max_direct_call_object_size": str(2**19),
    "PYTHONSAFEPATH": "1",  # a worker imports nothing from the folder in which it is started
}
_CONNECT_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_guards: list[Guard] = []  # of the Ray that was started here
_START_SECONDS = GRACE_SECONDS  # for a start under way, once the run is to stop
_OBJECT_STORE_BYTES = 100 * 2**20  # only Progress passes through it; Ray would take a third of the memory


def check_ray(workers: int | None, address: str | None) -> None:
    """Raise an error if Ray is needed but cannot start, or its cluster cannot be joined; creates nothing."""
    if workers == 0:
        return
    if address is not None:
        connect(workers, address)
    elif not _import_ray(None).is_initialized():
        _check_machine_and_token()


def connect(workers: int | None, address: str | None) -> tuple[Any, bool]:
    """Connect to Ray and return its module, with True if it was started here and must be stopped here.

    ClusterGoneError if this process has joined a cluster before whose head does not answer any more.
    """
    ray = _import_ray(address)
    if address is not None:
        if ray.is_initialized():
            _check_head_answers(ray)
        _check_somebody_listens(address)
    if ray.is_initialized():
        return ray, False
    if address is not None:
        advice = "a cluster with token authentication needs RAY_AUTH_MODE=token here too"
        with _in_one_line(f"the Ray cluster at {address} cannot be joined", advice):
            _join(ray, address)
        return ray, False
    _check_machine_and_token()
    with _in_one_line("Ray cannot be started here", WITHOUT_RAY):
        _start_here(ray, workers)
    return ray, True


def _check_machine_and_token() -> None:
    check_machine()
    check_token()


@contextmanager
def _in_one_line(where: str, advice: str) -> Iterator[None]:
    """Turn whatever Ray raises as it starts, which may be of any class, into a WorkerError of one line."""
    try:
        yield
    except Exception as exc:
        raise WorkerError(f"{where}: {first_line(exc).rstrip('.')}; {advice}") from exc


def _join(ray: Any, address: str) -> None:
    # Ray tries for 14 minutes to join a cluster that is gone; each of these two attempts takes 40 s.
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "2")
    _start(
        ray,
        address=address,
        job_config=None if "://" in address else _own_path(),  # Ray's client would have to pickle it
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    log_what_ray_reports()  # for good: this process stays connected after its result


def _start_here(ray: Any, workers: int | None) -> None:
    make_token()
    inherited = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)  # the workers on this machine inherit it
    _guards.append(Guard())
    try:
        _start(
            ray,
            address="local",
            job_config=_own_path(),
            num_cpus=workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=_OBJECT_STORE_BYTES,
        )
    except BaseException:
        _end_guards()
        raise
    finally:
        for name, value in inherited.items():
            _restore(name, value)


def _start(ray: Any, **options: Any) -> None:
    """Start Ray, and let a signal that comes meanwhile wait until it has started.

    A start that is broken off leaves Ray in a state in which the process may crash as it ends, with an exit
    code by which no scheduler starts a job again. Ray therefore starts in a thread, where it sets no handler
    of SIGTERM either. A signal that comes meanwhile raises KeyboardInterrupt, once Ray is stopped again.
    Where SIGTERM has no handler of Python code, Ray starts in this thread and sets its own.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if not callable(previous) or threading.current_thread() is not threading.main_thread():
        ray.init(**options)
        return
    has_ended, errors, interrupt = threading.Event(), list[BaseException](), None

    def start() -> None:
        try:
            ray.init(**options)
        except BaseException as exc:
            errors.append(exc)
        has_ended.set()
        if not errors:
            threading.Event().wait()  # for ever: the kernel kills Ray's processes once this thread ends

    try:
        threading.Thread(target=start, name="rayfbnn-ray", daemon=True).start()
        has_ended.wait()
    except KeyboardInterrupt as exc:
        interrupt = exc
        has_ended.wait(_START_SECONDS)
    finally:
        signal.signal(signal.SIGTERM, previous)  # Ray's C++ code has put a handler of its own before it
        cancel_alarm()
    if interrupt is not None:
        if has_ended.is_set():
            stop_ray(ray)
        raise KeyboardInterrupt("stopped while Ray was starting") from interrupt
    if errors:  # Ray may also mean to end this process by SystemExit
        error = errors[0]
        raise (
            error if isinstance(error, Exception) else RuntimeError("its processes do not answer")
        ) from error


def stop_ray(ray: Any) -> None:
    """Stop the Ray that was started here, with whatever of it does not end by itself."""
    with postponed_signals():
        ray.shutdown()
        _end_guards()


def _end_guards() -> None:
    while _guards:
        _guards.pop().end()


def _own_path() -> Any:
    """Return the configuration of a job whose workers do not search the driver's folders for modules.

    Ray puts the folder of the driver's script, and the current folder, before all others on the path of its
    workers, which would import a file `statistics.py` there in place of Python's. Ray leaves them out where a
    job has a folder of its own. None, for Ray's own way, if this package is in one of them and nowhere else.
    """
    first, *others = map(os.path.realpath, sys.path)
    root = str(Path(__file__).resolve().parents[3])
    if root == first and root not in others:
        return None
    from ray.job_config import JobConfig

    class OwnPath(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return OwnPath()


def _import_ray(address: str | None) -> Any:
    """Import Ray after setting what it reads from the environment on import."""
    if address is None or _host_and_port(address)[0] in _LOOPBACK:
        # Stay on loopback. Ray would replace 127.0.0.1 by this machine's outer address, also in an address
        # to join: nobody answers there if the cluster was started on loopback.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of a dead actor that was asked to stop
    try:
        import ray
    except ImportError as exc:
        raise WorkerError(f"Ray is not installed; install it, or leave it out: {WITHOUT_RAY}") from exc
    return ray


def _check_somebody_listens(address: str) -> None:
    """Raise ConfigError within seconds if nobody answers at host:port, which may be mistyped."""
    if address == "auto" or "://" in address:  # Ray knows where
        return
    host, port = _host_and_port(address)
    if not host or not (port.isascii() and port.isdecimal()):
        raise ConfigError(f'address: must be "auto" or host:port, got {address}')
    try:
        _call(address)
    except (OSError, OverflowError) as exc:
        raise ConfigError(
            f"address: nobody answers at {address} ({exc}); give the address of a running Ray cluster, or"
            " leave it out to start Ray on this machine"
        ) from exc


def _check_head_answers(ray: Any) -> None:
    """Raise ClusterGoneError within seconds if the head of the cluster that was joined does not answer.

    A study asks before every member. Ray itself would wait, and end this process after a minute.
    """
    address = ray.get_runtime_context().gcs_address
    try:
        _call(address)
    except OSError as exc:
        raise cluster_is_gone(f"its head does not answer at {address} ({exc})") from exc


def _call(address: str) -> None:
    host, port = _host_and_port(address)
    socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()


def _host_and_port(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def _restore(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def cause_of(error: Exception) -> str:
    """Return why a worker died in one line: its own error if it had one, else what Ray says of its end.

    Either is the last line of Ray's message that follows an indented one, of a traceback or of a list.
    """
    lines = str(error).rstrip().splitlines()
    causes = [line for before, line in pairwise(lines) if before[:1].isspace() and not line[:1].isspace()]
    cause = causes[-1] if causes else first_line(error)
    return cause.partition("Worker exit detail: ")[2].partition(" Some common causes")[0] or cause
