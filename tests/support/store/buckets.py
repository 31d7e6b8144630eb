"""Buckets for tests: in memory, on a server of S3 or Azure, and on a server that gives one answer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from rayfbnn.store.storage.bucket import Bucket, BucketError, Changed, Tag, TooLarge
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.storage.places import ObjectPath
from rayfbnn.store.store import Store
from tests.support.store.disks import Crash
from tests.support.store.toy import create, step

PLACE = ObjectPath("s3", "bucket", "runs/toy.zarr")
CHANGING = {"put", "put_new", "put_unchanged", "remove", "delete"}


class MemoryBucket(Bucket):
    """Objects in a dictionary, each with the number of the put that made it."""

    def __init__(self, objects: dict[str, tuple[bytes, int]] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.number = 1000
        self.turn = threading.RLock()  # one call at a time, as a server answers

    def copy(self) -> MemoryBucket:
        return MemoryBucket(dict(self.objects))

    def is_there(self, key: str) -> bool:
        return self.objects.get(key, (b"", 0))[0] != b""

    def get(self, key: str, at_most: int = sys.maxsize) -> tuple[bytes, Tag]:
        with self.turn:
            if not self.is_there(key):
                raise FileNotFoundError(key)
            content, number = self.objects[key]
            if len(content) > at_most:
                raise TooLarge
            return content, {"e_tag": str(number)}

    def get_start(self, key: str, n_bytes: int) -> bytes:
        return self.get(key)[0][:n_bytes]

    def modified(self, key: str) -> float:
        with self.turn:
            if key not in self.objects:
                raise FileNotFoundError(key)
            return float(self.objects[key][1])  # a second for each put

    def put(self, key: str, data: bytes) -> Tag:
        with self.turn:
            self.number += 1
            self.objects[key] = data, self.number
            return {"e_tag": str(self.number)}

    def put_new(self, key: str, data: bytes) -> Tag:
        with self.turn:
            if self.is_there(key):
                raise Changed
            return self.put(key, data)

    def put_unchanged(self, key: str, data: bytes, tag: Tag) -> Tag:
        with self.turn:
            if key not in self.objects or {"e_tag": str(self.objects[key][1])} != tag:
                raise Changed
            return self.put(key, data)

    def delete(self, key: str) -> None:
        with self.turn:
            self.objects.pop(key, None)

    def exists(self, key: str) -> bool:
        return self.is_there(key)

    def names(self, key: str) -> list[str]:
        start = f"{key}/"
        with self.turn:
            return sorted({name[len(start) :].partition("/")[0] for name in self.keys(key)})

    def sizes(self, key: str) -> dict[str, int]:
        start = f"{key}/"
        with self.turn:
            below = {name[len(start) :]: len(self.objects[name][0]) for name in self.keys(key)}
        return {name: size for name, size in below.items() if "/" not in name}

    def keys(self, key: str) -> list[str]:
        with self.turn:
            return sorted(name for name in self.objects if name.startswith(f"{key}/") and self.is_there(name))


class FailingBucket(MemoryBucket):
    """Passes calls on to `inner`, but for the changing call number `at` (from 0), where `fault` happens.

    crash        the process dies before the call, and every later call fails too
    crash after  the same, after the call was done
    lost         the call is done, and its answer lost
    error        the call is not done, and fails
    pause        `meanwhile` runs before the call: what other processes do while this one stands still
    """

    def __init__(
        self,
        inner: MemoryBucket,
        *,
        at: int = -1,
        fault: str = "crash",
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.inner, self.at, self.fault, self.meanwhile = inner, at, fault, meanwhile
        self.n_changes = 0
        self.is_dead = False

    def pass_on(self, name: str, *args: Any) -> Any:
        with self.inner.turn:
            if self.is_dead:
                raise Crash
            number = self.n_changes
            self.n_changes += name in CHANGING
        call = getattr(self.inner, name)
        if name not in CHANGING or number != self.at:
            return call(*args)
        if self.fault == "pause":
            self.meanwhile()
            return call(*args)
        if self.fault in ("crash after", "lost"):
            with suppress(Changed):  # a refusal is an answer too
                call(*args)
        if self.fault.startswith("crash"):
            self.is_dead = True
            raise Crash
        raise BucketError("GenericError: no answer")


def _passing(name: str) -> Callable[..., Any]:
    def call(self: FailingBucket, *args: Any) -> Any:
        return self.pass_on(name, *args)

    return call


for _name in (*CHANGING, "get", "get_start", "modified", "exists", "names", "sizes", "keys"):
    setattr(FailingBucket, _name, _passing(_name))


def storage(bucket: Bucket) -> ObjectStorage:
    """Return the storage of a process that waits hardly at all for the lease of one that died."""
    return ObjectStorage(bucket, lease_seconds=0.03)


def opened(bucket: Bucket) -> Store:
    return Store.open(PLACE, fs=storage(bucket))


def half_way() -> MemoryBucket:
    """A store as `toy.half_run` makes it: the next block fills up chunks that the third began."""
    bucket = MemoryBucket()
    store = create(storage(bucket), PLACE)
    while step(store, 1):
        pass
    for _ in range(3):
        step(store, 0)
    return bucket


# A connection that ends before its answer, one that ends within it, and one without an answer.
BROKEN, CUT, SILENT = "broken", "cut", "silent"
TAG = {"ETag": '"tag"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
SECONDS_OF_SILENCE = 0.1


@dataclass
class Answer:
    """What the server answers: an HTTP status, or BROKEN, CUT or SILENT; its headers and the body."""

    url: str
    status: int | str = 200
    body: bytes = b""
    n_left: int | None = None  # requests that are answered so; later ones with 200
    n_requests: int = 0
    headers: Mapping[str, str] = field(default_factory=lambda: TAG)


@contextmanager
def answering() -> Iterator[Answer]:
    """Run the server, and give the answer, which a test may change at any time."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: the second would wait for the first to be acknowledged

        def log_message(self, format: str, *arguments: Any) -> None:
            """Write no line for each request."""

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            answer.n_requests += 1
            status: int | str = answer.status
            if answer.n_left is not None:
                status = status if answer.n_left > 0 else 200
                answer.n_left -= 1
            self.close_connection = status in (BROKEN, CUT, SILENT)
            if status in (BROKEN, SILENT):
                time.sleep(2 * SECONDS_OF_SILENCE if status == SILENT else 0)
                return
            self.send_response(200 if isinstance(status, str) else status)
            self.send_header("Content-Length", str(len(answer.body) + 100 * (status == CUT)))
            for name, value in answer.headers.items():
                self.send_header(name, value.format(path=self.path))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _answer  # noqa: N815, names that the server asks for

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    answer = Answer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield answer
    finally:
        server.shutdown()
        server.server_close()


def bucket_at(url: str, scheme: str, *, secret: str, seconds: float = 5.0) -> Bucket:
    """Return a bucket of the server that asks once, with credentials that hold `secret`."""
    from obstore.store import AzureStore, S3Store

    common: dict[str, Any] = {
        "endpoint": url,
        "client_options": {"allow_http": True, "timeout": timedelta(seconds=seconds)},
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
    }
    if scheme == "s3":
        keys = {"access_key_id": secret, "secret_access_key": secret, "region": "us-east-1"}
        return Bucket(S3Store("bucket", **keys, **common))
    return Bucket(AzureStore("bucket", account_name="account", sas_key=f"sv=1&sig={secret}", **common))


# Not the names of any account: moto looks at none of them.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-nobody",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
BUCKET = "bucket"
# The account that Azurite has in every installation, by its documents.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURE_ENVIRONMENT = {
    "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
    "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
    "AZURE_ALLOW_HTTP": "true",
}


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Run a server with one empty bucket, and give the environment by which processes find it."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("obstore")
    from obstore.store import S3Store  # noqa: F401

    logging.getLogger("werkzeug").setLevel(
        logging.ERROR
    )  # a line for each request takes longer than the request
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    with _in_environment(environment):
        try:
            with urlopen(Request(f"http://{host}:{port}/{BUCKET}", method="PUT")) as answer:
                assert answer.status == 200
            yield environment
        finally:
            server.stop()


@contextmanager
def azure_server() -> Iterator[dict[str, str]]:
    """Run a server with one empty container, and give the environment by which processes find it."""
    pytest.importorskip("obstore")
    program = _azurite()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder]
        command = [program, *options, "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        environment = {**AZURE_ENVIRONMENT, "AZURE_STORAGE_ENDPOINT": endpoint}
        try:
            _wait_for(port, process)
            _make_container(f"{endpoint}/{BUCKET}")
            with _in_environment(environment):
                yield environment
        finally:
            process.terminate()
            process.wait()


def _azurite() -> str:
    """Return the path of Azurite's program; the test is skipped where there is none."""
    here = Path(__file__).parents[3] / ".azurite" / "node_modules" / ".bin" / "azurite-blob"
    program = str(here) if here.exists() else shutil.which("azurite-blob")
    if program is None or shutil.which("node") is None:
        pytest.skip("needs Azurite: npm install --prefix .azurite azurite")
    return program


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None, "Azurite ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("Azurite does not listen")


def _make_container(url: str) -> None:
    """Make a container by a request that is signed with the key of the account (Shared Key)."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    # Azurite's account is in the path, and so is in the resource twice.
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    text = "PUT" + "\n" * 12 + lines + resource
    digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    with urlopen(Request(f"{url}?restype=container", method="PUT", headers=headers)) as answer:
        assert answer.status == 201


@contextmanager
def _in_environment(environment: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
