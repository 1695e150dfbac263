"""`diagnose --ras HOST:PORT`: the protocol of NCCL's RAS service, against a small server that speaks it."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose import ras_client
from ingero_analyze.diagnose.ras_client import fetch_status, is_address
from ingero_analyze.diagnose.sources import SourceError
from ingero_fleet.cli import main
from tests.analyze.test_diagnose_ras import status, world


class RasService:
    """Answers as NCCL's RAS thread does: lines, and the connection closes after STATUS."""

    def __init__(self, *statuses: str, replaced: dict[str, bytes | None] | None = None) -> None:
        self.commands: list[str] = []
        self._statuses, self._replaced = list(statuses), replaced or {}

    def answer(self, command: str) -> tuple[bytes, bool]:
        """The bytes to send and whether the connection goes on."""
        self.commands.append(command)
        word = command.rstrip("0123456789").strip()
        if word in self._replaced:
            sent = self._replaced[word]
            return sent or b"", sent is not None
        if word == "CLIENT PROTOCOL":
            return b"SERVER PROTOCOL 2\n", True
        if word in ("TIMEOUT", "SET FORMAT json"):
            return b"OK\n", True
        if word == "STATUS" and self._statuses:
            return self._statuses.pop(0).encode(), False
        return f"ERROR: Unknown command {command}\n".encode(), word != "STATUS"


@contextmanager
def serving(service: RasService) -> Iterator[str]:
    """The service on a free port; gives its address."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                sent, more = service.answer(line.decode().rstrip("\n"))
                self.wfile.write(sent)
                if not more:
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def ask(*arguments: str) -> tuple[dict[str, Any], str, int]:
    done = CliRunner().invoke(main, ["diagnose", *arguments, "--json"])
    return json.loads(done.stdout) if done.exit_code == 0 else {}, done.stderr, done.exit_code


def test_a_service_asked_twice_names_the_rank_for_which_the_job_waits() -> None:
    service = RasService(status(world([9, 9, 7, 9])), status(world([9, 9, 7, 9]), second=40))
    with serving(service) as address:
        answer, _, _ = ask("--ras", address, "--wait", "0.01")

    assert (answer["kind"], answer["ranks"], answer["evidence"]["statuses"]) == ("hang", [2], 2)
    assert service.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 10", "SET FORMAT json", "STATUS"] * 2


def test_a_service_asked_once_lists_the_rank_and_names_nobody() -> None:
    with serving(RasService(status(world([9, 9, 7, 9])))) as address:
        answer, _, _ = ask("--ras", address)

    assert (answer["kind"], answer["ranks"], answer["evidence"]["possible"]) == ("unknown", [], [2])


def test_a_service_that_answers_only_the_first_time_names_nobody() -> None:
    with serving(RasService(status(world([9, 9, 7, 9])))) as address:
        answer, errors, _ = ask("--ras", address, "--wait", "0.01")

    assert (answer["kind"], answer["ranks"], answer["evidence"]["statuses"]) == ("unknown", [], 1)
    assert f"{address}: not JSON" in errors


@pytest.mark.parametrize(
    ("replaced", "words"),
    [
        ({"CLIENT PROTOCOL": b"HTTP/1.1 400 Bad Request\n"}, "'HTTP/1.1 400 Bad Request', 'SERVER PROTOCOL'"),
        ({"CLIENT PROTOCOL": None}, "closed instead of an answer to CLIENT PROTOCOL"),
        ({"CLIENT PROTOCOL": b"x" * 5000}, "no end of line in 4096 bytes"),
        ({"SET FORMAT json": b"ERROR: Unknown command SET FORMAT json\n"}, "JSON needs NCCL 2.28.7"),
        ({"STATUS": None}, "closed instead of an answer to STATUS"),
    ],
)
def test_what_is_no_ras_service_is_named_with_its_address(replaced: dict[str, bytes | None], words: str) -> None:
    with serving(RasService(replaced=replaced)) as address:
        _, errors, code = ask("--ras", address, "--wait", "3600")

    assert code == 2
    assert f"{address}: " in errors and words in errors


def test_where_nothing_listens_the_command_ends_with_2() -> None:
    with serving(RasService()) as address:
        pass
    _, errors, code = ask("--ras", address)

    assert code == 2 and f"{address}: the RAS service of NCCL does not answer: Connection refused" in errors


def test_a_service_that_says_nothing_is_given_up() -> None:
    with serving(RasService(replaced={"CLIENT PROTOCOL": b""})) as address, pytest.raises(SourceError) as error:
        fetch_status(address, seconds=0.05)

    assert "no complete answer within 0.05 s" in str(error.value)


def test_a_status_above_the_limit_is_refused() -> None:
    with serving(RasService(status(world([9] * 50)))) as address, pytest.raises(SourceError) as error:
        fetch_status(address, limit=1000)

    assert "larger than 1000 bytes" in str(error.value)
    assert ras_client.MAX_STATUS <= 512 << 20


@pytest.mark.parametrize(
    ("place", "expected"),
    [("localhost:28028", True), (":28028", True), ("[::1]:28028", True), ("node-4.example:1", True),
     ("before.json", False), ("folder/x:1", False), ("localhost:", False), ("::1", False)],
)  # fmt: skip
def test_an_address_is_told_from_a_path(place: str, expected: bool) -> None:
    assert is_address(place) is expected


def test_wait_without_an_address_is_refused() -> None:
    _, errors, code = ask("--ras", "before.json", "--wait", "30")

    assert code == 2 and "--wait needs --ras HOST:PORT" in errors
