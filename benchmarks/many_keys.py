"""A server on loopback that only lists an S3 bucket with very many keys.

It answers ListObjectsV2 with pages of 1,000 keys. To fill a real server would take hours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

PAGE = 1000
_ENTRY = (
    "<Contents><Key>in/%09d.txt</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;%032x&quot;</ETag>"
    "<Size>10000</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


@contextmanager
def many_keys(count: int) -> Iterator[str]:
    """Serves the listing of `count` keys inside the `with` block.

    Yields:
        The URL of the server.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(404, b"")

        def do_GET(self) -> None:
            asked = parse_qs(urlparse(self.path).query)
            if "list-type" not in asked:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            first = int(asked.get("continuation-token", ["0"])[0])
            last = min(count, first + PAGE)
            more = f"<NextContinuationToken>{last}</NextContinuationToken>" if last < count else ""
            body = (
                '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<Name>bucket</Name><Prefix>in/</Prefix><MaxKeys>{PAGE}</MaxKeys><KeyCount>{last - first}</KeyCount>"
                f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{more}"
                + "".join(_ENTRY % (at, at) for at in range(first, last))
                + "</ListBucketResult>"
            ).encode()
            self._answer(200, body)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
