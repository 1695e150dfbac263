"""What must not disturb the pods: new tokens and certificates, an Echo that is away, a Fleet whose pod is deleted."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.pod_lab import CLUSTER, NODES, PYTHON, STORE, PodLab

TOKEN, NEXT_TOKEN = "demo-token", "demo-token-2"
TOKEN_FILE = "/etc/ingero/token/token"
WATCH = Path(__file__).with_name("pod_watch.py")
METRICS = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
SERVED = "import ssl; print(ssl.get_server_certificate(('localhost', {port})))"
MAX_SECONDS, MAX_INTERVALS = 6.0, 2
"""How soon a halved node is named: in the larger one of these. The tracer writes its counts every second."""
SETTLE_SECONDS = 10.0
"""How long after the start of a Fleet a node is slowed."""
STATUS = """
import ssl, urllib.error, urllib.request as r
request = r.Request('https://localhost:8080/api/v1/stragglers', headers={{'Authorization': 'Bearer {token}'}})
try:
    print(r.urlopen(request, context=ssl.create_default_context(cafile='/etc/ingero/tls/ca.crt')).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@dataclass(frozen=True)
class Named:
    """Whom a Fleet names from a moment on (seconds since the epoch); `None` while it does not answer."""

    at: float
    nodes: list[str] | None

    def __str__(self) -> str:
        return " ".join(self.nodes or ()) or "none"


@dataclass(frozen=True)
class Pushes:
    """Counters of the agents: pushes that arrived by node, pushes that failed, points that tracers dropped."""

    arrived: dict[str, float]
    failed: float
    dropped: float


def total(page: str, metric: str) -> float:
    """The sum of a counter over its labels on a page of Prometheus."""
    return sum(float(value) for value in re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


class PodFaults(PodLab):
    """The faults, each with rows that say what was seen."""

    def python(self, pod: str, container: str, script: str, *arguments: str) -> str:
        """Output of a Python script in a container of the product."""
        return self.plane.kubectl(
            "-n", self.namespace, "exec", pod, "-c", container, "--", PYTHON, "-c", script, *arguments
        ).strip()

    def component(self, name: str) -> list[dict[str, Any]]:
        """Pods of a component."""
        return self.pods(self.namespace, f"app.kubernetes.io/name=ingero-{name}")

    @contextmanager
    def watching(self, pod: str) -> Iterator[Callable[[], list[Named]]]:
        """What a pod of Fleet names, from now on."""
        role = f"watch-{pod}"
        self.lab.start(
            role, self.plane.kubectl_program(), "--kubeconfig", str(self.plane.kubeconfig), "-n", self.namespace,
            "exec", pod, "-c", "fleet", "--", PYTHON, "-u", "-c", WATCH.read_text(), CLUSTER,
        )  # fmt: skip
        process = self.lab.processes.pop(role)  # it ends by itself when the pod is deleted

        def found() -> list[Named]:
            lines = [line for line in self.lab.log(role).read_text().splitlines() if line.startswith("{")]
            answers = [one for one in map(json.loads, lines) if one.keys() & {"named", "no named"}]
            return [Named(one["at"], one.get("named")) for one in answers]

        try:
            yield found
        finally:
            process.kill()
            process.wait(60)

    def pushes(self) -> Pushes:
        """The counters at present."""
        arrived, failed, dropped = {}, 0.0, 0.0
        for pod in self.component("push"):
            page = self.python(pod["metadata"]["name"], "push", METRICS.format(port=9465))
            arrived[pod["spec"]["nodeName"]] = total(page, "ingero_agent_pushes_total")
            failed += total(page, "ingero_agent_push_failures_total")
        for pod in self.component("trace"):
            page = self.python(pod["metadata"]["name"], "trace", METRICS.format(port=9466))
            dropped += total(page, "ingero_trace_unexported_points_total")
        return Pushes(arrived, failed, dropped)

    def restarts(self) -> int:
        """Restarts of the product's containers."""
        return sum(
            one["restartCount"] for pod in self.pods(self.namespace) for one in pod["status"]["containerStatuses"]
        )

    def write_token(self, *tokens: str) -> None:
        """Replace the tokens; clients send the first, servers accept all."""
        self.plane.patch("secret", "demo-token", {"stringData": {"token": "\n".join(tokens)}}, self.namespace)

    def rotate(self) -> tuple[float, Pushes]:
        """A new certificate, and the next token becomes the first. Returns when, and the counters before."""
        before = self.pushes()
        self.plane.patch("secret", "demo-tls", {"stringData": self.new_certificate()}, self.namespace)
        self.write_token(NEXT_TOKEN, TOKEN)
        return time.monotonic(), before

    def rotated(self, begun: float, before: Pushes) -> None:
        """Every pod uses what is new; nothing was refused, dropped or restarted. The old token is then removed."""
        served = [(self.component("fleet")[0], "fleet", 4318), (self.component("echo")[0], "echo", 8080)]
        holders = [(pod, name) for name in ("fleet", "echo", "push", "trace") for pod in self.component(name)]
        renewed: set[str] = set()

        def known(pod: dict[str, Any], container: str) -> bool:
            name = pod["metadata"]["name"]
            if (
                name not in renewed
                and self.inside(self.namespace, name, container, f"head -n1 {TOKEN_FILE}") == NEXT_TOKEN
            ):
                renewed.add(name)
            return name in renewed

        def state() -> str:
            tokens = sum(known(pod, container) for pod, container in holders)
            certificates = sum(
                self.python(pod["metadata"]["name"], container, SERVED.format(port=port)) in self.tls["tls.crt"]
                for pod, container, port in served
            )
            return f"{tokens} of {len(holders)} pods, {certificates} of 2 listeners"

        every = f"{len(holders)} of {len(holders)} pods, 2 of 2 listeners"
        self.expect("rotated: new token, new certificate", every, state, begun, 180)
        enough = 0.7 * (time.monotonic() - begun) / self.interval

        def losses() -> str:
            now = self.pushes()
            going = sum(now.arrived[node] - count >= enough for node, count in before.arrived.items())
            return (
                f"{going} of {NODES} nodes push, {now.failed - before.failed:.0f} pushes failed, "
                f"{now.dropped - before.dropped:.0f} points dropped, {self.restarts()} restarts"
            )

        none = f"{NODES} of {NODES} nodes push, 0 pushes failed, 0 points dropped, 0 restarts"
        self.expect("rotated: losses since", none, losses, begun, 20)
        self.write_token(NEXT_TOKEN)

    def old_token(self, since: float) -> None:
        """Fleet refuses the token that was removed."""

        def answers() -> str:
            pod = self.component("fleet")[0]["metadata"]["name"]
            return ", ".join(
                f"{which} {self.python(pod, 'fleet', STATUS.format(token=token))}"
                for which, token in (("old", TOKEN), ("new", NEXT_TOKEN))
            )

        self.expect("Fleet's answer to the removed token and to the new one", "old 401, new 200", answers, since, 150)

    def forward(self) -> str:
        """Whether Fleet forwards, with the cure."""
        (one,) = [item for item in self.status("fc", CLUSTER)["conditions"] if item["type"] == "ForwardAvailable"]
        return f"{one['status']} {one['reason']}: {one['message'].rsplit('; ', 1)[-1]}"

    def echo_away(self) -> None:
        """Echo is scaled to nothing, by a person who has paused its EchoStore for that."""
        self.pause_echo("true")
        self.plane.patch("sts", f"{STORE}-echo", {"spec": {"replicas": 0}}, self.namespace)
        begun = time.monotonic()
        cure = f"False ReceiverUnreachable: see the conditions of EchoStore {STORE}"
        self.expect("Echo away: ForwardAvailable, with the cure", cure, self.forward, begun)

    def echo_back(self) -> None:
        """The pause ends, so the operator starts Echo again; Fleet delivers what has waited."""
        self.pause_echo(None)
        begun = time.monotonic()
        whole = f"True Delivered: what Fleet forwards is delivered to EchoStore {STORE}"
        self.expect("Echo back: ForwardAvailable, nothing dropped", whole, self.forward, begun)

    def pause_echo(self, value: str | None) -> None:
        """Set or remove the annotation that pauses the EchoStore."""
        self.plane.patch("echo", STORE, {"metadata": {"annotations": {"ingero.io/paused": value}}}, self.namespace)

    def fleet_deleted(self) -> None:
        """Fleet's pod is deleted; ten seconds after the next one is ready, a node halves its speed. No rank waits."""
        self.in_job(self.ranks()[0], "kill -HUP 1")
        self.expect("Fleet has learnt: condition Learned", "True", lambda: self.condition("Learned"), None,
                    self.warmup_limit)  # fmt: skip
        (old,) = self.component("fleet")
        self.plane.delete("pod", old["metadata"]["name"], self.namespace)
        begun = time.monotonic()

        def ready() -> str:
            pods = [pod for pod in self.component("fleet") if pod["metadata"]["uid"] != old["metadata"]["uid"]]
            (status,) = pods[0]["status"]["containerStatuses"]
            return f"{len(pods)} ready" if status["ready"] else ""

        self.expect("Fleet's pod deleted: the next one", "1 ready", ready, begun)
        (pod,) = self.component("fleet")
        slow = self.ranks()[-1]
        node = slow["spec"]["nodeName"]
        with self.watching(pod["metadata"]["name"]) as found:
            since = time.monotonic()

            def quiet() -> str:
                return str(found()[-1]) if time.monotonic() - since >= SETTLE_SECONDS else ""

            self.expect("nodes that the new Fleet names in its first 10 s", "none", quiet)
            at = float(self.in_job(slow, "date +%s.%N; kill -USR1 1"))
            self.lab.wait("Fleet to name a node", lambda: found()[-1].nodes)
            first = next(one for one in found() if one.at >= at and one.nodes)
        took = first.at - at
        most = max(MAX_SECONDS, MAX_INTERVALS * self.interval)
        when = "in time" if took <= most else "late"
        self.row(f"a node halved: named by Fleet in {most:g} s", f"{node} in time", f"{first} {when}", took)
