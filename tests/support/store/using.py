"""Every verb that reads a store or a study, in a process with little time and memory."""

from __future__ import annotations

import os
import resource
import signal
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from rayfbnn import api
from rayfbnn.errors import RayFBNNError
from rayfbnn.run.executor import InProcess
from rayfbnn.run.running import RunOptions, run_rounds, unfinished_batches
from rayfbnn.store.store import Store
from rayfbnn.study import Study
from rayfbnn.study.driving import drive

MOST_MEMORY = 2**30  # bytes beyond those that the process had
MOST_SECONDS = 10  # of the processor's time, for each verb
MOST_CHARACTERS = 21_000  # of a message
MOST_WAITING = 600  # seconds by the clock; other programs may be at work
_STEPS = 6  # of progress, before a resumed run is asked to stop
CASES = "x1,x2,colour,size,y,class,count,time\n.1,.2,red,1,.5,a,2,1.5\n-.3,1,blue,2,.1,b,0,.3\n"  # new.csv


def _resume(path: Path) -> None:
    store = Store.open(path)
    if store.kind in ("prior", "exact"):
        api.resume(path, workers=0, progress=False)
    with store.lock(), InProcess() as executor:
        if store.kind == "mcmc" and not unfinished_batches(store, store.spec.total_iterations):
            n = store.spec.phase[-1].iterations + 2
            spec = store.spec.with_iterations(n)
            store.extend(spec, spec.kept_draws)
        for number, _ in enumerate(run_rounds(store, executor)):
            if number == _STEPS:
                executor.request_stop()
        store.gather(0, everything=True)


STORE_VERBS: dict[str, Callable[[Path], object]] = {
    "open": lambda path: api.open(path).load(),
    "status": lambda path: str(api.status(path)),
    "show": lambda path: str(api.show(str(path))),
    "diagnose": lambda path: str(api.diagnose(path)),
    "predict": lambda path: api.predict(path, data=path.parent / "new.csv"),
    "loo": lambda path: str(api.loo(path)),
    "report": lambda path: api.report(path, out=path.parent / "report.html", progress=False),
    "export": lambda path: api.export(path, out=path.parent / "model.npz"),
    "load": lambda path: api.load(path),
    "evidence": lambda path: api.evidence(path, runs=2, temperatures=3, progress=False),
    "verify": lambda path: str(api.verify(path)),
    "repair": lambda path: str(api.verify(path, repair=True, dry_run=True)),
    "resume": _resume,
}


def _run_study(path: Path) -> None:
    study = Study.open(path)
    options = RunOptions(workers=0, address=None, max_failures=3, progress=False, log_format="text")
    for number, _ in enumerate(drive(study, options, sleep=lambda seconds: None)):
        if number == 2:
            return


STUDY_VERBS: dict[str, Callable[[Path], object]] = {
    "status": lambda path: str(Study.open(path).status()),
    "diagnose": lambda path: str(Study.open(path).diagnose()),
    "predict": lambda path: Study.open(path).predict(path.parent / "train.csv"),
    "report": lambda path: Study.open(path).report(
        path.parent / "report.html", data=path.parent / "train.csv"
    ),
    "run": _run_study,
    "add": lambda path: Study.open(path).add(1),
}


def harm(path: Path, verbs: Mapping[str, Callable[[Path], object]]) -> str:
    """Use a store or study with verbs in a child process, and return the harm that came to it, or ""."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            _in_child(path, verbs, pipe.fileno())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        *used, last = pipe.read().decode(errors="replace").split("\0")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        how = "takes too long" if number in (signal.SIGALRM, signal.SIGPROF) else f"dies of signal {number}"
        return f"{used[-1] if used else ''}: {how}"
    return last


def _in_child(path: Path, verbs: Mapping[str, Callable[[Path], object]], pipe: int) -> None:
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY,) * 2)
    warnings.simplefilter("ignore")
    for name, use in verbs.items():
        os.write(pipe, name.encode() + b"\0")
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, MOST_WAITING)
        try:
            use(path)
        except RayFBNNError as exc:
            if len(str(exc)) > MOST_CHARACTERS:
                os.write(pipe, f"{name}: a message of {len(str(exc))} characters: {str(exc)[:300]}".encode())
                return
        except BaseException:
            os.write(pipe, f"{name}: {''.join(traceback.format_exc())[-3500:]}".encode())
            return
