"""An httpbin on this machine while tests run: those of HTTP libraries ask one, and a public one is slow or away."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator, Mapping

from xlocal.swe_pipeline.checkout import Checkout, LocalCheckout
from xlocal.tracer.errors import CheckoutError

VARIABLE = "HTTPBIN_URL"
_START_SECONDS = 60.0
_END_SECONDS = 5.0
# Prints its port and serves until its standard input ends, as it does when whoever started it was killed.
_SERVER = """
import os, sys, threading
from httpbin import app
from werkzeug.serving import WSGIRequestHandler, make_server

class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    def log(self, *_arguments, **_more):
        pass

def follow():
    sys.stdin.read()
    os._exit(0)

server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
threading.Thread(target=follow, daemon=True).start()
print(server.port, flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def served(checkout: Checkout) -> Iterator[Mapping[str, str]]:
    """Environment variables for tests: the address of an httpbin that serves meanwhile, where the facts ask for one.

    Only a local checkout has one: a container and the sandbox of agents have a loopback of their own. Raises
    CheckoutError when it does not start.
    """
    if not isinstance(checkout, LocalCheckout) or (python := checkout.httpbin) is None:
        yield {}
        return
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [python, "-W", "ignore", "-c", _SERVER],
            cwd=checkout.folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
        )
        try:
            port = _port(process)
            if port is None:
                _end(process)
                said.seek(0)
                lines = said.read().decode("utf-8", "replace").split("\n")
                reason = next((line for line in reversed(lines) if line.strip()), "it says nothing")
                raise CheckoutError(f"{checkout.issue.id}: the httpbin that its tests ask does not start: {reason}")
            yield {VARIABLE: f"http://127.0.0.1:{port}/"}
        finally:
            _end(process)


def _port(process: subprocess.Popen[bytes]) -> int | None:
    """The port that it prints; None when it ended, or took too long."""
    if process.stdout is None or not select.select([process.stdout], [], [], _START_SECONDS)[0]:
        return None
    line = process.stdout.readline().strip()
    return int(line) if line.isdigit() else None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
