"""A small server that speaks as much of the hub's protocol as a download needs: a public model, a public data set, and three names that refuse."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSALS = {"org/none": (404, "RepoNotFound"), "org/gated": (403, "GatedRepo"), "org/broken": (500, "")}


class HubServer(ThreadingHTTPServer):
    """Serves `files` as the model org/tiny and `rows` as the data set org/rows."""

    files: dict[str, bytes]
    rows: dict[str, bytes]
    requested: list[str]


class Handler(BaseHTTPRequestHandler):
    server: HubServer

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def do_POST(self) -> None:
        """What is known of some files of the data set, by their paths."""
        path = unquote(urlparse(self.path).path)
        self.server.requested.append(path)
        wanted = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
        found = [_described(name, self.server.rows[name]) for name in wanted if name in self.server.rows and "unsaid" not in name]
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(found).encode(), body=True)

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
        kind, repository, served = ("datasets", "org/rows", self.server.rows) if "org/rows" in path else ("models", "org/tiny", self.server.files)
        if path.startswith(f"/api/{kind}/{repository}/tree/"):
            files = [_described(name, data) for name, data in served.items()]
            return self._answer(200, {"Content-Type": "application/json"}, json.dumps(files).encode(), body=body)
        if path.startswith(f"/api/{kind}/{repository}"):
            info = {"id": repository, "sha": COMMIT, "private": False, "tags": [], "siblings": [{"rfilename": name} for name in served]}
            return self._answer(200, {"Content-Type": "application/json"}, json.dumps(info).encode(), body=body)
        prefix = f"/{'datasets/' if kind == 'datasets' else ''}{repository}/resolve"
        data = served.get(path.removeprefix(f"{prefix}/{COMMIT}/").removeprefix(f"{prefix}/main/"))
        if data is None:
            return self._answer(404, {"X-Error-Code": "EntryNotFound"}, b"", body=body)
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
            return self._answer(206, {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1], body=body)
        return self._answer(200, headers, data, body=body)

    def _answer(self, status: int, headers: dict[str, str], data: bytes, *, body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


def _described(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


@contextmanager
def serving(files: dict[str, bytes], rows: dict[str, bytes] | None = None) -> Iterator[HubServer]:
    """The server on a free port, for as long as the block runs."""
    server = HubServer(("127.0.0.1", 0), Handler)
    server.files, server.rows, server.requested = files, rows or {}, []
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
