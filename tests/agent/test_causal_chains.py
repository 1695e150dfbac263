"""While a node straggles, its agent sends what explains it, once, whatever becomes of the database."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_agent.causal_chains import MAX_RECORDS, SEARCH_SECONDS, STACKS_SECONDS, CausalChains
from ingero_agent.devices import GpuReading
from ingero_agent.loop import PushLoop
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.sources.scripted import ScriptedSource
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.probes.table import SCHED_SWITCH
from ingero_agent.trace.queries import open_database
from ingero_agent.trace.store import TraceStore
from ingero_contract import attributes, echo, headers
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_client import ClientConfig
from ingero_kit.otlp_receiver import Answer, Authenticator, OtlpHttpReceiver, Push, Status
from ingero_kit.otlp_signal import Signal
from ingero_kit.tls import ClientTls

NOW = 1_700_000_000.0
Record = dict[str, str]
Drive = Callable[[CausalChains], Awaitable[None]]


def starve(file: Path, now: float, seconds: float, pids: Iterable[int] = (7,)) -> None:
    """Processes have waited for a processor for so long in the last moment."""
    store = TraceStore(file)
    store.add([CallCount(SCHED_SWITCH, pid, 10, int(seconds * 1e9)) for pid in pids], now - 5, {7: "train"})
    store.close()


def records_of(file: Path, drive: Drive, refused: int = 0) -> tuple[list[Record], dict[str, int]]:
    """The records that arrive while chains are driven, the first requests being refused; and the outcomes."""
    taken: list[Push] = []
    left = [Answer(status=Status.UNAVAILABLE)] * refused

    def handler(push: Push) -> Answer:
        if left:
            return left.pop()
        taken.append(push)
        return Answer()

    async def work() -> dict[str, int]:
        server = OtlpHttpReceiver(handler, Authenticator())
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        client = FleetClient(ClientConfig(endpoint=address, cluster="c", tls=ClientTls(insecure=True)))
        chains = CausalChains(file, None, HealthReport(node_id="n", cluster_id="c", job_id="j"), client)
        await drive(chains)
        await client.close()
        await server.stop(0.1)
        return dict(chains.outcomes)

    outcomes = asyncio.run(asyncio.wait_for(work(), 60))
    found = []
    for push in taken:
        assert push.signal is Signal.LOGS
        (block,) = ExportLogsServiceRequest.FromString(push.body).resource_logs
        node = {pair.key: pair.value.string_value for pair in block.resource.attributes}
        assert (node[attributes.NODE_ID], node[attributes.CLUSTER_ID], node[attributes.JOB_ID]) == ("n", "c", "j")
        for record in block.scope_logs[0].log_records:
            assert record.event_name == echo.CAUSAL_CHAIN_EVENT
            own = {pair.key: pair.value.string_value for pair in record.attributes}
            found.append({**own, "summary": record.body.string_value})
    return found, outcomes


async def search(chains: CausalChains, now: float) -> None:
    chains.follow(True, now)
    await chains.close()


def test_a_cause_is_sent_once_an_episode_and_again_when_its_severity_changes(tmp_path: Path) -> None:
    file = tmp_path / "trace.db"

    async def drive(chains: CausalChains) -> None:
        starve(file, NOW, 30)
        chains.follow(False, NOW)
        await search(chains, NOW)
        await search(chains, NOW + 1)
        await search(chains, NOW + SEARCH_SECONDS)
        starve(file, NOW + SEARCH_SECONDS, 60)
        await search(chains, NOW + 2 * SEARCH_SECONDS)
        chains.follow(False, NOW + 2 * SEARCH_SECONDS + 1)
        await search(chains, NOW + 3 * SEARCH_SECONDS)

    found, outcomes = records_of(file, drive)
    first, grown, again = found
    assert [one[echo.CHAIN_SEVERITY] for one in found] == ["MEDIUM", "HIGH", "HIGH"]
    assert first[echo.CAUSAL_CHAIN_ID] == grown[echo.CAUSAL_CHAIN_ID] != again[echo.CAUSAL_CHAIN_ID]
    assert first[echo.CAUSAL_CHAIN_ID].startswith("n:cpu-starved:")
    assert (first[echo.CHAIN_ROOT_CAUSE], first[echo.CHAIN_SUBJECT]) == ("cpu-starved", "7")
    assert first["summary"].startswith("threads of train (7) wanted a processor")
    assert "being ready to run and running" in first[echo.CHAIN_EVIDENCE]
    assert len(first[echo.CHAIN_ADVICE].splitlines()) == 2
    assert outcomes == {"sent": 3, "failed": 0, "over_limit": 0, "unreadable": 0}


def test_an_episode_is_searched_once_more_when_its_call_stacks_are_there(tmp_path: Path) -> None:
    file = tmp_path / "trace.db"

    async def drive(chains: CausalChains) -> None:
        starve(file, NOW, 1)
        await search(chains, NOW)
        for pid, seconds in ((7, STACKS_SECONDS - 1), (8, STACKS_SECONDS), (9, STACKS_SECONDS + 1)):
            starve(file, NOW, 30, [pid])
            await search(chains, NOW + seconds)

    found, _ = records_of(file, drive)
    assert {one[echo.CHAIN_SUBJECT] for one in found} == {"7", "8"}


def test_an_episode_has_a_most_of_records(tmp_path: Path) -> None:
    file = tmp_path / "trace.db"

    async def drive(chains: CausalChains) -> None:
        starve(file, NOW, 30, range(1, 15))
        await search(chains, NOW)
        await search(chains, NOW + SEARCH_SECONDS)

    found, outcomes = records_of(file, drive)
    assert len(found) == MAX_RECORDS
    assert (outcomes["sent"], outcomes["over_limit"]) == (MAX_RECORDS, 4)


def test_what_did_not_arrive_is_sent_after_the_next_search(tmp_path: Path) -> None:
    file = tmp_path / "trace.db"

    async def drive(chains: CausalChains) -> None:
        starve(file, NOW, 30)
        await search(chains, NOW)
        await search(chains, NOW + SEARCH_SECONDS)

    found, outcomes = records_of(file, drive, refused=1)
    assert len(found) == 1
    assert (outcomes["sent"], outcomes["failed"]) == (1, 1)


@pytest.mark.parametrize("content", [None, b"this is no database" * 100])
def test_a_database_that_cannot_be_read_is_counted(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "trace.db"
    if content:
        file.write_bytes(content)

    async def drive(chains: CausalChains) -> None:
        await search(chains, NOW)

    found, outcomes = records_of(file, drive)
    assert (found, outcomes["unreadable"]) == ([], 1)


def test_a_search_ends_when_its_time_is_used_up(tmp_path: Path) -> None:
    file = tmp_path / "trace.db"
    starve(file, NOW, 1)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(sqlite3.DatabaseError, match="interrupted"), open_database(file, budget=0.0) as database:
        database.execute(endless).fetchone()


def test_a_node_that_collectives_wait_for_explains_itself(tmp_path: Path) -> None:
    file, asked, taken = tmp_path / "trace.db", ["healthy", "healthy;collectives=late_rank"], list[Signal]()
    starve(file, NOW, 30)

    def handler(push: Push) -> Answer:
        taken.append(push.signal)
        line = asked.pop(0) if push.signal is Signal.METRICS else ""
        return Answer(http_headers=f"{headers.VERDICT}: {line}\r\n".encode() if line else b"")

    async def work() -> bool:
        server = OtlpHttpReceiver(handler, Authenticator())
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        client = FleetClient(ClientConfig(endpoint=address, cluster="c", tls=ClientTls(insecure=True)))
        config = AgentSettings(
            fleet_endpoint=address, fleet_cluster_id="c", fleet_node_id="n", signal_db_path=file,
            fleet_persist_path=tmp_path / "baseline.json",
        )  # fmt: skip
        loop = PushLoop(config, ScriptedSource.constant(), GpuReading, client, None, lambda: NOW)
        assert loop.chains
        for _ in range(2):
            await loop.tick()
            await loop.chains.close()
        await client.close()
        await server.stop(0.1)
        return loop.straggler

    assert asyncio.run(asyncio.wait_for(work(), 60)) is False
    assert taken == [Signal.METRICS, Signal.METRICS, Signal.LOGS]
