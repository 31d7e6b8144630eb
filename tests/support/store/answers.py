"""A server on loopback that gives every request one answer, whatever it asks for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rayfbnn.store.storage.bucket import Bucket

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
