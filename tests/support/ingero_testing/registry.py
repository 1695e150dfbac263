"""A registry of OCI artifacts in memory: what clients need to push, and to pull what was pushed."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

INDEX: Final = "application/vnd.oci.image.index.v1+json"
_UPLOAD: Final = re.compile(r"/v2/(?P<name>.+)/blobs/uploads/(?P<id>\d*)")
_BLOB: Final = re.compile(r"/v2/.+/blobs/(?P<digest>sha256:[0-9a-f]{64})")
_MANIFEST: Final = re.compile(r"/v2/(?P<name>.+)/manifests/(?P<reference>.+)")


@dataclass
class Registry:
    """What was pushed, by digest and by name and tag."""

    address: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    """Name and tag or digest: media type and content."""
    uploads: dict[str, bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def manifest(self, name: str, reference: str) -> dict[str, Any]:
        """The document of this name."""
        document: dict[str, Any] = json.loads(self.manifests[name, reference][1])
        return document

    def blob(self, digest: str) -> dict[str, Any]:
        """A blob that is JSON."""
        document: dict[str, Any] = json.loads(self.blobs[digest])
        return document


@contextmanager
def registry() -> Iterator[Registry]:
    """A registry without TLS on a port of this machine."""
    store = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def sent(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/v2/":
                return self.answer(200)
            if (found := _BLOB.fullmatch(path)) and (content := store.blobs.get(found["digest"])) is not None:
                return self.answer(200, content, Docker_Content_Digest=found["digest"])
            if (found := _MANIFEST.fullmatch(path)) and (kept := store.manifests.get((found[1], found[2]))):
                return self.answer(
                    200, kept[1], Content_Type=kept[0], Docker_Content_Digest=f"sha256:{sha256(kept[1]).hexdigest()}"
                )
            return self.answer(404)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            self.sent()
            found = _UPLOAD.fullmatch(urlsplit(self.path).path)
            if not found:
                return self.answer(404)
            with store.lock:
                number = str(len(store.uploads))
                store.uploads[number] = b""
            return self.answer(202, Location=f"/v2/{found['name']}/blobs/uploads/{number}")

        def do_PATCH(self) -> None:
            found = _UPLOAD.fullmatch(urlsplit(self.path).path)
            assert found
            store.uploads[found["id"]] += self.sent()
            length = len(store.uploads[found["id"]])
            self.answer(202, Location=self.path, Range=f"0-{length - 1}")

        def do_PUT(self) -> None:
            parsed, content = urlsplit(self.path), self.sent()
            if found := _UPLOAD.fullmatch(parsed.path):
                (digest,) = parse_qs(parsed.query)["digest"]
                content = store.uploads[found["id"]] + content
                if digest != f"sha256:{sha256(content).hexdigest()}":
                    return self.answer(400)
                store.blobs[digest] = content
                return self.answer(201, Docker_Content_Digest=digest)
            if found := _MANIFEST.fullmatch(parsed.path):
                digest = f"sha256:{sha256(content).hexdigest()}"
                for reference in {found["reference"], digest}:
                    store.manifests[found["name"], reference] = (self.headers["Content-Type"], content)
                return self.answer(201, Docker_Content_Digest=digest)
            return self.answer(404)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    store.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
