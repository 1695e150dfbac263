"""The main scenario on one machine, with real processes: one workload is stopped, one slowed, then all are slowed.

Ends by itself; exit status 0 only if the right node, and no other, was named each time, and none in the last case.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from scripts.cuda_workloads import CudaWorkloads, why_not
from scripts.lab import BIN, FREE, Lab, LabFailed, Site, laboratory

INTERVAL = 1.0
WARMUP = 8
LEARNT = 12
CLUSTER = "demo"
FAULT_INTERVALS = 7.0
"""Push intervals for which a fault lasts: Fleet learns to expect a loss that ends within four, which is a pause."""


class View:
    """The output: a live table on a terminal, otherwise one line for each event, nothing with --json."""

    def __init__(self, quiet: bool) -> None:
        self.console = Console(stderr=quiet, quiet=quiet, highlight=False)
        self.live = (
            Live(console=self.console, refresh_per_second=4) if self.console.is_terminal and not quiet else None
        )

    def say(self, text: str) -> None:
        """Show one event."""
        self.console.print(text)

    def show(self, nodes: list[dict[str, Any]]) -> None:
        """Show the present state of the nodes."""
        if self.live is None:
            return
        table = Table("node", "state", "score", "verdict", "", title="what Fleet sees")
        for node in sorted(nodes, key=lambda item: str(item["node_id"])):
            table.add_row(
                node["node_id"],
                node["state"],
                f"{node['score']:.3f}",
                (node["verdict"] or {}).get("state", "-"),
                f"[bold red]{node['kind']}: {node['dominant_signal']}[/]" if node["straggler"] else "[green]fine[/]",
            )
        self.live.update(table)


class Demo:
    """One run of the demo."""

    def __init__(self, nodes: int, lab: Lab, view: View, *, traced: bool) -> None:
        self.site = Site(lab, CLUSTER, INTERVAL, tuple(f"node-{number}" for number in range(nodes)))
        self.cuda = CudaWorkloads(self.site) if traced else None
        self.lab = lab
        self.view = view
        self.echo: dict[str, int] = {}

    def start(self) -> None:
        """Start Echo, Fleet, workloads, agents, and the sink of the node that will be slowed."""
        folder, site = self.lab.folder, self.site
        echo_file = folder / "echo.json"
        store = {
            "store.path": str(folder / "echo.duckdb"),
            "ingest.grpc_endpoint": FREE,
            "ingest.http_endpoint": FREE,
            "api.endpoint": FREE,
        }
        self.lab.start(
            "echo", str(BIN / "ingero-echo"), "serve", "--insecure", "--ports-file", str(echo_file),
            *(word for path, value in store.items() for word in ("--set", f"{path}={value}")),
        )  # fmt: skip
        self.lab.wait("Echo to listen", echo_file.exists, 60)
        self.echo = json.loads(echo_file.read_text())
        site.start_fleet(
            processors__ingero__detector__warmup_ticks=str(LEARNT),
            processors__ingero__detector__record=str(folder / "history.csv"),
            exporters__otlphttp=f"{{endpoint: 'http://127.0.0.1:{self.echo['otlp/http']}', tls: {{insecure: true}}}}",
            service__pipelines__metrics__exporters="[prometheus, otlphttp]",
            service__pipelines__logs__exporters="[otlphttp]",
        )
        self.view.say(f"live page: http://127.0.0.1:{site.ports['diagnostics']}/")
        if self.cuda:
            self.cuda.start()
        else:
            site.start_workloads()
        site.start_agents(WARMUP, watching=self.cuda.watching if self.cuda else None)
        site.start_sink(site.nodes[-1])

    def workloads(self) -> str:
        """A description of what is measured."""
        if self.cuda:
            return f"processes measured by their CUDA and NCCL calls through eBPF, on {self.cuda.libraries.words}"
        return "real CPU workloads"

    def named(self) -> set[str]:
        """The present stragglers; updates the view."""
        self.view.show(self.site.nodes_answer())
        return self.site.named()

    def ready(self) -> bool:
        """Whether all nodes are healthy; updates the view."""
        self.view.show(self.site.nodes_answer())
        return self.site.ready()

    def pushes(self, node: str) -> int:
        """How many pushes of a node Fleet has accepted."""
        found = self.site.get("diagnostics", f"/api/v1/why?node_id={node}") or {}
        return int(found.get("pushes", 0))

    def episode(self, victim: str, what: str, hurt: int, heal: int) -> dict[str, Any]:
        """Impair one node, wait until it is named, restore it, wait until it is healthy."""
        self.view.say(f"[bold]{what}[/] ({victim})")
        earlier = self.pushes(victim)
        self.lab.wait("a push, so that the next ones are whole", lambda: self.pushes(victim) != earlier)
        self.site.hurt(hurt, victim)
        begun = time.monotonic()
        seconds = self.lab.wait(f"{victim} to be named", lambda: bool(self.named()), 90)
        wrong = self.named() - {victim}
        if wrong or victim not in self.named():
            raise LabFailed(f"named {sorted(self.named())} instead of {victim}")
        why = self.site.get("diagnostics", f"/api/v1/why?node_id={victim}") or {}
        self.view.say(
            f"  [bold red]{victim} is the straggler[/], named after {seconds:.1f} s, "
            f"{seconds / INTERVAL:.1f} push intervals"
        )
        self.view.say(f"  why: {why.get('why', '')} Weakest signal: {why.get('dominant_signal')}.")
        answer = self.ask(victim)
        self.lab.wait("the fault to last", lambda: time.monotonic() - begun >= FAULT_INTERVALS * INTERVAL)
        self.site.hurt(heal, victim)
        recovery = self.lab.wait(f"{victim} to recover", self.ready, 120)
        self.view.say(f"  healed; well again after {recovery:.1f} s")
        return {
            "what": what,
            "node": victim,
            "named_after_seconds": round(seconds, 2),
            "named_after_push_intervals": round(seconds / INTERVAL, 2),
            "recovered_after_seconds": round(recovery, 2),
            "echo": answer,
        }

    def together(self) -> dict[str, Any]:
        """Slow every workload to half: the job is slow, but no node is a straggler."""
        self.view.say("[bold]all workloads slowed to half their speed[/]")
        self.site.hurt(signal.SIGUSR1, *self.site.nodes)
        seconds = self.lab.wait("the job to be called slow", self.job_is_slow, 90)
        self.view.say(f"  after {seconds:.1f} s Fleet says that the job is slow, and [bold green]accuses nobody[/]")
        self.site.hurt(signal.SIGUSR2, *self.site.nodes)
        return {"what": "all workloads slowed", "told_after_seconds": round(seconds, 2), "accused": []}

    def job_is_slow(self) -> bool:
        """Whether Fleet reports the slow job; it is a failure if Fleet names any node meanwhile."""
        if wrong := self.named():
            raise LabFailed(f"named {sorted(wrong)} although all nodes slowed down together")
        return "ingero_fleet_job_slow{" in self.site.page()

    def ask(self, victim: str) -> str:
        """Ask Echo which node straggles and why, as a user would."""
        found = dict[str, Any]()

        def echo_knows() -> bool:
            done = subprocess.run(
                [
                    BIN / "ingero-echo", "ask", "find_stragglers", f"cluster_id={CLUSTER}", "--json",
                    "--api", f"http://127.0.0.1:{self.echo['api']}",
                ],
                capture_output=True, text=True,
            )  # fmt: skip
            found.update(json.loads(done.stdout) if done.returncode == 0 else {})
            return bool(found.get("rows"))

        self.lab.wait("Echo to know of it", echo_knows, 30)
        if found["rows"][0]["node_id"] != victim:
            raise LabFailed(f"Echo ranks {found['rows'][0]['node_id']} before {victim}")
        summary = str(found["summary"])
        self.view.say(f"  ingero-echo ask find_stragglers: {summary}")
        return summary

    def run(self) -> dict[str, Any]:
        """Run the whole scenario."""
        view, nodes = self.view, self.site.nodes
        stopped, slowed = nodes[-2:]  # not one: the agent of a node that had stopped learns anew, and pushes no fall
        view.say(
            f"{len(nodes)} agents over {self.workloads()}, shortened for the demo: a push every {INTERVAL:g} s "
            f"(production: 10 s), {WARMUP} and {LEARNT} samples of warm-up of agent and Fleet (production: 30 each), "
            "a quorum of 3 (production: 5)" + (", calls read every 0.1 s (production: 1 s)." if self.cuda else ".")
        )
        self.start()
        quorum = self.lab.wait("all nodes to be active and known", self.ready, 180)
        view.say(f"all {len(nodes)} nodes active and known to Fleet after {quorum:.1f} s")
        episodes = [
            self.episode(stopped, "one workload taken away", signal.SIGSTOP, signal.SIGCONT),
            self.episode(slowed, "one workload slowed to half its speed", signal.SIGUSR1, signal.SIGUSR2),
            self.together(),
        ]
        state, resolved, errors = self.site.sink_events()
        view.say(
            f"ingero-sink of {slowed} counted {state} reports of its agent as a straggler and {resolved} recoveries; "
            f"{errors} lines could not be read"
        )
        return {
            "nodes": len(nodes),
            "quorum_after_seconds": round(quorum, 2),
            "episodes": episodes,
            "sink": self.site.sink_lines(),
        }


def main() -> int:
    """Parse the flags, run, report the result."""
    parser = argparse.ArgumentParser(prog="make demo ARGS=...", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5, help="simulated nodes, 3 to 32 (default 5)")
    parser.add_argument(
        "--keep", action="store_true", help="leave it running until Ctrl-C, with its addresses printed"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the story")
    parser.add_argument(
        "--source", choices=("auto", "ebpf", "procfs"), default="auto",
        help="measure by CUDA and NCCL calls through eBPF (as root with libbpf), or by /proc (default auto)",
    )  # fmt: skip
    flags = parser.parse_args()
    if not 3 <= flags.nodes <= 32:
        parser.error("--nodes must be between 3 and 32")
    view = View(quiet=flags.json)
    obstacle = why_not() if flags.source != "procfs" else ""
    if obstacle and flags.source == "ebpf":
        parser.error(f"--source ebpf: {obstacle}")
    if obstacle:
        view.say(f"CUDA and NCCL calls cannot be traced here: {obstacle}. Measuring by /proc instead.")
    traced = flags.source != "procfs" and not obstacle
    try:
        with laboratory("demo") as lab:
            demo = Demo(flags.nodes, lab, view, traced=traced)
            with view.live or contextlib.nullcontext():
                result = demo.run()
            view.say("[bold green]the right node was named both times, and nobody for what all did together[/]")
            if flags.json:
                print(json.dumps(result))
            if flags.keep:
                names = {"threshold": "/api/v1/stragglers", "diagnostics": "/api/v1/nodes", "prometheus": "/metrics"}
                for name, path in names.items():
                    view.say(f"  {name}: http://127.0.0.1:{demo.site.ports[name]}{path}")
                view.say("Ctrl-C ends it")
                while True:
                    lab.check()
                    time.sleep(1)
    except LabFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0 if flags.keep else 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
