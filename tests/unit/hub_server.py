"""A small server that speaks as much of the hub's protocol as a download needs, for one public model and three that refuse."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSALS = {"org/none": (404, "RepoNotFound"), "org/gated": (403, "GatedRepo"), "org/broken": (500, "")}


class HubServer(ThreadingHTTPServer):
    """Serves `files` as the model org/tiny."""

    files: dict[str, bytes]
    requested: list[str]


class Handler(BaseHTTPRequestHandler):
    server: HubServer

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def log_request(self, *_: object) -> None:
        """Requests are not printed."""

    def _serve(self, *, body: bool) -> None:
        path = unquote(urlparse(self.path).path)
        self.server.requested.append(path)
        for name, (status, code) in REFUSALS.items():
            if name in path:
                return self._answer(status, {"X-Error-Code": code, "X-Error-Message": "refused"}, b"", body=body)
        if "/none" in path:
            return self._answer(404, {"X-Error-Code": "RevisionNotFound"}, b"", body=body)
        if path.startswith("/api/models/org/tiny/tree/"):
            files = [{"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()} for name, data in self.server.files.items()]
            return self._answer(200, {"Content-Type": "application/json"}, json.dumps(files).encode(), body=body)
        if path.startswith("/api/models/org/tiny"):
            info = {"id": "org/tiny", "sha": COMMIT, "private": False, "tags": [], "siblings": [{"rfilename": name} for name in self.server.files]}
            return self._answer(200, {"Content-Type": "application/json"}, json.dumps(info).encode(), body=body)
        name = path.removeprefix(f"/org/tiny/resolve/{COMMIT}/").removeprefix("/org/tiny/resolve/main/")
        data = self.server.files.get(name)
        if data is None:
            return self._answer(404, {"X-Error-Code": "EntryNotFound"}, b"", body=body)
        return self._answer(200, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}, data, body=body)

    def _answer(self, status: int, headers: dict[str, str], data: bytes, *, body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[HubServer]:
    """The server on a free port, for as long as the block runs."""
    server = HubServer(("127.0.0.1", 0), Handler)
    server.files, server.requested = files, []
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
