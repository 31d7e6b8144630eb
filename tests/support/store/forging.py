"""Stores that someone has made to do harm: every file is sealed, and every record follows the one before."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import resource
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rayfbnn.errors import RayFBNNError
from rayfbnn.store.payload import joined, split
from rayfbnn.store.records import HEAD, NO_SEAL, SEAL, seal, seal_of
from rayfbnn.store.root import HOLDER
from rayfbnn.store.store import Store
from rayfbnn.store.verify import verify
from tests.support.store.toy import contents, step

VERDICT = {
    "iterations": 5,
    "draws": 5,
    "decisive": "all",
    "predictions": "converged",
    "hyperparameters": "not converged",
    "ok": False,
    "seconds": 1.5,
    "next_iterations": 7,
}
MOST_MEMORY = 2**30  # bytes beyond those that the process had
MOST_SECONDS = 10  # of the processor's time, for each step; other programs add little to it
MOST_WAITING = 60  # seconds by the clock


def read(file: Path) -> tuple[dict[str, Any], bytes | None]:
    """Return the record in a file, and the arrays after it if it is that of a block or segment."""
    raw: bytes | memoryview = file.read_bytes()
    payload = None
    if file.suffix in (".block", ".segment"):
        raw, payload = split(bytes(raw), file)
    content: dict[str, Any] = json.loads(bytes(raw))
    return content, None if payload is None else bytes(payload)


def document(file: Path) -> dict[str, Any]:
    return read(file)[0]


def sealed(content: dict[str, Any], payload: bytes | None = None) -> bytes:
    """The document with a seal that fits, as whoever forges one would make it, and arrays after it."""
    place = content["attributes"] if isinstance(content.get("attributes"), dict) else content
    place.pop(SEAL, None)
    place[SEAL] = NO_SEAL
    try:
        raw = seal(content)
    except ValueError:  # not a number that JSON has; the json module reads it all the same
        raw = json.dumps(content, indent=1).encode()
        raw = raw.replace(NO_SEAL.encode(), hashlib.sha256(raw).hexdigest().encode())
    return raw if payload is None else joined(raw, payload)


def forge(file: Path, change: Callable[[dict[str, Any]], object], payload: bytes | None = None) -> None:
    """Change the record in a file, and perhaps the arrays after it, and seal all that follows from it again.

    Nothing follows from a head, from a note of the driver, or from the records of a study.
    """
    content, arrays = read(file)
    if payload is not None:
        arrays = payload
        content["payload"] = hashlib.sha256(payload).hexdigest()
    change(content)
    file.write_bytes(sealed(content, arrays))
    root = next(folder for folder in file.parents if (folder / _root(folder)).exists())
    if file.name not in (HEAD, HOLDER) and (root.suffix == ".zarr" or file.parent == root):
        chain_again(root)


def places(value: Any, *before: Any) -> Iterator[tuple[Any, ...]]:
    """The path of every key and element of a JSON document, but of no seal."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        if key != SEAL:
            yield (*before, key)
            yield from places(one, *before, key)


def set_at(content: Any, path: Sequence[Any], value: object) -> None:
    """Put a value at a path of keys; LEFT_OUT removes the key."""
    for key in path[:-1]:
        content = content[key]
    if value is LEFT_OUT:
        del content[path[-1]]
    else:
        content[path[-1]] = copy.copy(value)


LEFT_OUT = object()


def _root(folder: Path) -> str:
    return "zarr.json" if folder.name.endswith(".zarr") else "study.json"


def chain_again(root: Path) -> None:
    """Let every record name the store or study and the record before it, and every head the last."""
    try:
        identity = seal_of((root / _root(root)).read_bytes(), root)
    except RayFBNNError:
        return
    for folder in ("looks", "additions", "failures"):
        for file in (root / folder).rglob("*.json"):
            file.write_bytes(sealed(document(file) | {"study": identity}))
    commits = root / "commits"
    for file in sorted([*commits.glob("extension*.json"), *commits.glob("verdicts/*.json")]):
        file.write_bytes(sealed(document(file) | {"store": identity}))
    last = ""
    for file in sorted(commits.glob("tuning/*.json")):
        file.write_bytes(sealed(document(file) | {"store": identity, "previous": last}))
        last = seal_of(file.read_bytes(), file)
    for batch in sorted(commits.glob("batch*")):
        last, n_blocks = "", 0
        for file in sorted([*batch.glob("0*.block"), *batch.glob("0*.segment")]):
            last, n_blocks = _chained(file, identity, last, n_blocks)
        head = document(batch / HEAD)
        if isinstance(head.get("blocks"), int) and head["blocks"] <= n_blocks:
            head |= {"blocks": n_blocks, "last": last}
        (batch / HEAD).write_bytes(sealed(head | {"store": identity}))


def _chained(file: Path, identity: str, last: str, n_blocks: int) -> tuple[str, int]:
    """Let a block or segment name the root and the block before; return its digest, and its number plus 1."""
    try:
        content, payload = read(file)
        raw = sealed(content | {"store": identity, "previous": last})
    except (RayFBNNError, OSError, ValueError):
        return last, n_blocks
    file.write_bytes(joined(raw, payload or b""))
    segment, block = content.get("segment"), content.get("block")
    end = segment.get("last") if isinstance(segment, dict) else seal_of(raw, file)
    return str(end), (block if isinstance(block, int) else n_blocks) + 1


def limited(work: Callable[[], Iterator[str]], *, waiting: float) -> list[str]:
    """Return what `work` yields in a child process; at the end that it hangs, or dies, if it does.

    Each step has MOST_SECONDS of the processor's time, and `waiting` seconds by the clock. All together have
    MOST_MEMORY.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY,) * 2)
        _set_timers(waiting)
        for said in work():
            os.write(writing, said.encode()[:4000] + b"\0")
            _set_timers(waiting)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace").split("\0")[:-1]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        said.append("hangs" if number in (signal.SIGALRM, signal.SIGPROF) else f"dies of {number}")
    return said


def _set_timers(waiting: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, waiting)


def outcome(store: Path) -> str:
    """Return "refused" or "used", or the harm that came to a process that used the store.

    It opens the store, reads all of it, resumes it, verifies it and plans its repair, and may open and change
    nothing outside the store.
    """
    return limited(lambda: _use(store), waiting=MOST_WAITING)[-1]


# The arguments of an event that are paths, each with that of the descriptor from which it is taken.
_PATHS: dict[str, dict[int, int | None]] = {
    "open": {0: None},
    "os.listdir": {0: None},
    "os.rename": {0: 2, 1: 3},
    "os.link": {0: 2, 1: 3},
    "os.remove": {0: 1},
    "os.rmdir": {0: 1},
    "os.mkdir": {0: 2},
}


def _from_folder(descriptor: int) -> Path:
    return Path.cwd() if descriptor < 0 else Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def _use(store: Path) -> Iterator[str]:
    outside: list[str] = []
    allowed = [str(store), *(sysconfig.get_paths()[name] for name in ("stdlib", "platlib", "purelib"))]
    allowed += [sys.base_prefix, str(Path(__file__).parents[3]), "/proc/", "/sys/", "/etc/localtime"]
    allowed += [entry for entry in sys.path if entry]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        for number, folder in _PATHS.get(event, {}).items():
            path, at = arguments[number], arguments[folder] if folder is not None else -1
            if isinstance(path, str | os.PathLike):
                parent, name = os.path.split(os.path.abspath(_from_folder(at) / path))
                real = os.path.join(os.path.realpath(parent), name)
                if not real.startswith(tuple(allowed)):
                    outside.append(f"{event} {real}")

    sys.addaudithook(watch)
    is_refused = False
    for use in (_read, _load, _resume, verify, _plan_repair):
        try:
            use(store)
        except RayFBNNError:
            is_refused = True
        except BaseException:
            yield "traceback " + "".join(traceback.format_exc())[-3500:]
            return
    if outside:
        yield f"leaves the store: {outside[0]}"
    else:
        yield "refused" if is_refused else "used"


def _read(store: Path) -> None:
    opened = Store.open(store)
    contents(opened)
    opened.tuning.latest()
    opened.verdicts.all()


def _load(store: Path) -> None:
    Store.open(store).datatree().load()


def _resume(store: Path) -> None:
    opened = Store.open(store)
    opened.data.hash  # noqa: B018  the training cases are read
    with opened.lock():
        for batch in range(min(opened.n_batches, 3)):
            step(opened, batch)


def _plan_repair(store: Path) -> None:
    Store.open(store, check_records=False).repair(dry_run=True)
