"""A proxy before an object store that delays, drops and repeats requests, and loses answers."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

# Probabilities of what happens to a request; else it is passed on.
MISHAPS = {"delayed": 0.02, "dropped": 0.005, "answer lost": 0.005, "repeated": 0.01}
_LONGEST_DELAY = 1.5  # seconds
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = ""
    counts: Counter[str] = Counter()
    generator = random.Random(1)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no line for each request."""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        mishap = self._mishap()
        self.counts[mishap] += 1
        if mishap == "dropped":
            self.close_connection = True
            return
        if mishap == "delayed":
            time.sleep(self.generator.random() * _LONGEST_DELAY)
        answer = self._ask(body)
        if mishap == "repeated":
            answer = self._ask(body)
        if mishap == "answer lost":
            self.close_connection = True
            return
        status, headers, content = answer
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _HOP_BY_HOP | {"content-length", "date", "server"}:
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), "0")
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _mishap(self) -> str:
        point = self.generator.random()
        for name, share in MISHAPS.items():
            if point < share:
                return name
            point -= share
        return "passed on"

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            connection.request(self.command, self.path, body=body or None, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on  # noqa: N815, the names that the server asks for


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that was killed in the midst of a request."""


@contextmanager
def bad_network(url: str) -> Iterator[tuple[str, Counter[str]]]:
    """Give the address of a proxy before `url`, and the counts of what happened to requests."""
    counts: Counter[str] = Counter()
    handler = type("Handler", (_Handler,), {"upstream": urlsplit(url).netloc, "counts": counts})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", counts
    finally:
        server.shutdown()
        server.server_close()
