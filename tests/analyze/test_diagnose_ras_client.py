"""`diagnose --ras HOST:PORT`: the protocol of NCCL's RAS service, against a small server that speaks it."""

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose.ras_status import MAX_STATUS
from ingero_fleet.cli import main
from ingero_kit.ras_client import RasFailure, RasUnavailable, fetch_status, is_address
from ingero_testing.ras_service import RasService, serving, status, world


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
    with serving(RasService(replaced={"CLIENT PROTOCOL": b""})) as address, pytest.raises(RasUnavailable) as error:
        asyncio.run(fetch_status(address, MAX_STATUS, seconds=0.05))

    assert "no complete answer within 0.05 s" in str(error.value) and error.value.failure is RasFailure.TIMEOUT


def test_where_the_process_behind_a_connection_stands_still_another_one_is_asked() -> None:
    class Stopped(RasService):
        def answer(self, command: str) -> tuple[bytes, bool]:
            found = super().answer(command)
            return (b"", True) if len(self.commands) <= 2 else found

    service = Stopped(status(world([9, 9, 7, 9])))
    with serving(service) as address:
        found = asyncio.run(fetch_status(address, MAX_STATUS, greeting=0.05))

    assert found == status(world([9, 9, 7, 9])).encode()
    assert service.commands[:3] == ["CLIENT PROTOCOL 2"] * 3


def test_a_status_above_the_limit_is_refused() -> None:
    with serving(RasService(status(world([9] * 50)))) as address, pytest.raises(RasUnavailable) as error:
        asyncio.run(fetch_status(address, 1000))

    assert "larger than 1000 bytes" in str(error.value) and error.value.failure is RasFailure.TOO_LARGE
    assert MAX_STATUS <= 512 << 20


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
