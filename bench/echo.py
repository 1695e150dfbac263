"""Measures Echo: the server pinned to one core, the load to another. `make bench-echo` prints the table.

`make bench-echo ARGS=--quick` takes about a minute; the full run needs some minutes and 2 GB of disk. The server's
modules are compiled once, as in its image.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import nats
from nats.js.errors import NotFoundError

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from ingero_contract import attributes, echo, metrics  # noqa: E402
from ingero_contract.signals import MEMORY_HEADROOM, THROUGHPUT_RATIO  # noqa: E402
from ingero_echo import rollups  # noqa: E402
from ingero_echo.questions import QUESTIONS  # noqa: E402
from ingero_echo.settings import RetentionConfig, StoreConfig  # noqa: E402
from ingero_echo.store import Store  # noqa: E402
from ingero_echo.stress import Plan, RequestSource  # noqa: E402
from ingero_kit.nats_settings import otlp_subject  # noqa: E402
from ingero_kit.otlp_signal import Signal  # noqa: E402
from ingero_testing.lakes import table_config  # noqa: E402
from ingero_testing.processes import BIN, Running, free_port, wait_until  # noqa: E402
from ingero_testing.processes import echo as start_echo  # noqa: E402
from scripts.nats_servers import nats_servers  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]
FORMATS: Final = {
    "Arrow": "application/vnd.apache.arrow.stream", "Parquet": "application/vnd.apache.parquet",
    "JSON": "application/json", "CSV": "text/csv",
}  # fmt: skip
CLIENT = httpx.Client(timeout=120, trust_env=False)


class Size(NamedTuple):
    """Amount of work of a run."""

    quick: bool
    kills: int


def row(what: str, ours: str, target: str, reached: bool | None) -> None:
    """One line of the table."""
    verdict = "–" if reached is None else "reached" if reached else "NOT REACHED"
    print(f"| {what} | {ours} | {target} | {verdict} |", flush=True)


def most_memory(service: Running) -> float:
    """The largest resident memory of the server so far, megabytes."""
    lines = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def pinned(folder: Path, change: dict[str, Any] | None = None) -> AbstractContextManager[Running]:
    """Run Echo on the server's core."""
    return start_echo(folder, change, "taskset", "-c", str(SERVER_CORE))


def stress(service: Running, protocol: str, nodes: int, events: int, check: bool) -> dict[str, Any]:
    """Run the stress tool once on the load's core."""
    command = [
        "taskset", "-c", str(LOAD_CORE), str(BIN / "ingero-echo"), "stress", "--protocol", protocol, "--endpoint",
        f"127.0.0.1:{service.ports[f'otlp/{protocol}']}", "--nodes", str(nodes), "--events", str(events // nodes),
        "--batch", "1000", "--cluster", f"bench-{time.time_ns()}", "--json",
    ]  # fmt: skip
    if check:
        command += ["--api", service.url("api")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if not done.stdout:
        raise SystemExit(f"bench: the stress tool failed: {done.stderr[-500:]}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def page(service: Running, name: str) -> float:
    """One value of the metrics page."""
    text = CLIENT.get(service.url("api", echo.METRICS_PAGE)).text
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def ingest(folder: Path, size: Size) -> None:
    """Durable events a second, and the memory used meanwhile."""
    events, rounds = (200_000, 1) if size.quick else (800_000, 3)
    with pinned(folder / "ingest") as service:
        wait_until(lambda: "front_ends_ready" in service.words(), "the front ends")
        spent, began = page(service, "process_cpu_seconds_total"), page(service, "ingero_echo_events_total")
        rates = [stress(service, "http", 32, events, check=False)["events_per_second"] for _ in range(rounds)]
        rate = statistics.median(rates)
        row(
            "durable OTLP/HTTP ingest, 32 senders, batches of 1,000, events/s", f"{rate:,.0f}", "≥ 100,000",
            rate >= 100_000,
        )  # fmt: skip
        spent = page(service, "process_cpu_seconds_total") - spent
        each = 1e6 * spent / (page(service, "ingero_echo_events_total") - began)
        row(
            "the server's processor time for an event (what a busy machine does not change much)",
            f"{each:.1f} µs, {1e6 / each:,.0f} a core", "≥ 100,000 a core", each <= 10,
        )  # fmt: skip
        facts = stress(service, "http", 8, events // 4, check=True)
        row(
            f"{facts['acknowledged']:,} events searched by id: missing, doubled, changed",
            f"{facts['missing']}, {facts['doubled']}, {facts['wrong_chain']}", "0, 0, 0", facts["clean"],
        )  # fmt: skip
        over_grpc = stress(service, "grpc", 32, events // 2, check=False)["events_per_second"]
        row("the same over gRPC, events/s", f"{over_grpc:,.0f}", "", None)
        memory = most_memory(service)
        row("largest resident memory under ingest", f"{memory:.0f} MB", "< 500 MB", memory < 500)
        pause = 1000 * page(service, "ingero_echo_longest_write_seconds")
        row("longest transaction, checkpoints included", f"{pause:.0f} ms", "", None)


async def publish(urls: list[str], stream: str, requests: int) -> tuple[float, float]:
    """Publish requests of 20 events as fast as the server takes them, four at once; returns begin and end."""
    client = await nats.connect(urls)
    jetstream, places = client.jetstream(), asyncio.Semaphore(4)
    while True:
        with contextlib.suppress(NotFoundError):
            await jetstream.stream_info(stream)
            break
        await asyncio.sleep(0.1)
    began = time.perf_counter()
    source = RequestSource(Plan(endpoint="", cluster="bench"), 0)

    async def one() -> None:
        async with places:
            body = gzip.compress(source.request(20)[1], 1)
            await jetstream.publish(otlp_subject(stream, Signal.LOGS), body, headers={"Content-Encoding": "gzip"})

    await asyncio.gather(*(one() for _ in range(requests)))
    ended = time.perf_counter()
    await client.close()
    return began, ended


def stream(folder: Path, size: Size) -> None:
    """Requests that are read from a stream, written and sealed while they are published faster than that."""
    requests, allowed = 4_000 if size.quick else 20_000, os.sched_getaffinity(0)
    tables = table_config(folder / "lake", every=5.0, max_rows=1_000_000).model_dump(mode="json", exclude_none=True)
    os.sched_setaffinity(0, {LOAD_CORE})  # of NATS too, which inherits it
    with nats_servers(folder / "nats") as servers:
        source = {"nats": {"servers": servers.urls, "stream": "bench", "max_bytes": 256 << 20}}
        with pinned(folder / "stream", {"table": tables, "source": source}) as service:
            began, ended = asyncio.run(publish(servers.urls, "bench", requests))
            wait_until(lambda: page(service, "ingero_echo_source_messages_total") == requests, "all requests", 600)
            rate = requests / (time.perf_counter() - began)
    os.sched_setaffinity(0, allowed)
    published = f"{requests / (ended - began):,.0f} a second are published"
    row(f"requests of 20 events from a stream, durable, a second; {published}", f"{rate:,.0f}", "", None)


def kills(folder: Path, size: Size) -> None:
    """Senders that never stop, and a server that is killed repeatedly."""
    times = size.kills
    ports = {"ingest": {"http_endpoint": f"127.0.0.1:{free_port()}"}, "api": {"endpoint": f"127.0.0.1:{free_port()}"}}
    endpoint, api = ports["ingest"]["http_endpoint"], f"http://{ports['api']['endpoint']}"
    command = [
        str(BIN / "ingero-echo"), "stress", "--protocol", "http", "--endpoint", endpoint, "--nodes", "8", "--events",
        "1000000", "--batch", "100", "--cluster", "kills", "--api", api, "--json",
    ]  # fmt: skip
    with subprocess.Popen(["taskset", "-c", str(LOAD_CORE), *command], stdout=subprocess.PIPE, text=True) as sender:
        try:
            for number in range(times):
                with pinned(folder / "kills", ports) as service:
                    time.sleep(0.7 + 0.1 * (number % 7))
                    os.kill(service.process.pid, signal.SIGKILL)
                    service.process.wait()
            with pinned(folder / "kills", ports):
                sender.send_signal(signal.SIGINT)
                facts = json.loads(sender.communicate(timeout=600)[0])
        finally:
            sender.kill()
    row(
        f"8 senders, {times} times kill -9, {facts['acknowledged']:,} acknowledged: missing, doubled, changed",
        f"{facts['missing']}, {facts['doubled']}, {facts['wrong_chain']}", "0, 0, 0", facts["clean"],
    )  # fmt: skip


def fill(path: Path, millions: int) -> None:
    """A store of health scores of 200 nodes in 10 clusters over the last day, with one slow node in each cluster."""
    store = Store.open(StoreConfig(path=path, memory_limit_mb=1000))
    for part in range(millions):
        store.connection.execute(
            f"""
            INSERT INTO events
            SELECT uuid(), make_timestamp_ns(epoch_ns(now()) - 86400000000000 + moment), now()::TIMESTAMP, 'metrics',
                   'cluster-' || (i % 10), 'node-' || (i % 200),
                   CASE i % 3 WHEN 0 THEN '{metrics.HEALTH_SCORE}' WHEN 1 THEN '{THROUGHPUT_RATIO}'
                              ELSE '{MEMORY_HEADROOM}' END,
                   CASE WHEN i % 200 < 10 THEN 0.4 ELSE 0.9 END + random() / 50, (i % 200)::INTEGER, 200,
                   CASE WHEN i % 97 = 0 THEN 'chain-' || i END, NULL,
                   '{{"{attributes.NODE_STATE}":"active","{attributes.WORKLOAD_TYPE}":"training"}}', 1
            FROM (SELECT i, (i + {part} * 1000000) * {86_400 * 10**9 // (millions * 10**6)} AS moment
                  FROM range(1000000) r(i))
            """
        )
    store.connection.execute(rollups.ADD.replace("FROM rows", "FROM events"), {"seq": 1})
    store.close()


def questions(folder: Path, size: Size) -> None:
    """How long queries take over a large store, and how soon it serves again after a kill."""
    millions = 1 if size.quick else 10
    fill(folder / "large/echo.duckdb", millions)
    stored = (folder / "large/echo.duckdb").stat().st_size / 1e6
    row(f"{millions} million events on disk", f"{stored:.0f} MB", "", None)
    with pinned(folder / "large") as service:
        wait_until(lambda: "front_ends_ready" in service.words(), "the front ends")
        one = {"node_id": "node-7", "metric_name": metrics.HEALTH_SCORE, "length": "12h", "apart": "12h"}
        every: list[tuple[str, dict[str, Any]]] = [
            ("find_stragglers", {"cluster_id": "cluster-3", "since": "1h"}),
            ("find_outlier_nodes", {"cluster_id": "cluster-3", "since": "1h"}),
            ("summary", {"since": "1h"}),
        ]
        for answer in QUESTIONS.values():
            needed = answer.arguments.model_json_schema()
            names = {*needed.get("required", ()), *({"length", "apart"} & needed["properties"].keys())}
            since = {"since": "all"} if "since" in needed["properties"] else {}
            every.append((answer.name, {**since, **{name: one[name] for name in sorted(names)}}))
        by_node = (
            f"SELECT node_id, avg(value_double) FROM events WHERE metric_name = '{metrics.HEALTH_SCORE}' GROUP BY 1"
        )
        every += [("run_analysis", {"sql": by_node}), ("run_analysis", {"sql": "SELECT count(*) FROM events"})]
        for tool, arguments in every:
            url = service.url("api", echo.TOOLS + echo.TOOL_PREFIX + tool)
            times: list[float] = []
            first = CLIENT.post(url, json=arguments)
            if first.is_error:
                row(f"{tool}, refused", first.text[:120], "answered", False)
                continue
            for _ in range(30):
                began = time.perf_counter()
                CLIENT.post(url, json=arguments).raise_for_status()
                times.append(1000 * (time.perf_counter() - began))
            p95 = sorted(times)[int(len(times) * 0.95)]
            words = ", ".join(f"{key}={value}" for key, value in arguments.items())
            row(f"{tool} ({words}), p95", f"{p95:.0f} ms", "< 100 ms", p95 < 100)
        log = folder / "large/echo.duckdb.wal"
        full = 0.0
        for _ in range(60):
            stress(service, "http", 8, 16_000, check=False)
            full = max(full, log.stat().st_size / 1e6 if log.exists() else 0.0)
            if full > 24:
                break
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
    began = time.perf_counter()
    with pinned(folder / "large"):
        seconds = time.perf_counter() - began
    row(
        f"ready after kill -9, {millions} million events, {full:.0f} MB write-ahead log", f"{seconds:.2f} s", "< 2 s",
        seconds < 2,
    )  # fmt: skip


def formats(folder: Path, size: Size) -> None:
    """The processor time of the server for a large result of SQL, by format; the process that runs SQL excluded."""
    fill(folder / "formats/echo.duckdb", 1)
    question = {"sql": "SELECT * FROM events LIMIT 100000", "limit": 100_000}
    change = {"query": {"max_rows": 100_000, "max_bytes": 256 << 20, "sql_memory_mb": 1024}}
    rounds = 3 if size.quick else 10
    with pinned(folder / "formats", change) as service:
        wait_until(lambda: "front_ends_ready" in service.words(), "the front ends")
        for name, media in FORMATS.items():
            CLIENT.post(service.url("api", echo.SQL), json=question, headers={"accept": media}).raise_for_status()
            spent = page(service, "process_cpu_seconds_total")
            for _ in range(rounds):
                answer = CLIENT.post(service.url("api", echo.SQL), json=question, headers={"accept": media})
                answer.raise_for_status()
            each = 1000 * (page(service, "process_cpu_seconds_total") - spent) / rounds
            row(
                f"100,000 rows of SQL as {name} ({len(answer.content) / 1e6:.0f} MB), the server's processor time",
                f"{each:.0f} ms", "", None,
            )  # fmt: skip


def retention(folder: Path, size: Size) -> None:
    """Whether the file stays bounded while old events are deleted and new ones arrive."""
    cycles, rows = 10, 20_000 if size.quick else 200_000
    store = Store.open(StoreConfig(path=folder / "kept/echo.duckdb"))
    from ingero_echo import retention as rule

    day = 86_400 * 10**9
    for cycle in range(cycles + 3):
        store.connection.execute(
            "INSERT INTO events SELECT uuid(), make_timestamp_ns(? + i * 1000000), now()::TIMESTAMP, 'logs', 'c', "
            "'n' || (i % 100), 'm', random(), 1, 8, NULL, uuid()::VARCHAR, '{}', 1 FROM range(?) r(i)",
            [cycle * day, rows],
        )
        rule.sweep(store, RetentionConfig(age=2.5 * 86400), (cycle + 1) * day)
    store.connection.execute("CHECKPOINT")
    live = store.live_bytes()
    store.close()
    ratio = (folder / "kept/echo.duckdb").stat().st_size / live
    row(f"file over live data after {cycles} retention cycles", f"{ratio:.2f}", "≤ 1.5", ratio <= 1.5)


PARTS: Final = (ingest, stream, kills, questions, formats, retention)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller and shorter")
    parser.add_argument("--kills", type=int, help="how often the server is killed; 20, or 3 with --quick")
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], help="one part")
    given = parser.parse_args()
    size = Size(given.quick, given.kills or (3 if given.quick else 20))
    print("| figure | ours | target | |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        os.environ["PYTHONPYCACHEPREFIX"] = f"{name}/compiled"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for part in PARTS:
            if given.only in (None, part.__name__):
                part(Path(name), size)


if __name__ == "__main__":
    main()
