"""What is observed of real NCCL jobs on this machine's GPU: who is named, how soon, and what tracing costs.

`make bench-gpu` prints the table, as root, with PyTorch for the GPU in the environment. Several ranks share a GPU
(`scripts.cuda_job`), so steps are long and vary; what is compared is compared on the same job.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT)]

from ingero_detect.hangs.ras_status import parse_status  # noqa: E402
from ingero_kit.ras_client import RasUnavailable, fetch_status  # noqa: E402
from ingero_testing.gpu_job import attached  # noqa: E402
from ingero_testing.processes import Running  # noqa: E402
from scripts.cuda import CudaJob, CudaJobFailed, cuda_job, why_no_cuda  # noqa: E402
from scripts.lab import BIN, LabFailed, Site, laboratory  # noqa: E402

PUSH = 5.0
CLUSTER = "gpu"
SETTLE, AFTER, DEADLINE = 8.0, 4.0, 20.0
"""Seconds: without a late rank; watched after it is named; until it must be."""
PHASE = 8.0
"""Seconds in which the cost of tracing is measured once."""
HANG_WITHIN = 75.0
MAX_STATUS = 1 << 24
MODELS = [
    ("ddp", "host", 1, 0.05), ("fsdp", "host", 1, 0.05), ("ddp", "host", 10, 0.05), ("ddp", "host", 3, 0.2),
    ("ddp", "gpu", 1, 0.05), ("fsdp", "gpu", 1, 0.05),
]  # fmt: skip
"""Models in training, where one of their ranks is late, after how many steps each rank waits for its GPU, and by how
many seconds a step it is late. A host that does not wait runs ahead of its GPU, and so long costs nobody anything by
being a little late. On the GPU, all hosts wait for the late rank alike."""
FAR_AHEAD = 0.1
"""Seconds a step by which the late rank's host keeps everybody waiting, however far hosts run ahead."""
PARTS = ("late", "hang", "models", "inspector", "cost")
WITHIN, COST = 5.0, 0.005


def row(what: str, ours: str, target: str, reached: bool | None) -> None:
    """One line of the table."""
    verdict = "–" if reached is None else "reached" if reached else "NOT REACHED"
    print(f"| {what} | {ours} | {target} | {verdict} |", flush=True)


@dataclass
class Bench:
    """Fleet and the tracer, which were there before the jobs. `folder`: where recordings are kept."""

    site: Site
    folder: Path

    @property
    def database(self) -> Path:
        return self.site.lab.folder / "trace.db"

    @contextlib.contextmanager
    def tracer(self) -> Iterator[Running]:
        """Trace meanwhile."""
        site = self.site
        site.start(
            "tracer", str(BIN / "ingero-agent"), "trace", "--db", str(self.database), "--node", "node-0",
            "--cluster", CLUSTER, "--otlp", f"http://127.0.0.1:{site.ports['otlp/http']}", "--otlp-interval", "1s",
        )  # fmt: skip
        name = site.name("tracer")
        running = Running(site.lab.processes[name], log=site.lab.log(name))
        try:
            site.lab.wait("the tracer", lambda: '"started"' in running.words())
            yield running
        finally:
            site.lab.stop(name)

    def query(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of the tracer's database."""
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            return connection.execute(text, values).fetchall()

    def places(self, pid: int) -> set[tuple[str, int]]:
        """The communicators that a process is in, and its rank in each."""
        return set(self.query("SELECT DISTINCT comm_hash, rank FROM collectives WHERE pid = ?", pid))

    def collectives(self) -> dict[str, Any]:
        """What Fleet reports on collectives."""
        found = self.site.get("diagnostics", f"/api/v1/collectives?cluster_id={CLUSTER}&limit=10000")
        return found if isinstance(found, dict) else {}

    def named(self) -> set[tuple[str, int]]:
        """Communicators and the ranks accused in them."""
        found = self.collectives().get("communicators", [])
        return {(item["comm"], item["finding"]["rank"]) for item in found if item.get("verdict") == "culprit"}

    def watch(
        self, seconds: float, until: Callable[[set[tuple[str, int]]], bool]
    ) -> tuple[float | None, set[tuple[str, int]]]:
        """All that is named within so many seconds, or until a condition holds, with the time of that."""
        begun, seen = time.monotonic(), set[tuple[str, int]]()
        while (passed := time.monotonic() - begun) < seconds:
            self.site.lab.check()
            seen |= self.named()
            if until(seen):
                return passed, seen
            time.sleep(0.1)
        return None, seen

    def late_rank(self, job: CudaJob, rank: int) -> tuple[float | None, int]:
        """Seconds until the late rank is named, and how many others were, before or after."""
        old = self.named()
        _, early = self.watch(SETTLE, lambda _: False)
        job.hurt()
        seconds, seen = self.watch(DEADLINE, lambda named: bool(named & self.places(job.pids[rank])))
        _, after = self.watch(AFTER, lambda _: False)
        job.heal()
        others = (early | (seen | after) - self.places(job.pids[rank])) - old
        here = set[tuple[str, int]]().union(*map(self.places, job.pids))
        for comm, number in sorted(others):
            of = "this job" if (comm, number) in here else "an earlier job"
            print(f"  also named: rank {number} of communicator {comm} of {of}", file=sys.stderr, flush=True)
        return seconds, len(others)


def ras_counts(bench: Bench, job: CudaJob) -> dict[tuple[str, int], int]:
    """How many collectives NCCL says that each rank of each communicator has started."""
    said = asyncio.run(fetch_status(job.ras, MAX_STATUS))
    (bench.folder / "ras.json").write_bytes(said)
    status = parse_status(said, lambda words: print(words, file=sys.stderr))
    return {
        (comm.name.partition("/")[0].removeprefix("0x").rjust(16, "0"), comm.places[process]): sum(counts.values())
        for comm in status.communicators.values()
        for process, counts in comm.counts.items()
    }


def mapped_libraries(job: CudaJob) -> list[Path]:
    """The files of NCCL and CUDA's runtime that the first rank uses."""
    words = {line.split()[-1] for line in Path(f"/proc/{job.pids[0]}/maps").read_text().splitlines()}
    return [Path(word) for word in sorted(words) if Path(word).name.startswith(("libnccl.so", "libcudart.so"))]


def wait_attached(bench: Bench, tracer: Running, job: CudaJob) -> None:
    """Wait until the tracer sees the job's calls."""
    libraries = mapped_libraries(job)
    bench.site.lab.wait("the tracer to attach", lambda: attached(tracer, *libraries))


def counted(bench: Bench, job: CudaJob) -> None:
    """Whether the tracer has numbered every collective as NCCL counts them.

    NCCL is asked at one moment. What was called before it has at most the number that NCCL says, and what was called
    after the answer a larger one.
    """
    asked = time.time_ns()
    counts = ras_counts(bench, job)
    told = time.time_ns()
    time.sleep(2 * PUSH)
    known = bench.query(
        "SELECT comm_hash, rank, MIN(seq_exact), MAX(CASE WHEN timestamp < ? THEN seq ELSE 0 END), "
        "MIN(CASE WHEN timestamp > ? THEN seq ELSE ? END) FROM collectives WHERE pid IN "
        f"({','.join(map(str, job.pids))}) GROUP BY 1, 2",
        asked, told, 1 << 62,
    )  # fmt: skip
    right = sum(
        bool(exact) and before <= counts.get((comm, rank), -1) < after for comm, rank, exact, before, after in known
    )
    row("ranks of communicators whose collectives have NCCL's own hash, rank and number", f"{right} of {len(known)}",
        "all", bool(known) and right == len(known))  # fmt: skip


def cost(bench: Bench, flags: tuple[object, ...]) -> None:
    """The duration of a step with and without the tracer, in turns on one job."""
    with cuda_job(bench.folder, *flags) as job:
        job.go()
        time.sleep(3.0)
        job.dump(bench.folder / "cost")
        medians: dict[bool, list[float]] = {True: [], False: []}
        for traced in (False, True, True, False):
            with bench.tracer() if traced else contextlib.nullcontext() as tracer:
                if tracer is not None:
                    wait_attached(bench, tracer, job)
                time.sleep(1.0)
                job.dump(bench.folder / "cost")
                time.sleep(PHASE)
                medians[traced].append(statistics.median(job.dump(bench.folder / "cost")))
        ratio = statistics.mean(medians[True]) / statistics.mean(medians[False]) - 1
        spread = max(abs(one / other - 1) for one, other in medians.values())
        reached = ratio <= COST if max(abs(ratio), COST) >= spread else None
        row(f"longer steps while traced (two turns alike differ by {spread:.1%})", f"{ratio:+.2%}",
            f"≤ {COST:.1%}", reached)  # fmt: skip


def hang(bench: Bench, flags: tuple[object, ...], rank: int) -> None:
    """A rank is stopped: what RAS, asked by the agent, and the dumps of the others show."""
    site, folder = bench.site, bench.folder
    with cuda_job(folder, *flags) as job:
        job.go()
        site.start(
            "agent", str(BIN / "ingero-agent"), "fleet-push", "--fleet-insecure",
            "--fleet-endpoint", f"127.0.0.1:{site.ports['otlp/http']}", "--fleet-cluster-id", CLUSTER,
            "--signal-db-path", str(bench.database), "--fleet-node-id", "node-0", "--fleet-push-interval", "1",
            "--no-detect-provider", "--warmup-samples", "5",
            "--fleet-persist-path", str(folder / "baseline.json"),
            "--ras-address", job.ras, "--ras-interval", "10s",
        )  # fmt: skip
        try:
            time.sleep(10.0)
            healthy = diagnosed(job, folder / "running")
            row("ranks certain to hang in dumps of a running job", str(len(healthy["ranks"])), "0",
                not healthy["ranks"])  # fmt: skip
            early = bench.collectives().get("hangs", [])
            (folder / "nodes.json").write_text(json.dumps(site.nodes_answer(), indent=1))
            with job.stopped(rank):
                begun, found = time.monotonic(), list[dict[str, Any]]()
                while not found and time.monotonic() - begun < HANG_WITHIN:
                    time.sleep(0.5)
                    found = bench.collectives().get("hangs", [])
                seconds = time.monotonic() - begun
                verdict = diagnosed(job, folder / "stopped")
            (folder / "hangs.json").write_text(json.dumps([early, found], indent=1))
        finally:
            site.lab.stop(site.name("agent"))
        after = f"{seconds:.0f} s" if found else "not reported"
        row("a stopped rank: hang reported by an agent that asks RAS", after, f"≤ {HANG_WITHIN:g} s, none before",
            bool(found) and not early)  # fmt: skip
        likely = verdict["ranks"] or verdict["evidence"]["most_likely"]
        says = f"{likely} ({verdict['kind']})"
        row("the rank that Flight Recorder dumps of the others show", says, f"[{rank}]", likely == [rank])


def diagnosed(job: CudaJob, folder: Path) -> dict[str, Any]:
    """What `diagnose` says to the dumps of a job."""
    job.dump(folder)
    for file in folder.glob("steps_*"):
        file.unlink()
    return answer("--flight-recorder", folder)


def answer(*arguments: object) -> dict[str, Any]:
    """What `diagnose` says."""
    command = [str(BIN / "ingero-fleet"), "diagnose", *map(str, arguments), "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise LabFailed(done.stderr)
    return dict(json.loads(done.stdout))


def inspector(bench: Bench, plugin: Path, how: str) -> None:
    """A late rank in a job that exports by itself, through NCCL Inspector; each rank is a node of its own."""
    late = f"{how}-2"
    environment = {
        "NCCL_PROFILER_PLUGIN": str(plugin), "NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_OTEL_EXPORT": "1",
        "NCCL_INSPECTOR_OTEL_VERBOSE": "1", "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "1000000",
        "NCCL_INSPECTOR_DUMP_DIR": str(bench.folder / "inspector"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{bench.site.ports['otlp/http']}",
        "OTEL_RESOURCE_ATTRIBUTES": f"ingero.cluster.id={CLUSTER},ingero.node.id={how}-{{rank}}",
    }  # fmt: skip

    def accused() -> set[str]:
        found = bench.collectives().get("communicators", [])
        nodes = {str(item["finding"]["node_id"]) for item in found if item.get("verdict") == "culprit"}
        return {node for node in nodes if node.startswith(f"{how}-")}

    flags = ("--ranks", 4, "--late", 2, "--extra", 0.05, "--how", how)
    with cuda_job(bench.folder, *flags, **environment) as job:
        job.go()
        time.sleep(SETTLE)
        early = accused()
        job.hurt()
        begun, seen = time.monotonic(), set[str]()
        while late not in seen and time.monotonic() - begun < DEADLINE:
            time.sleep(0.1)
            seen |= accused()
        seconds = time.monotonic() - begun
        (bench.folder / f"inspector-{how}.json").write_text(json.dumps(bench.collectives(), indent=1))
    said = f"{seconds:.1f} s" if late in seen else "not named"
    others = (early | seen) - {late}
    row(f"rank late on its {how}, in the exports of NCCL Inspector", f"{said}; others {len(others)}",
        f"≤ {DEADLINE:g} s, 0", late in seen and not others)  # fmt: skip


def profile(job: CudaJob, folder: Path, rank: int) -> None:
    """Traces of PyTorch's profiler, while one rank is late."""
    job.hurt()
    time.sleep(1.0)
    wrote = job.profile(folder)
    job.heal()
    found = answer("--kineto", folder)
    row(f"traces of PyTorch's profiler of {wrote} ranks, rank {rank} late", f"{found['kind']} {found['ranks']}",
        f"rank [{rank}]", found["ranks"] == [rank])  # fmt: skip


def named_live(bench: Bench, jobs: int) -> None:
    """Jobs in which a rank becomes late on its host, traced."""
    times, wrong, total = list[float](), 0, 0
    for number in range(jobs):
        ranks, tensor, late = ((8, 2, 5), (4, 1, 2), (4, 2, 3))[number % 3]
        flags = ("--ranks", ranks, "--tensor", tensor, "--late", late, "--extra", 0.05)
        with cuda_job(bench.folder, *flags) as job:
            job.go()
            seconds, others = bench.late_rank(job, late)
            total, wrong = total + 1, wrong + others
            times += [] if seconds is None else [seconds]
            said = "not named" if seconds is None else f"named after {seconds:.1f} s"
            print(f"  {ranks} ranks, rank {late} late: {said}; others {others}", file=sys.stderr, flush=True)
            (bench.folder / f"collectives-{number}.json").write_text(json.dumps(bench.collectives(), indent=1))
            if number == 1:
                part(counted, bench, job)
                part(profile, job, bench.folder / "kineto", late)
    row("jobs in which the late rank is named live", f"{len(times)} of {total}", "all", len(times) == total)
    row("others named", str(wrong), "0", not wrong)
    if times:
        row("seconds to the name, median / worst", f"{statistics.median(times):.1f} / {max(times):.1f}",
            f"worst ≤ {WITHIN:g}", max(times) <= WITHIN)  # fmt: skip


def model_named(bench: Bench, model: str, how: str, read: int, extra: float) -> None:
    """A rank of a model in training becomes late, traced."""
    flags = ("--ranks", 4, "--model", model, "--late", 2, "--extra", extra, "--how", how, "--read-loss", read)
    with cuda_job(bench.folder, *flags) as job:
        job.go()
        seconds, others = bench.late_rank(job, 2)
        durations = job.dump(bench.folder / "model")
        (bench.folder / f"{model}-{how}-{read}.json").write_text(json.dumps(bench.collectives(), indent=1))
    said = f"{seconds:.1f} s" if seconds is not None else "not named"
    step = f"steps of {statistics.median(durations) * 1e3:.0f} ms"
    seen = how == "host" and (read == 1 or extra > FAR_AHEAD)
    what = f"{model.upper()}, loss read every {read} steps: rank {extra * 1e3:g} ms late on its {how} ({step})"
    row(what, f"{said}; others {others}",
        f"≤ {DEADLINE:g} s, 0" if seen else "0 others", not others and (seconds is not None or not seen))  # fmt: skip


Given = ParamSpec("Given")


def part(run: Callable[Given, None], *given: Given.args, **named: Given.kwargs) -> None:
    """Run one part; if it fails, its row says how, and the others go on."""
    try:
        run(*given, **named)
    except (LabFailed, CudaJobFailed, RasUnavailable, sqlite3.Error, OSError, ValueError, KeyError) as error:
        what = (run.__doc__ or "").partition("\n")[0]
        row(what, f"failed: {type(error).__name__}: {error}"[:300].replace("\n", " "), "", False)


def run(folder: Path, jobs: int, plugin: Path | None, parts: list[str]) -> None:
    """All rows of these parts."""
    with laboratory("gpu") as lab:
        bench = Bench(Site(lab, CLUSTER, PUSH, ()), folder)
        bench.site.start_fleet()
        job = ("--ranks", 4, "--tensor", 2)
        with bench.tracer():
            if "late" in parts:
                part(named_live, bench, jobs)
            if "hang" in parts:
                part(hang, bench, job, 1)
            for model, how, read, extra in MODELS if "models" in parts else ():
                part(model_named, bench, model, how, read, extra)
            if plugin and "inspector" in parts:
                for how in ("host", "gpu"):
                    part(inspector, bench, plugin, how)
            gpus = bench.query("SELECT COUNT(*), MIN(sm_mhz), MAX(used) / 1000000 FROM gpu_samples")
            row("rows of NVML, lowest clock in MHz, most memory in MB", f"{gpus[0]}", "some", bool(gpus[0][0]))
        if "cost" in parts:
            part(cost, bench, job)
        for name in ("fleet", "agent"):
            shutil.copy(lab.log(bench.site.name(name)), folder)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="make bench-gpu ARGS=...", description=__doc__)
    parser.add_argument("--jobs", type=int, default=3, help="jobs in which a rank becomes late (default 3)")
    parser.add_argument("--folder", type=Path, default=Path(".demo/gpu"), help="recordings (default .demo/gpu)")
    parser.add_argument("--inspector", type=Path, metavar="FILE", help="NCCL Inspector's plugin, to be tried too")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again (default all)")
    flags = parser.parse_args()
    missing = why_no_cuda()
    if missing:
        raise SystemExit(f"bench: {missing}")
    flags.folder.mkdir(parents=True, exist_ok=True)
    print("| what | ours | target | |\n| --- | --- | --- | --- |", flush=True)
    try:
        run(
            flags.folder.absolute(),
            flags.jobs,
            flags.inspector and flags.inspector.absolute(),
            flags.only or [*PARTS],
        )
    except (LabFailed, CudaJobFailed, RasUnavailable) as error:
        raise SystemExit(f"bench: {error}") from None


if __name__ == "__main__":
    main()
