"""The agent asks NCCL RAS whether the job hangs: over its protocol, whatever answers, and never twice for one job."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ingero_agent.push import FleetClient
from ingero_agent.ras import LONGEST_PAUSE, RasPoller, is_local
from ingero_contract.values import HangVerdict
from ingero_kit.hang_records import HangRecord, read_hangs
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_client import ClientConfig
from ingero_kit.otlp_receiver import Answer, Authenticator, OtlpHttpReceiver, Push, Status
from ingero_kit.otlp_signal import Signal
from ingero_kit.tls import ClientTls
from ingero_testing.processes import BIN, process, wait_until
from ingero_testing.ras_service import RasService, communicator, gone, rank, serving, status, world
from ingero_testing.web import web

NOW = 1_700_000_000.0
STUCK = status(world([9, 9, 7, 9]))


@dataclass
class Asked:
    """What came of the questions: records of hangs and their ends, how many others, and the poller."""

    poller: RasPoller
    heartbeats: int = 0
    records: list[HangRecord] = field(default_factory=list)


def ask(
    address: str, seconds: list[float], *, refuse: int = 0, local: str = "10.0.0.0", timeout: float = 20.0,
    limit: int = 1 << 20,
) -> Asked:  # fmt: skip
    """Ask at these times; Fleet refuses the first `refuse` requests."""
    taken: list[Push] = []
    left = [Answer(status=Status.UNAVAILABLE)] * refuse

    def handler(push: Push) -> Answer:
        if left:
            return left.pop()
        taken.append(push)
        return Answer()

    async def work() -> RasPoller:
        server = OtlpHttpReceiver(handler, Authenticator())
        fleet = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        client = FleetClient(ClientConfig(endpoint=fleet, cluster="c", tls=ClientTls(insecure=True)))
        now = [0.0]
        poller = RasPoller(
            address, 30.0, lambda: HealthReport(node_id="gpu-1", cluster_id="c", job_id="llama"), client,
            lambda: NOW + now[0], local=lambda host: host == local, timeout=timeout, limit=limit,
        )  # fmt: skip
        for now[0] in seconds:
            await poller.poll()
        await client.close()
        await server.stop(0.1)
        return poller

    asked = Asked(asyncio.run(asyncio.wait_for(work(), 60)))
    for push in taken:
        assert push.signal is Signal.LOGS
        for record in read_hangs(push.body, ""):
            assert isinstance(record, HangRecord)
            asked.heartbeats += not record.since
            asked.records += [record] if record.since else []
    return asked


def test_a_hang_is_reported_with_its_job_rank_host_and_process_until_it_ends() -> None:
    moves = status(world([9, 9, 9, 9]))
    with serving(RasService(STUCK, STUCK, STUCK, moves)) as address:
        asked = ask(address, [0, 30, 60, 90])

    first, second, end = asked.records
    assert (first.cluster, first.node, first.job, first.kind) == ("c", "gpu-1", "llama", HangVerdict.HANG)
    assert [rank._asdict() for rank in first.ranks] == [{"rank": 2, "host": "10.0.0.2", "pid": 102, "gpu": 0}]
    assert (first.op, first.waiting, first.rank_count, first.since) == ("AllReduce", 3, 1, NOW)
    assert first.comm.startswith("0xa") and first.until == NOW + 30 + 90
    assert first.message == (
        "No rank has started a collective for 30 s: the job waits for rank 2 on 10.0.0.2, which waits for no other."
    )
    assert (second.time, second.key, end.kind, end.key) == (NOW + 60, first.key, HangVerdict.NONE, first.key)
    assert asked.poller.polls["answered"] == 4 and asked.poller.reports == {"sent": 4, "failed": 0}


def test_a_report_that_fleet_refuses_is_counted_and_the_next_one_is_sent() -> None:
    with serving(RasService(STUCK, STUCK, STUCK)) as address:
        asked = ask(address, [0, 30, 60], refuse=2)

    assert [record.time for record in asked.records] == [NOW + 60]
    assert asked.poller.reports == {"sent": 1, "failed": 2}


@pytest.mark.parametrize(
    ("replaced", "outcome"),
    [
        ({"CLIENT PROTOCOL": b"\x16\x03\x01\x00\xee\n"}, "protocol"),
        ({"CLIENT PROTOCOL": None}, "protocol"),
        ({"CLIENT PROTOCOL": b"x" * 100_000}, "protocol"),
        ({"CLIENT PROTOCOL": b""}, "timeout"),
        ({"SET FORMAT json": b"ERROR: Unknown command\n"}, "protocol"),
        ({"STATUS": None}, "protocol"),
        ({"STATUS": b"x" * 70_000}, "too_large"),
    ],
)  # fmt: skip
def test_whatever_answers_the_agent_counts_it_and_asks_again(replaced: dict[str, bytes | None], outcome: str) -> None:
    with serving(RasService(STUCK, replaced=replaced)) as address:
        asked = ask(address, [0, 30], timeout=0.3, limit=60_000)

    assert {name: count for name, count in asked.poller.polls.items() if count} == {outcome: 2}
    assert asked.records == []


@pytest.mark.parametrize("data", ["", "x", "[]", STUCK[: len(STUCK) // 2], STUCK.replace('"size": 4', '"size": "?"')])
def test_a_status_that_is_cut_off_or_damaged_names_nobody_and_the_next_one_counts(data: str) -> None:
    with serving(RasService(data, STUCK, STUCK)) as address:
        asked = ask(address, [0, 30, 60])

    assert [(record.kind, record.since) for record in asked.records] == [(HangVerdict.HANG, NOW + 30)]
    assert asked.poller.polls["answered"] == 2


def test_without_a_job_nothing_is_sent() -> None:
    with serving(RasService()) as address:
        pass
    asked = ask(address, [0, 30, 60])

    assert (asked.poller.polls["refused"], asked.records, asked.heartbeats) == (3, [], 0)


def test_a_job_that_goes_on_is_reported_as_watched() -> None:
    with serving(RasService(*(status(world([count, count])) for count in range(3)))) as address:
        asked = ask(address, [0, 30, 60])

    assert (asked.poller.polls["answered"], asked.records, asked.heartbeats) == (3, [], 3)


def test_a_dead_process_is_named_and_one_that_does_not_answer_is_possible() -> None:
    for dead, kind in ((True, HangVerdict.DEAD), (False, HangVerdict.UNKNOWN)):
        found = status(communicator("0xa", [rank(0, 0, 5), rank(1, 1, 5)], [gone(2, 2, dead=dead)]))
        with serving(RasService(found, found)) as address:
            (record,) = ask(address, [0, 30]).records
        assert (record.kind, len(record.ranks), len(record.possible)) == (kind, int(dead), int(not dead))
        assert "rank 2 on 10.0.0.2" in record.message


@pytest.mark.parametrize(("host", "period"), [("10.0.0.0", 30.0), ("10.0.0.3", 120.0), ("192.0.2.1", 30.0)])
def test_hosts_ask_the_less_often_the_later_they_come_in_the_job(host: str, period: float) -> None:
    with serving(RasService(STUCK, STUCK)) as address:
        asked = ask(address, [0, 30], local=host)

    assert asked.poller.period == period and asked.records[0].until == NOW + 30 + 3 * period


def test_a_thousand_hosts_ask_a_few_times_in_an_interval_together() -> None:
    periods = [min((place + 1) * 30.0, LONGEST_PAUSE) for place in range(1000)]
    assert sum(30.0 / period for period in periods) < 15


def test_a_host_asks_soon_again_when_its_job_has_ended() -> None:
    with serving(RasService(STUCK)) as address:
        poller = ask(address, [0], local="10.0.0.3").poller
    asyncio.run(poller.poll())

    assert (poller.period, poller.polls["refused"]) == (30.0, 1)


def test_only_own_addresses_are_local() -> None:
    assert is_local("127.0.0.1")
    assert not any(map(is_local, ("192.0.2.1", "2001:db8::1", "0xa rank", "localhost", "0.0.0.0", "::", "")))


def test_the_poller_ends_at_once_while_a_service_is_silent() -> None:
    silent = threading.Event()

    class Silent(RasService):
        def answer(self, command: str) -> tuple[bytes, bool]:
            silent.set()
            return b"", True

    async def cancelled(work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(work())
        await asyncio.to_thread(silent.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with serving(Silent()) as address:
        client = FleetClient(ClientConfig(endpoint="127.0.0.1:9", cluster="c", tls=ClientTls(insecure=True)))
        poller = RasPoller(address, 30.0, lambda: HealthReport(node_id="n", cluster_id="c"), client, lambda: NOW)
        asyncio.run(asyncio.wait_for(cancelled(poller.poll), 60))


def test_the_command_asks_where_it_is_told_to_and_shows_it(tmp_path: Path) -> None:
    ports = tmp_path / "ports.json"
    service = RasService(STUCK)
    with serving(service) as address, process(
        tmp_path / "agent.log", str(BIN / "ingero-agent"), "fleet-push", "--stub", "--fleet-endpoint", "127.0.0.1:9",
        "--fleet-insecure", "--fleet-cluster-id", "c", "--no-detect-provider", "--ras-address", address,
        "--ras-interval", "5s", "--metrics-listen", "127.0.0.1:0", "--ports-file", str(ports),
        "--fleet-persist-path", str(tmp_path / "baseline.json"),
    ):  # fmt: skip
        wait_until(ports.exists, "the agent to listen")
        page = f"http://127.0.0.1:{json.loads(ports.read_text())['metrics']}/metrics"
        answered = 'ingero_agent_ras_polls_total{outcome="answered"} 1.0'
        wait_until(lambda: answered in web.get(page).text, "an answer of RAS")

    assert service.commands[:4] == ["CLIENT PROTOCOL 2", "TIMEOUT 10", "SET FORMAT json", "STATUS"]
