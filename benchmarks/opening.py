"""The time until a store in a bucket is open, and until its lock is held, if each request takes a while.

    python benchmarks/opening.py --batches 32 128 --delay 0.03

The bucket is moto's, on the loopback interface, behind a proxy that holds each request back. Both run in a
process of their own. Each batch has two segments and three blocks that are not gathered, as a run that was
killed leaves them.
"""

from __future__ import annotations

import argparse
import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from machine import ROOT, append, conditions, heading

from rayfbnn.state import ChainState
from rayfbnn.store.records import Block
from rayfbnn.store.store import Store

sys.path.append(str(ROOT))  # for the server that the tests use

from tests.support.store.buckets import BUCKET, ENVIRONMENT, s3_server  # noqa: E402
from tests.support.store.toy import toy_data, toy_spec  # noqa: E402

N_SEGMENTS, N_BLOCKS = 2, 3
_COUNT = "/requests"  # the proxy answers this path itself, with the number of its requests so far


def proxy(target: str, delay: float) -> ThreadingHTTPServer:
    """Return a server that passes requests on to `target`, each after `delay` seconds."""
    to = urlsplit(target)
    lock, connections = threading.Lock(), threading.local()
    n_requests = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def log_message(self, format: str, *arguments: Any) -> None:
            """Write no line for each request."""

        def _pass_on(self) -> None:
            nonlocal n_requests
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path == _COUNT:
                self._answer(200, {}, str(n_requests).encode())
                return
            with lock:
                n_requests += 1
            time.sleep(delay)
            if not hasattr(connections, "to"):
                connections.to = http.client.HTTPConnection(str(to.hostname), to.port)
            connections.to.request(self.command, self.path, body, dict(self.headers))
            answer = connections.to.getresponse()
            content = answer.read()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN}
            n_bytes = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self._answer(answer.status, headers, content, n_bytes)

        def _answer(
            self, status: int, headers: dict[str, str], content: bytes, n_bytes: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", n_bytes or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on  # noqa: N815, names that the server asks for

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


_OWN = ("content-length", "transfer-encoding", "connection", "date", "server")


def serve(delay: float) -> None:
    """Run moto and the proxy until standard input ends, and print both addresses."""
    with s3_server() as environment:
        target = environment["AWS_ENDPOINT_URL"]
        server = proxy(target, delay)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(target, f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        sys.stdin.read()
        server.shutdown()


@contextmanager
def slow_server(delay: float) -> Iterator[tuple[str, str]]:
    """Run `serve` in another process, and give the addresses of moto and of the proxy."""
    command = [sys.executable, __file__, "--serve", "--delay", str(delay)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        direct, slow = process.stdout.readline().split()
        yield direct, slow
    finally:
        process.stdin.close()
        process.wait()


def n_requests(url: str) -> int:
    """The number of requests that the proxy has passed on."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", _COUNT)
    number = int(connection.getresponse().read())
    connection.close()
    return number


def fill(place: str, n_batches: int) -> None:
    """Create a store of one chain a batch, and commit and gather blocks of one draw."""
    n = N_SEGMENTS + N_BLOCKS
    phase = [{"iterations": n + 1, "operations": [{"op": "heatbath"}]}]
    spec = toy_spec(chains=n_batches, chains_per_batch=1, draws_per_block=1, phase=phase)
    store = Store.for_run(place, spec, toy_data(), kernel="plain NumPy", draws_per_chunk=1)
    position = np.zeros((1, store.parameter_layout.n_parameters), dtype=np.float32)
    precisions = np.ones((1, store.precision_layout.n_precisions))
    with store.lock():
        for batch in range(n_batches):
            for number in range(n):
                block = Block(
                    first_iteration=number + 1,
                    n_iterations=1,
                    section="posterior",
                    first_draw=number,
                    positions=position[:, None] + number,
                    precisions=precisions[:, None],
                    state=ChainState(position + number, position, precisions),
                )
                store.commit(batch, block)
                if number < N_SEGMENTS:
                    store.gather(batch)


def measured(n_batches: int, direct: str, slow: str) -> dict[str, Any]:
    """Seconds and requests of `Store.open`, of the number of draws, and of the lock that `resume` takes."""
    place = f"s3://{BUCKET}/{n_batches}.zarr"
    os.environ["AWS_ENDPOINT_URL"] = direct
    fill(place, n_batches)
    os.environ["AWS_ENDPOINT_URL"] = slow
    row: dict[str, Any] = {"batches": n_batches}
    before, began = n_requests(slow), time.perf_counter()

    def take(name: str) -> None:
        nonlocal before, began
        row[name], row[f"requests of {name}"] = time.perf_counter() - began, n_requests(slow) - before
        before, began = n_requests(slow), time.perf_counter()

    store = Store.open(place)
    take("open")
    assert store.committed_draws == N_SEGMENTS + N_BLOCKS
    take("draws")
    with store.lock():
        take("lock")
    return row


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--delay", type=float, default=0.03, help="seconds that each request is held back")
    parser.add_argument(
        "--serve", action="store_true", help="of a measurement, which this script starts itself"
    )
    parser.add_argument("--out", type=Path, help="a file that a line of JSON is added to")
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.delay)
        return
    os.environ.update(ENVIRONMENT)
    about = conditions(delay=options.delay)
    print(heading(about))
    rows = []
    with slow_server(options.delay) as (direct, slow):
        for n_batches in options.batches:
            rows.append(measured(n_batches, direct, slow))
            print(heading({name: round(value, 2) for name, value in rows[-1].items()}), flush=True)
    append(options.out, {"benchmark": "opening", **about, "rows": rows})


if __name__ == "__main__":
    main()
