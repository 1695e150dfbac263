"""Load generator: nodes push numbered events as fast as they are acknowledged, then each is looked up by its id."""

import http.client
import socket
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import grpc
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ingero_contract import attributes, echo
from ingero_echo.client import EchoHttpClient, connect
from ingero_kit.otlp_encode import pairs
from ingero_kit.otlp_signal import Signal
from ingero_kit.otlp_wire import write_varint

EVENT_NAME: Final = "echo.stress"
_PLACE: Final = "0" * 36
_MOMENT: Final = 0x0123456789ABCDEF
PAGE: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to send. `endpoint` is host:port; `api` the address of the JSON API for the check, or empty.

    No new request is started after `seconds` (if set), or once `stop` is set, even if events are left. Events
    happened `age_seconds` before they are sent.
    """

    endpoint: str
    protocol: Literal["grpc", "http"] = "grpc"
    nodes: int = 8
    events: int = 2000
    batch: int = 100
    chains: int = 80
    cluster: str = "stress"
    token: str = ""
    tls: ssl.SSLContext | None = None
    ca: bytes | None = None
    api: str = ""
    give_up_seconds: float = 60.0
    seconds: float = 0.0
    age_seconds: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass
class StressResult:
    """The result of a run. Times are seconds; `missing`, `doubled` and `wrong_chain` count ids."""

    sent: int = 0
    acknowledged: int = 0
    retries: int = 0
    failed: int = 0
    seconds: float = 0.0
    checked: bool = False
    missing: int = 0
    doubled: int = 0
    wrong_chain: int = 0
    latencies: list[float] = field(default_factory=list)
    problem: str = ""
    """Why the sending ended early: the receiver refuses it, or answers nothing."""

    @property
    def clean(self) -> bool:
        """Nothing failed, and if it was checked, nothing is missing, doubled or changed."""
        return not (self.failed or self.missing or self.doubled or self.wrong_chain or self.problem)

    def facts(self) -> dict[str, Any]:
        """For people and machines."""
        ordered = sorted(self.latencies) or [0.0]
        return {
            **{name: value for name, value in vars(self).items() if name != "latencies"},
            "seconds": round(self.seconds, 3),
            "events_per_second": round(self.acknowledged / self.seconds) if self.seconds else 0,
            "p50_ms": round(1000 * ordered[len(ordered) // 2], 1),
            "p99_ms": round(1000 * ordered[int(len(ordered) * 0.99)], 1),
            "clean": self.clean,
        }


def _field(number: int, content: bytes) -> bytes:
    return write_varint(number << 3 | 2) + write_varint(len(content)) + content


class RequestSource:
    """Requests of one node, cut from a template: only ids, times and chains differ."""

    def __init__(self, plan: Plan, node: int) -> None:
        self.node = f"gpu-node-{node:02d}"
        self._plan = plan
        keys = {attributes.CLUSTER_ID: plan.cluster, attributes.NODE_ID: self.node}
        resource = Resource(attributes=pairs(keys))
        self._head = _field(1, resource.SerializeToString())
        self._records = [self._template(f"{self.node}-chain-{number:03d}") for number in range(plan.chains)]

    def _template(self, chain: str) -> tuple[str, bytes, bytes, bytes]:
        values = {
            attributes.EVENT_ID: _PLACE, echo.CAUSAL_CHAIN_ID: chain, attributes.WORKLOAD_TYPE: "training",
            attributes.NODE_STATE: "active", attributes.GPU_MODEL: "NVIDIA H200", attributes.JOB_ID: "stress",
        }  # fmt: skip
        record = LogRecord(time_unix_nano=_MOMENT, event_name=EVENT_NAME, attributes=pairs(values))
        whole = _field(2, record.SerializeToString())
        before, rest = whole.split(struct.pack("<Q", _MOMENT))
        middle, after = rest.split(_PLACE.encode())
        return chain, before, middle, after

    def request(self, count: int) -> tuple[dict[str, str], bytes]:
        """One request of so many events; also their ids and chains."""
        begin = time.time_ns() - int(self._plan.age_seconds * 1e9)
        ids: dict[str, str] = {}
        parts: list[bytes] = []
        random = uuid.uuid4().hex
        for number in range(count):
            one = f"{random[:8]}-{random[8:12]}-{random[12:16]}-{random[16:20]}-{number:012x}"
            chain, before, middle, after = self._records[number % len(self._records)]
            ids[one] = chain
            parts += [before, struct.pack("<Q", begin + number), middle, one.encode(), after]
        scope = _field(2, b"".join(parts))
        return ids, _field(1, self._head + scope)


class HttpSender:
    """OTLP/HTTP on one kept connection."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._connection: http.client.HTTPConnection | None = None

    def send(self, body: bytes) -> bool:
        """Whether it was acknowledged; raises `OSError` or `http.client.HTTPException` when that is not known."""
        plan = self._plan
        if self._connection is None:
            self._connection = connect(plan.endpoint, plan.tls)
        headers = {"content-type": "application/x-protobuf"}
        if plan.token:
            headers["authorization"] = f"Bearer {plan.token}"
        try:
            self._connection.request("POST", Signal.LOGS.path, body, headers)
            answer = self._connection.getresponse()
            answer.read()
        except BaseException:
            self._connection.close()
            self._connection = None
            raise
        if answer.status >= 400 and answer.status not in (429, 502, 503, 504):
            raise PermissionError(f"HTTP {answer.status}")
        return answer.status == 200


class GrpcSender:
    """OTLP/gRPC."""

    def __init__(self, plan: Plan) -> None:
        self._channel = (
            grpc.secure_channel(plan.endpoint, grpc.ssl_channel_credentials(plan.ca))
            if plan.tls
            else grpc.insecure_channel(plan.endpoint)
        )
        self._call = self._channel.unary_unary(Signal.LOGS.grpc_method, None, None)
        self._metadata = (("authorization", f"Bearer {plan.token}"),) if plan.token else ()

    def send(self, body: bytes) -> bool:
        """Whether it was acknowledged."""
        try:
            self._call(body, timeout=30, metadata=self._metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED,
                                grpc.StatusCode.INVALID_ARGUMENT):  # fmt: skip
                raise PermissionError(f"gRPC {error.code().name}: {error.details()}") from None
            return False
        return True


def run(plan: Plan) -> StressResult:
    """Send everything, each node on its own thread, and check it afterwards if `plan.api` is set."""
    outcome = StressResult()
    expected: dict[str, str] = {}
    lock = threading.Lock()

    def end(problem: str) -> None:
        """Stop all senders: nothing that they send will be acknowledged."""
        outcome.problem = outcome.problem or f"{plan.endpoint}: {problem}"
        plan.stop.set()

    def work(node: int) -> None:
        source = RequestSource(plan, node)
        sender = GrpcSender(plan) if plan.protocol == "grpc" else HttpSender(plan)
        left = plan.events
        while left and not plan.stop.is_set() and not (plan.seconds and time.perf_counter() - began > plan.seconds):
            count = min(plan.batch, left)
            ids, body = source.request(count)
            sent = time.perf_counter()
            try:
                acknowledged, retries = _deliver(sender, body, plan.give_up_seconds)
            except OSError as error:
                end(str(error))
                return
            took = time.perf_counter() - sent
            left -= count
            with lock:
                outcome.sent += count
                outcome.retries += retries
                outcome.latencies.append(took)
                outcome.acknowledged += count * acknowledged
                outcome.failed += count * (not acknowledged)
                silent = not outcome.acknowledged
            if acknowledged:
                expected.update(ids)
            elif silent:
                end(f"no answer within {plan.give_up_seconds:g} s")

    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(node,)) for node in range(plan.nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.seconds = time.perf_counter() - began
    if plan.api:
        check(plan, expected, outcome)
    return outcome


def _deliver(sender: HttpSender | GrpcSender, body: bytes, give_up_seconds: float) -> tuple[bool, int]:
    """Send the same bytes until they are acknowledged, so that a repeat is recognised.

    Raises `OSError` where no later try can succeed.
    """
    deadline, retries = time.monotonic() + give_up_seconds, 0
    while True:
        try:
            if sender.send(body):
                return True, retries
        except (PermissionError, socket.gaierror, ssl.SSLCertVerificationError):
            raise
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > deadline:
            return False, retries
        retries += 1
        time.sleep(min(1.0, 0.05 * retries))


def check(plan: Plan, expected: dict[str, str], outcome: StressResult) -> None:
    """Read every event of the run's cluster back and compare ids and chains."""
    seen: set[str] = set()
    for event_id, chain in _stored(plan):
        if event_id not in expected:
            continue
        outcome.doubled += event_id in seen
        seen.add(event_id)
        outcome.wrong_chain += expected[event_id] != chain
    outcome.missing = len(expected) - len(seen)
    outcome.checked = True


def _stored(plan: Plan) -> Iterator[tuple[str, str]]:
    client = EchoHttpClient(plan.api, plan.token, plan.tls)
    last = "00000000-0000-0000-0000-000000000000"
    cluster = plan.cluster.replace("'", "''")
    while True:
        sql = (
            f"SELECT event_id::VARCHAR, causal_chain_id, count(*) FROM events WHERE cluster_id = '{cluster}' AND "
            f"metric_name = '{EVENT_NAME}' AND event_id > '{last}'::UUID GROUP BY ALL ORDER BY 1 LIMIT {PAGE}"
        )
        rows = client.request("POST", echo.SQL, {"sql": sql, "limit": PAGE}, key="rows")["rows"]
        for event_id, chain, count in rows:
            for _ in range(count):
                yield event_id, chain
        if len(rows) < PAGE:
            return
        last = rows[-1][0]
