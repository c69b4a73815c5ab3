"""A proxy on loopback in front of a store's server, which spoils requests: before they are heard, or behind it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAIL, DROP, DEAD = "503", "answer dropped", "dead from here on"  # what becomes of a request


@dataclass
class Proxy:
    """url: where it listens. requests: what was asked for. at: the number of the request, from 0, that is spoilt."""

    url: str = ""
    requests: list[str] = field(default_factory=list)
    fault: str = ""
    at: int = -1
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, fault: str = "", at: int = -1) -> None:
        with self.lock:
            self.requests.clear()
            self.fault, self.at = fault, at

    def note(self, said: str) -> str:
        with self.lock:
            self.requests.append(said)
            number = len(self.requests) - 1
            spoilt = number == self.at or (self.fault == DEAD and number > self.at)
            return self.fault if spoilt else ""


@contextmanager
def fault_proxy(endpoint: str) -> Iterator[Proxy]:
    """The proxy, as long as the context; requests are handed on as they are, so signatures stay right."""
    proxy, backend = Proxy(), endpoint.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.note(f"{self.command} {self.path}")
            if fault == DEAD:
                self.close_connection = True
                return
            if fault == FAIL:
                self._answer(503, [], b"")
                return
            connection = http.client.HTTPConnection(backend, timeout=60)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            if fault == DROP:
                self.close_connection = True
                return
            self._answer(answer.status, answer.getheaders(), data)

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            lengths = [value for name, value in headers if name.lower() == "content-length"]
            self.send_header("Content-Length", lengths[0] if self.command == "HEAD" and lengths else str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            """Nothing: the tests' output is theirs."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
