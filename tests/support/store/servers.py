"""An object store on this machine: moto answers S3's requests on the loopback interface."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# Not the names of any account: moto looks at none of them.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-nobody",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
BUCKET = "bucket"


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
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        _make_bucket(f"http://{host}:{port}/{BUCKET}")
        yield environment
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        server.stop()


def _make_bucket(url: str) -> None:
    from urllib.request import Request, urlopen

    with urlopen(Request(url, method="PUT")) as answer:
        assert answer.status == 200
