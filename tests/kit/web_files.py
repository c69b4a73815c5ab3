"""A web server on loopback for a folder, which can fail on request.

It answers range requests.
"""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
FAIL, CUT, SLOW = "503", "cut", "slow"  # faults: an error, half a body, a delayed answer


@dataclass
class WebFiles:
    """State of the server, which tests set and read.

    Attributes:
        url: URL of the folder.
        requests: The method, path and range of each request, in order.
        faults: The faults by request number, from 0.
        slow: Ends the delay of SLOW, which otherwise takes two seconds.
    """

    folder: Path
    url: str = ""
    requests: list[str] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    slow: threading.Event = field(default_factory=threading.Event)

    def record_request(self, text: str) -> str | None:
        self.requests.append(text)
        return self.faults.get(len(self.requests) - 1)


@contextmanager
def web_files(folder: Path) -> Iterator[WebFiles]:
    """Runs a server inside the `with` block."""
    files = WebFiles(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = folder / unquote(self.path.lstrip("/"))
            byte_range = _RANGE.fullmatch(self.headers.get("Range", ""))
            fault = files.record_request(
                f"{self.command} {self.path} {self.headers.get('Range', '')}".strip()
            )
            if fault == SLOW:
                files.slow.wait(2)
            if fault == FAIL or not path.is_file():
                self.send_response(503 if fault == FAIL else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = path.read_bytes()
            size, tag = len(data), hashlib.sha256(data).hexdigest()[:16]
            self.send_response(206 if byte_range else 200)
            if byte_range:
                first, last = int(byte_range[1]), min(int(byte_range[2]), size - 1)
                data = data[first : last + 1]
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{tag}"')
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.end_headers()
            if body:
                self.wfile.write(data[: len(data) // 2] if fault == CUT else data)
            self.close_connection = fault == CUT

    with serve_requests(Handler) as port:
        files.url = f"http://127.0.0.1:{port}"
        yield files


@contextmanager
def serve_requests(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Answers requests on loopback in threads. Logs nothing.

    Args:
        handler: Handles the requests.

    Yields:
        The port.
    """
    handler.log_message = lambda *_: None  # type: ignore[assignment, method-assign]
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
