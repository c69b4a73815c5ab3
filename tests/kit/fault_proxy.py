"""A proxy in front of a store's server, which makes requests fail.

A request fails before the server receives it, or after the server has executed it.
"""

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from kit.web_files import serve_requests

# Faults of a request. After DEAD or a kill, no later request is answered.
FAIL, DROP, DEAD = "503", "answer dropped", "dead from here on"
CUT = "answer cut"
# The client is killed, before the store receives its request or after it has executed it.
KILL, KILL_AFTER = "killed before", "killed after"


@dataclass
class Proxy:
    """State of the proxy, which tests set and read.

    Attributes:
        requests: The method and path of each request since `begin`.
        numbers: The requests with the fault, counted from 0: a range, or the number of one
            request. -1 if there is none.
        kill: Kills the client.
        max_concurrent: The largest number of requests in progress at one time.
        delay_sec: The delay of each request.
    """

    url: str = ""
    requests: list[str] = field(default_factory=list)
    fault: str = ""
    numbers: int | range = -1
    lock: threading.Lock = field(default_factory=threading.Lock)
    kill: Callable[[], None] = lambda: None
    in_progress: int = 0
    max_concurrent: int = 0
    delay_sec: float = 0.0

    def begin(
        self, fault: str = "", numbers: int | range = -1, kill: Callable[[], None] = lambda: None
    ) -> None:
        with self.lock:
            self.requests.clear()
            self.fault, self.numbers, self.kill, self.max_concurrent = fault, numbers, kill, 0

    @contextmanager
    def count_request(self) -> Iterator[None]:
        with self.lock:
            self.in_progress += 1
            self.max_concurrent = max(self.max_concurrent, self.in_progress)
        try:
            time.sleep(self.delay_sec)
            yield
        finally:
            with self.lock:
                self.in_progress -= 1

    def record_request(self, text: str) -> str:
        with self.lock:
            self.requests.append(text)
            number = len(self.requests) - 1
            if isinstance(self.numbers, range):
                return self.fault if number in self.numbers else ""
            if self.fault in (DEAD, KILL, KILL_AFTER) and number > self.numbers >= 0:
                return DEAD
            return self.fault if number == self.numbers else ""


@contextmanager
def fault_proxy(endpoint: str) -> Iterator[Proxy]:
    """Runs a proxy inside the `with` block.

    It forwards requests unchanged, so that their signatures remain valid.
    """
    proxy, backend = Proxy(), endpoint.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Otherwise the body of an answer waits 40 ms until its headers are acknowledged.
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.record_request(f"{self.command} {self.path}")
            if fault == KILL:
                proxy.kill()
            if fault in (DEAD, KILL):
                self.close_connection = True
                return
            with proxy.count_request():
                answer = (503, [], b"") if fault == FAIL else self._hand_on(body)
            if fault == KILL_AFTER:
                proxy.kill()
            if fault in (DROP, KILL_AFTER):
                self.close_connection = True
                return
            self._answer(*answer, cut=fault == CUT)

        def _hand_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(backend, timeout=60)
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            return answer.status, answer.getheaders(), data

        def _answer(
            self, status: int, headers: list[tuple[str, str]], data: bytes, cut: bool
        ) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            lengths = [value for name, value in headers if name.lower() == "content-length"]
            self.send_header(
                "Content-Length",
                lengths[0] if self.command == "HEAD" and lengths else str(len(data)),
            )
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = self.close_connection or cut

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    with serve_requests(Handler) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy
