"""How commands end: twelve ends of four commands, and the table of docs/running.md that says what was seen.

    python -m tests.ends.table [--write]

Each command is a process of its own on a run that is slow enough to be disturbed. Its end is brought about
while it is at work; then its exit code, what it keeps, and the processes that are there five seconds later
are looked at. --write puts what was seen into the page.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from tests.ends.command import PROGRAM, VERBS, Command, Seen
from tests.support.drivers import descendants
from tests.support.output.forked import small_disk
from tests.support.pages import ROOT

PAGE = ROOT / "docs" / "running.md"


End: TypeAlias = Callable[[str, Path], Seen | None]


def of_signal(number: signal.Signals) -> End:
    """Return the end of a command that gets a signal."""

    def see(verb: str, folder: Path) -> Seen:
        workers = ("--workers", 2 if verb == "study run" else 0)
        command = Command(verb, folder, workers)
        command.wait_for_work()
        command.process.send_signal(number)
        return command.end()

    return see


def of_full_store(verb: str, folder: Path) -> Seen | None:
    """See a command whose store is on a disk that becomes full; None where no such disk can be made."""
    if verb == "predict":
        return None  # it writes no store
    with small_disk(folder / "disk", "32m") as disk:
        if disk is None:
            return None
        command = Command(verb, folder, store_folder=disk)
        command.wait_for_work()
        _fill(disk)
        seen = command.end()
        (disk / "filler").unlink()
        return Seen(seen.code, command.wrong(), seen.left)


def of_full_output(verb: str, folder: Path) -> Seen | None:
    """See a command whose results go to a disk that is full."""
    if verb != "predict":
        with open("/dev/full", "w") as full:
            command = Command(verb, folder, stderr=full)
            command.wait_for_work()
            command.process.send_signal(signal.SIGTERM)
            return command.end()
    with small_disk(folder / "disk", "32m") as disk:
        if disk is None:
            return None
        _fill(disk)
        return Command(verb, folder, store_folder=disk).end()


def of_closed_errors(verb: str, folder: Path) -> Seen:
    """See a command without standard error that is stopped by a signal."""
    program, PROGRAM[:] = PROGRAM[:], ["sh", "-c", 'exec "$@" 2>&-', "sh", *PROGRAM]
    try:
        command = Command(verb, folder)
    finally:
        PROGRAM[:] = program
    command.wait_for_work()
    if verb != "predict":
        command.process.send_signal(signal.SIGTERM)
    return command.end()


def of_gone_reader(verb: str, folder: Path) -> Seen:
    """See a command whose standard error and output are read by nobody any more."""
    reader, writer = os.pipe()
    command = Command(verb, folder, stderr=writer, stdout=writer)
    os.close(writer)
    command.wait_for_work()
    os.close(reader)
    if verb != "predict":
        time.sleep(1)
        command.process.send_signal(signal.SIGTERM)
    return command.end()


def of_lost_head(verb: str, folder: Path) -> Seen | None:
    """See a command on a Ray cluster whose head is killed."""
    if verb == "predict":
        return None
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        command = Command(verb, folder, ("--address", cluster.address))
        command.wait_for_work()
        for processes in list(cluster.head_node.all_processes.values()):
            for process in processes:
                process.process.kill()
        return command.end()
    finally:
        cluster.shutdown()


def of_stopped_worker(verb: str, folder: Path) -> Seen | None:
    """See a command that gets SIGTERM while one of its workers is stopped."""
    if verb == "predict":
        return None
    command = Command(verb, folder, ("--workers", 2))
    command.wait_for_work()
    workers = [pid for pid, line in descendants(command.process.pid) if _is_worker(line)]
    os.kill(workers[0], signal.SIGSTOP)
    command.process.send_signal(signal.SIGTERM)
    return command.end()


def _is_worker(command: str) -> bool:
    return command.startswith(("ray::Worker", "ray::MemberWorker"))


def _fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


ENDS: dict[str, End] = {
    "SIGINT (Ctrl-C)": of_signal(signal.SIGINT),
    "SIGTERM": of_signal(signal.SIGTERM),
    "SIGHUP": of_signal(signal.SIGHUP),
    "SIGXCPU": of_signal(signal.SIGXCPU),
    "SIGUSR1": of_signal(signal.SIGUSR1),
    "SIGKILL": of_signal(signal.SIGKILL),
    "disk of the store full": of_full_store,
    "disk of the output full": of_full_output,
    "standard error closed": of_closed_errors,
    "reader of a pipe gone": of_gone_reader,
    "head of the Ray cluster lost": of_lost_head,
    "SIGTERM, and a worker stopped": of_stopped_worker,
}
HEADER = ["end", *(f"`{verb}`" for verb in VERBS), "kept", "processes after 5 s"]


def row(end: str, folder: Path) -> list[str]:
    """Bring about an end of every command, and return its row of the table."""
    seen: dict[str, Seen | None] = {}
    for number, verb in enumerate(VERBS):
        place = folder / f"{number}"
        place.mkdir(parents=True)
        seen[verb] = ENDS[end](verb, place)
    there = [one for one in seen.values() if one is not None]
    wrong = "; ".join(one.wrong for one in there if one.wrong)
    left = [process for one in there for process in one.left]
    codes = [str(one.code % 256 if one.code >= 0 else 128 - one.code) if one else "" for one in seen.values()]
    return [end, *codes, wrong or "all that was committed", "; ".join(left) or "none"]


def rows_of_page() -> list[list[str]]:
    """Return the rows of the table in the page."""
    lines = PAGE.read_text().splitlines()
    first = lines.index(_line(HEADER)) + 2
    table = [line for line in lines[first:] if line.startswith("|") or not line]
    rows = table[: table.index("")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def _line(cells: list[str]) -> str:
    return re.sub(" +", " ", f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the rows into docs/running.md")
    parser.add_argument("ends", nargs="*", help="the ends; all of those in the page if none is given")
    arguments = parser.parse_args()
    for end in arguments.ends or [row[0] for row in rows_of_page()]:
        with tempfile.TemporaryDirectory() as folder:
            line = _line(row(end, Path(folder)))
        print(line, flush=True)
        if arguments.write:
            old = rf"^\| {re.escape(end)} \|.*$"
            PAGE.write_text(re.sub(old, line.replace("\\", r"\\"), PAGE.read_text(), flags=re.M))


if __name__ == "__main__":
    main()
