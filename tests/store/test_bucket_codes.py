"""The exit code of a job by what an object store answers, for every method of the storage.

The message is one line, in which no secret of the answer is.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

from rayfbnn.cli.commands import start_again
from rayfbnn.errors import RayFBNNError, StoreRefusedError
from rayfbnn.store.creation import is_ours
from rayfbnn.store.storage import bucket as bucket_module
from rayfbnn.store.storage.bucket import explained
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.storage.places import ObjectPath
from rayfbnn.store.storage.protocol import Storage
from tests.support.store.buckets import (
    BROKEN,
    CUT,
    SECONDS_OF_SILENCE,
    SILENT,
    TAG,
    Answer,
    answering,
    bucket_at,
)

pytest.importorskip("obstore")

SECRET = "hunter2"
PLACE = ObjectPath("s3", "bucket", "run.zarr")
FILE = PLACE / "posterior" / "c.0"
LOCK = PLACE / "commits" / "lock"


def lock(storage: ObjectStorage) -> None:
    with storage.lock(LOCK):
        pass


def create(storage: ObjectStorage) -> None:
    with storage.creation(PLACE, "commits/lock", is_ours):
        pass


METHODS: dict[str, Callable[[ObjectStorage], Any]] = {
    "read": lambda storage: storage.read(FILE),
    "read_start": lambda storage: storage.read_start(FILE, 3),
    "each": lambda storage: storage.each(storage.read, [FILE]),
    "listdir": lambda storage: storage.listdir(PLACE),
    "listdirs": lambda storage: storage.listdirs([PLACE / "a", PLACE / "b"]),
    "sizes": lambda storage: storage.sizes(PLACE),
    "exists": lambda storage: storage.exists(FILE),
    "modified": lambda storage: storage.modified(FILE),
    "is_taken": lambda storage: storage.is_taken(PLACE),
    "write_atomic": lambda storage: storage.write_atomic(FILE, b"x"),
    "write_exclusive": lambda storage: storage.write_exclusive(FILE, b"x"),
    "write_files": lambda storage: storage.write_files({FILE: b"x"}),
    "write_block": lambda storage: storage.write_block({FILE: b"x"}, lambda *contents: False),
    "replace": lambda storage: storage.replace(FILE, b"x", b"old"),
    "unlink": lambda storage: storage.unlink(FILE, below=PLACE),
    "rename_new": lambda storage: storage.rename_new(FILE, PLACE / "other", below=PLACE),
    "lock": lock,
    "is_locked": lambda storage: storage.is_locked(LOCK),
    "creation": create,
}
# A creation keeps the root metadata until its end, and `drop` leaves what it cannot remove to the next one.
ASK_NOTHING = {
    "write_root",
    "drop",
    "check_folders",
    "check_files",
    "free_bytes",
    "mkdir",
    "fsync_dir",
    "sweep",
    "writer_lock",
}
HEAD = {"exists", "modified"}
READS_ONE = {"read", "read_start", "each", "modified", "rename_new"}
PUTS = {"write_atomic", "write_exclusive", "write_files", "write_block"}
LISTS = {"listdir", "listdirs", "sizes", "is_taken"}


def xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()


# What is answered; the exit code; and the methods with another, 0 for a result or FileNotFoundError. HEAD has
# no body, so its 400 may mean anything, and the next request tells.
ANSWERS: dict[str, tuple[dict[str, Any], int, dict[str, int]]] = {
    "reset": ({"status": BROKEN}, 75, {}),
    # The server of the test does not answer a request for a part with a part.
    "cut": ({"status": CUT}, 75, dict.fromkeys(HEAD | PUTS, 0) | {"read_start": 1}),
    "silent": ({"status": SILENT}, 75, {}),
    "timed out": ({"status": 400, "body": xml("RequestTimeout")}, 75, {}),
    **{str(status): ({"status": status}, 75, {}) for status in (408, 409, 425, 429, 500, 502, 503, 504, 507)},
    "bad request": ({"status": 400, "body": xml("InvalidArgument")}, 1, dict.fromkeys(HEAD, 75)),
    **{str(status): ({"status": status}, 1, {}) for status in (401, 403, 412, 416, 501, 505)},
    "no bucket": ({"status": 404}, 1, dict.fromkeys(READS_ONE | {"unlink", "is_locked"}, 0)),
    "moved": ({"status": 301}, 1, {}),
    "moved away": ({"status": 301, "headers": {"Location": "http://127.0.0.1:1/x"}}, 1, {}),
    "in circles": ({"status": 307, "headers": {"Location": "{path}"}}, 1, {}),
    # An object that is a page is damaged for whoever reads it.
    "a page": (
        {"status": 200, "body": b"<html>log in</html>", "headers": {"Content-Type": "text/html"}},
        1,
        dict.fromkeys(HEAD | LISTS | {"read", "each", "is_locked", "write_exclusive", "replace"}, 0),
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Answer]:
    with answering() as answer:
        yield answer


def exit_code(call: Callable[[], Any]) -> int:
    """Return the exit code of a job that makes a call, or 0."""
    try:
        with start_again("run"):
            call()
    except typer.Exit as end:
        return end.exit_code
    except RayFBNNError as exc:
        assert "\n" not in str(exc) and SECRET not in "".join(traceback.format_exception(exc))
        return exc.exit_code
    except FileNotFoundError:
        pass
    return 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_decides_whether_a_job_is_started_again(
    server: Answer, monkeypatch: pytest.MonkeyPatch, name: str, method: str
) -> None:
    monkeypatch.setattr(bucket_module, "_PAUSES", (0.001,))
    monkeypatch.setattr(bucket_module, "getproxies", dict)
    settings, code, others = ANSWERS[name]
    for key, value in ({"body": xml("Odd") + b"\n\n" + SECRET.encode(), "headers": TAG} | settings).items():
        setattr(server, key, value)
    seconds = SECONDS_OF_SILENCE if name == "silent" else 5.0
    bucket = bucket_at(server.url, "s3", secret="nothing", seconds=seconds)
    found = exit_code(lambda: METHODS[method](ObjectStorage(bucket, lease_seconds=0.03)))
    if (name, method) == ("cut", "lock"):
        # The lease is put, but the next request may be sent on the connection that was cut.
        assert found in (0, code)
        return
    assert found == others.get(method, code)


def test_the_table_has_every_method_that_asks_the_server() -> None:
    methods = {name for name, value in vars(Storage).items() if callable(value) and name[0] != "_"}
    assert METHODS.keys() == methods - ASK_NOTHING


@pytest.mark.parametrize(
    ("words", "may_pass"),
    [
        ('ConnectError("dns error", error: "Temporary failure in name resolution")', True),
        ('ConnectError("dns error", error: "Name or service not known")', False),
        ('uri: Some( http://127.0.0.1:9/b/k, ), ConnectError("tcp connect error", 127.0.0.1:9, Os)', True),
        ('uri: Some( https://host/b/k, ), ConnectError("tcp connect error", 10.0.0.1:443, Os)', True),
        ('uri: Some( https://host/b/k, ), ConnectError("tcp connect error", [::1]:8443, Os)', False),
        ("Error performing PUT http://169.254.169.254/latest/api/token: error sending request", False),
        ("something new", False),
    ],
)
def test_a_failure_without_an_answer_passes_if_the_network_may_come_back(
    monkeypatch: pytest.MonkeyPatch, words: str, may_pass: bool
) -> None:
    monkeypatch.setattr(bucket_module, "getproxies", dict)
    assert explained(ValueError(words)).may_pass is may_pass
    assert words not in str(explained(ValueError(words)))


def test_behind_a_proxy_a_connection_to_another_port_is_no_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    words = 'uri: Some( https://host/b/k, ), ConnectError("tcp connect error", 10.0.0.1:3128, Os)'
    assert explained(ValueError(words)).may_pass


def test_an_account_that_is_not_named_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(StoreRefusedError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        ObjectStorage.from_place(ObjectPath("az", "container", "run.zarr"))
