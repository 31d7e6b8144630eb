"""Object stores on the loopback interface: moto answers requests of S3, and Azurite those of Azure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

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
