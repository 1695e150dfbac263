"""The HTTP/2 server against h2spec, the conformance suite: which of its cases may fail, and why."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import uvloop

from ingero_http.grpc_unary import GrpcService, respond
from ingero_http.http2.messages import Reply, RequestFailure, RequestHead, Service
from ingero_http.http2.server import Http2Server

MODULE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
CACHE = Path.home() / ".cache/h2spec-2.2.1"
COMMAND = f"GOBIN={CACHE} go install {MODULE}"
GO = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")

CASE_SECONDS = 3
"""For how long h2spec waits for what it expects."""

PRIORITIES = (
    "RFC 9113, 5.3.2 deprecates priorities and drops the rule of RFC 7540 that a stream must not depend on itself"
)
EARLY = "the call is answered at its head, because it is no gRPC call, and its stream has ended when the case goes on"
NO_DATA = "the case waits for DATA, and a call that is refused is answered with HEADERS alone"

ALWAYS = {
    ("http2/5.3.1", "Sends HEADERS frame that depend on itself"): PRIORITIES,
    ("http2/5.3.1", "Sends PRIORITY frame that depend on itself"): PRIORITIES,
}

OF_GRPC = {
    ("generic/2", "Sends a WINDOW_UPDATE frame on half-closed (remote) stream"): NO_DATA,
    ("generic/2", "Sends a PRIORITY frame on half-closed (remote) stream"): NO_DATA,
    (
        "http2/5.1.2",
        "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
    ): EARLY,
    (
        "http2/6.9.1",
        "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream",
    ): EARLY,
    ("http2/8.1", "Sends a second HEADERS frame without the END_STREAM flag"): EARLY,
    ("http2/8.1.2.1", "Sends a HEADERS frame that contains a pseudo-header field as trailers"): EARLY,
    (
        "http2/8.1.2.6",
        'Sends a HEADERS frame with the "content-length" header field which does not equal the DATA frame '
        "payload length",
    ): EARLY,
    (
        "http2/8.1.2.6",
        'Sends a HEADERS frame with the "content-length" header field which does not equal the sum of the multiple '
        "DATA frames payload length",
    ): EARLY,
}


class Hello:
    """Answers every request whose body is complete."""

    def route(self, head: RequestHead) -> "Hello":
        return self

    def begin(self) -> Reply | None:
        return None

    def complete(self, body: bytes) -> Reply:
        return Reply.of([(b":status", b"200")], b"hello")

    def fail(self, failure: RequestFailure) -> Reply:
        return Reply.of([(b":status", b"500")])


@pytest.fixture(scope="module")
def h2spec() -> Path:
    """The suite's program, built once for all test runs where Go is there."""
    found = os.environ.get("H2SPEC") or shutil.which("h2spec")
    if found:
        return Path(found)
    program = CACHE / "h2spec"
    if not program.exists() and GO:
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                subprocess.run(
                    [GO, "install", MODULE], env={**os.environ, "GOBIN": str(CACHE)}, timeout=280, check=False
                )
    if not program.exists():
        pytest.skip(f"h2spec is not on this machine; with Go, this builds it: {COMMAND}")
    return program


def failures(program: Path, service: Service, report: Path, *arguments: str) -> tuple[int, set[tuple[str, str]]]:
    """How many cases ran, and the section and title of those that failed."""

    async def main() -> None:
        server = Http2Server(service)
        port = await server.start("127.0.0.1", 0)
        process = await asyncio.create_subprocess_exec(
            program, "--port", str(port), "--timeout", str(CASE_SECONDS), "--junit-report", report, *arguments,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await process.wait()
        await server.stop(1)

    uvloop.run(main())
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {
        (case.attrib["package"], case.attrib["classname"])
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    return len(cases), failed


def test_a_server_conforms_but_for_priorities(h2spec: Path, tmp_path: Path) -> None:
    ran, failed = failures(h2spec, Hello(), tmp_path / "report.xml", "--strict")

    assert ran > 140
    assert failed == set(ALWAYS)


def test_a_grpc_server_conforms_but_for_priorities_and_early_answers(h2spec: Path, tmp_path: Path) -> None:
    service = GrpcService({"/demo.Echo/Say": lambda fields, message: respond(message)})

    ran, failed = failures(h2spec, service, tmp_path / "report.xml", "--path", "/demo.Echo/Say")

    assert ran > 140
    assert failed == {**ALWAYS, **OF_GRPC}.keys()
