"""Stores on a real disk with real processes: killed, two at once, read while written, out of space."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from rayfbnn.errors import StoreBusyError
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.protocol import PARTIAL
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.store.crashes import undisturbed
from tests.support.store.toy import contents, create, run_to_end, step

_ROOT = Path(__file__).parent.parent.parent


def start(code: str, *args: object) -> subprocess.Popen[str]:
    """Start a Python process that runs `code` with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


RUN = """
    import sys
    from rayfbnn.store.storage.posix import FileSystem
    from rayfbnn.store.storage.system_calls import SystemCalls
    from rayfbnn.store.store import Store
    from tests.support.store.damages import Killed
    from tests.support.store.toy import run_to_end

    run_to_end(Store.open(sys.argv[1], fs=FileSystem(Killed(SystemCalls(), at=int(sys.argv[2])))))
"""


def test_sigkill_at_calls_to_the_disk_loses_no_bit(tmp_path: Path) -> None:
    """Each process kills itself at some call and the next continues, until one finishes."""
    path = tmp_path / "toy.zarr"
    create(FileSystem(), path)
    numbers = Streams(9, np.arange(1, dtype=np.uint64)).uniform(Purpose.PROPOSAL, (5,))[0]
    for number in numbers:
        process = start(RUN, path, 100 + int(number * 300))
        output, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, output
        assert Store.open(path).verify().ok
    run_to_end(Store.open(path))
    assert contents(Store.open(path)) == undisturbed()
    assert not list(path.rglob(f"*{PARTIAL}"))


def test_the_second_to_run_a_store_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "toy.zarr"
    create(FileSystem(), path)
    hold = """
        import sys
        from rayfbnn.store.store import Store
        with Store.open(sys.argv[1]).lock():
            print("locked", flush=True)
            sys.stdin.readline()
    """
    process = start(hold, path)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(StoreBusyError, match=f"in use by process {process.pid} on ") as caught:
        with Store.open(path).lock():
            raise AssertionError("two hold the lock")
    assert caught.value.exit_code == 73
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    process.kill()  # the kernel releases a dead process's lock, and the note of its owner is out of date
    process.communicate()
    with Store.open(path).lock():
        pass
    assert not (path / "commits/holder.json").exists()


def test_a_reader_of_a_growing_store_sees_only_whole_blocks(tmp_path: Path) -> None:
    """FAULTS 18: the readers are this library and xarray alone, while another process commits and gathers.

    xarray alone sees draws once they are gathered, and NaN before.
    """
    import warnings

    import xarray as xr

    path = tmp_path / "toy.zarr"
    create(FileSystem(), path)
    whole = np.frombuffer(undisturbed()["positions"], dtype=np.float32).reshape(3, 5, -1)
    write = """
        import sys, time
        from rayfbnn.store.store import Store
        from tests.support.store.toy import step
        store = Store.open(sys.argv[1])
        print("ready", flush=True)
        with store.lock():
            while any([step(store, batch) for batch in range(2)]):
                time.sleep(0.1)
                for batch in range(2):
                    store.gather(batch, everything=True)
                time.sleep(0.1)
    """
    process = start(write, path)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    seen, n_gathered = set(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while process.poll() is None:
            store = Store.open(path)
            positions = store.read_positions()
            n_draws = positions.shape[1]
            assert (positions == whole[:, :n_draws]).all()
            assert store.datatree()["posterior"]["io"].load().sizes["draw"] >= n_draws
            tree = xr.open_datatree(path, engine="zarr", consolidated=False)
            values = tree["posterior"]["io"].values[:, :, 0, 0]
            assert ((values == whole[:, :, 0]) | np.isnan(values)).all()
            n_gathered = max(n_gathered, int((~np.isnan(values)).all(axis=0).sum()))
            seen.add(n_draws)
    process.communicate()
    assert process.returncode == 0
    assert len(seen) > 1 and n_gathered > 0


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    """FAULTS 10 with the real system: old chunks stay whole, no litter, and resume works with space again."""
    path = tmp_path / "toy.zarr"
    step(create(FileSystem(), path), 0)
    limited = """
        import sys
        from rayfbnn.errors import StoreFullError
        from rayfbnn.store.store import Store
        from tests.support.output.forked import small_files
        from tests.support.store.toy import run_to_end
        store = Store.open(sys.argv[1])
        try:
            with small_files(400):
                run_to_end(store)
        except StoreFullError as error:
            print(error)
            sys.exit(error.exit_code)
    """
    process = start(limited, path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert "File too large" in output and "draws committed" in output
    assert not list(path.rglob(f"*{PARTIAL}"))
    run_to_end(Store.open(path))
    assert contents(Store.open(path)) == undisturbed()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_store_is_an_error_before_sampling_starts(tmp_path: Path) -> None:
    path = tmp_path / "toy.zarr"
    create(FileSystem(), path)
    (path / "commits").chmod(0o500)
    with pytest.raises(Exception, match="Permission denied"), Store.open(path).lock():
        pass


def test_progress_of_a_live_run_is_cheap_to_read(tmp_path: Path) -> None:
    path = tmp_path / "toy.zarr"
    run_to_end(create(FileSystem(), path))
    store = Store.open(path)
    begin = time.perf_counter()
    for _ in range(20):
        assert store.progress(0).totals == {"updates": 8.0}
    assert (time.perf_counter() - begin) / 20 < 0.01  # measured: 0.0001
