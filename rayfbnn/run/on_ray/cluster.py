"""Starts Ray on this machine, or joins a running cluster."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from glob import escape, glob
from itertools import pairwise
from pathlib import Path
from typing import Any

from rayfbnn.errors import ConfigError, RayStartError, WorkerError, without_credentials
from rayfbnn.output.printing import standard_error
from rayfbnn.run.on_ray.guard import Guard
from rayfbnn.run.on_ray.machine import WITHOUT_RAY, check_machine, check_token, make_token, private_folder
from rayfbnn.run.on_ray.nodes import cluster_is_gone
from rayfbnn.run.signals import GRACE_SECONDS, cancel_alarm, postponed_signals

WORKER_ENVIRONMENT = {
    # One thread per worker: two workers were up to 15 times slower with two BLAS threads each than with one.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # By default Ray's workers have a niceness 15 above that of the process that starts them, and other
    # work starves them.
    "RAY_worker_niceness": "0",
    # For chains that travel between owners of parts. By default, messages above 100 kB go through Ray's
    # object store, where each costs 1 ms more. From about 1 MB on the store is cheaper.
    "RAY_max_direct_call_object_size": str(2**19),
    "PYTHONSAFEPATH": "1",  # a worker imports nothing from its starting folder
}
_log = logging.getLogger(__name__)
_CONNECT_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_guards: list[Guard] = []  # guards of the Ray that was started here
_sessions: list[str] = []  # its folder
_HANDLER_SECONDS = 0.005
_START_SECONDS = GRACE_SECONDS  # for Ray to finish starting, after a request to stop
_OBJECT_STORE_BYTES = 100 * 2**20  # only Progress passes through it; by default a third of the memory


def check_ray(workers: int | None, address: str | None) -> None:
    """Raise an error if Ray is needed but cannot start, or cannot join its cluster. This creates nothing."""
    if workers == 0:
        return
    if address is not None:
        connect(workers, address)
    elif not _import_ray(None).is_initialized():
        _check_machine_and_token()


def connect(workers: int | None, address: str | None) -> tuple[Any, bool]:
    """Connect to Ray. Return its module, and True if it was started here and must be stopped here.

    Raises ClusterGoneError if this process joined a cluster before, and its head no longer answers.
    """
    if address is not None and without_credentials(address) != address:
        raise ConfigError("address: must not contain a user, a password or options; give host:port")
    ray = _import_ray(address)
    if address is not None:
        if ray.is_initialized():
            _check_head_answers(ray)
        _check_somebody_listens(address)
    if ray.is_initialized():
        return ray, False
    if address is not None:
        advice = "a cluster with token authentication needs RAY_AUTH_MODE=token here too"
        with _in_one_line(f"cannot join the Ray cluster at {address}", advice):
            _join(ray, address)
        return ray, False
    _check_machine_and_token()
    try:
        _start_here(ray, workers)
    except Exception as exc:
        _log.warning("Ray did not start (%s); trying once more", first_line(exc).rstrip("."))
        stop_ray(ray)
        with _in_one_line("cannot start Ray on this machine", WITHOUT_RAY, RayStartError):
            _start_here(ray, workers)
    return ray, True


def _check_machine_and_token() -> None:
    check_machine()
    check_token()


@contextmanager
def _in_one_line(where: str, advice: str, error: type[WorkerError] = WorkerError) -> Iterator[None]:
    """Turn any error that Ray raises as it starts, of whatever class, into an error of one line."""
    try:
        yield
    except Exception as exc:
        raise error(f"{where}: {first_line(exc).rstrip('.')}; {advice}") from exc


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
    log_what_ray_reports()  # permanently, because this process stays connected after its result


def _start_here(ray: Any, workers: int | None) -> None:
    make_token()
    inherited = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)  # the workers on this machine inherit it
    _guards.append(Guard())
    try:
        with private_folder() as folder:
            _start(
                ray,
                address="local",
                job_config=_own_path(),
                num_cpus=workers,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=folder,
            )
            _sessions[:] = glob(f"{escape(folder)}/session_*_{os.getpid()}")[-1:]
    except BaseException:
        _end_guards()
        raise
    finally:
        for name, value in inherited.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(ray: Any, **options: Any) -> None:
    """Start Ray. A signal that comes meanwhile waits until Ray has started.

    If a start is interrupted, the process may crash as it ends, and its exit code then tells no scheduler to
    start the job again. Ray therefore starts in a thread, where it sets no handler of SIGTERM either. A
    signal that comes meanwhile raises KeyboardInterrupt, once Ray is stopped again. If no Python code handles
    SIGTERM, Ray starts in this thread and sets its own handler.
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
            threading.Event().wait()  # forever: the kernel kills Ray's processes once this thread ends

    try:
        threading.Thread(target=start, name="rayfbnn-ray", daemon=True).start()
        _keep_handler(previous, has_ended)
    except KeyboardInterrupt as exc:
        interrupt = exc
        _keep_handler(previous, has_ended, _START_SECONDS)
    finally:
        signal.signal(signal.SIGTERM, previous)  # Ray's C++ code has set its own handler
        cancel_alarm()
    if interrupt is not None:
        if has_ended.is_set():
            stop_ray(ray)
        raise KeyboardInterrupt("stopped while Ray was starting") from interrupt
    if errors:  # Ray may also try to end this process by SystemExit
        error = errors[0]
        raise (
            error if isinstance(error, Exception) else RuntimeError("its processes do not answer")
        ) from error


def _keep_handler(handler: Any, has_ended: threading.Event, seconds: float = math.inf) -> None:
    """Keep a handler of SIGTERM until Ray has started, or for some seconds.

    Ray's C++ code sets its own handler meanwhile, which would print a stack trace.
    """
    deadline = time.monotonic() + seconds
    while not has_ended.wait(_HANDLER_SECONDS) and time.monotonic() < deadline:
        signal.signal(signal.SIGTERM, handler)


def session_folder() -> str:
    """Return the folder of the Ray that was started here, or "" if there is none."""
    return _sessions[-1] if _sessions else ""


def stop_ray(ray: Any) -> None:
    """Stop the Ray that was started here, including processes that do not end when told to."""
    with postponed_signals():
        ray.shutdown()
        _end_guards()


def _end_guards() -> None:
    while _guards:
        _guards.pop().end()


def _own_path() -> Any:
    """Return a job configuration with workers that do not search the driver's folders for modules.

    By default Ray puts the folder of the driver's script, and the current folder, first on the path of its
    workers. The workers would import a file `statistics.py` there instead of Python's module. Ray leaves
    these folders out if a job has its own folder. Returns None, for Ray's default, if this package is in one
    of these folders and nowhere else.
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
    if address is None or _host_and_port(address)[0] in _LOOPBACK:
        # Stay on loopback. Ray would replace 127.0.0.1 by this machine's external address, even in an address
        # to join, and nobody answers there if the cluster was started on loopback.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # from dead actors that were asked to stop
    try:
        import ray
    except ImportError as exc:
        raise WorkerError(f"Ray is not installed; install it, or {WITHOUT_RAY}") from exc
    return ray


def _check_somebody_listens(address: str) -> None:
    """Raise ConfigError within seconds if nobody answers at host:port, which may be mistyped."""
    if address == "auto" or "://" in address:  # Ray finds the place
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
    """Raise ClusterGoneError within seconds if the head of the joined cluster does not answer.

    A study checks this before every member. Ray itself would wait, and end this process after a minute.
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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def cause_of(error: Exception) -> str:
    """Return in one line why a worker died: its own error if it had one, otherwise Ray's explanation.

    Either is the last line of Ray's message that follows an indented line of a traceback or of a list.
    """
    lines = str(error).rstrip().splitlines()
    causes = [line for before, line in pairwise(lines) if before[:1].isspace() and not line[:1].isspace()]
    cause = causes[-1] if causes else first_line(error)
    return cause.partition("Worker exit detail: ")[2].partition(" Some common causes")[0] or cause


@contextmanager
def result_alone_on_stdout() -> Iterator[None]:
    """Keep what Ray prints away from standard output."""
    before = log_what_ray_reports()
    try:
        with redirect_stdout(standard_error()):
            yield
    finally:
        _replace_printer(before)


def log_what_ray_reports() -> Any:
    """Send Ray's reports of dead nodes and workers to the log, at level DEBUG.

    Ray prints some fifty lines for each node, from the log of its raylet, some seconds after its death. A
    driver may have written its result by then. The executor reports the death in one line. Returns the
    function of Ray that printed before.
    """
    return _replace_printer(_to_log)


def _replace_printer(printer: Any) -> Any:
    """Let a function print Ray's reports, and return the previous one; None if this Ray has no such name.

    Ray has no public function for this. Without it the fifty lines go to standard error.
    """
    try:
        import ray._private.worker as ray_worker

        before = ray_worker.print_to_stdstream
    except (ImportError, AttributeError):
        return None
    ray_worker.print_to_stdstream = printer
    return before


def _to_log(data: dict[str, Any], *unused: object, **also_unused: object) -> None:
    _log.debug("Ray: %s", "\n".join(data["lines"]).strip())
