"""Every certificate, authority and token is replaced under load: nothing acknowledged is lost, nothing restarts."""

import ssl
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import trustme

from ingero_contract import echo, routes
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_testing.processes import BIN, Running, fleet, process, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.rpc import unary
from ingero_testing.web import web

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
SIDES = ("fleet", "echo")


class Credentials:
    """Certificate, authority and token of both servers in files, as a Secret volume has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replace("first")

    def replace(self, token: str) -> None:
        """Issue everything anew."""
        self.token, self.authorities = token, {side: trustme.CA() for side in SIDES}
        for side, authority in self.authorities.items():
            issued = authority.issue_cert("127.0.0.1")
            self._write(f"{side}.key", issued.private_key_pem.bytes())
            self._write(f"{side}.crt", issued.cert_chain_pems[0].bytes())
            self._write(f"{side}.ca", authority.cert_pem.bytes())
            self._write(f"{side}.token", f"{token}-{side}\n".encode())

    def _write(self, name: str, content: bytes) -> None:
        new = self.folder / f"{name}.new"
        new.write_bytes(content)
        new.replace(self.folder / name)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def server(self, side: str) -> dict[str, str]:
        """Settings of a listener's TLS."""
        return {"cert_file": self.path(f"{side}.crt"), "key_file": self.path(f"{side}.key")}

    def bearer(self, side: str) -> str:
        return f"Bearer {self.token}-{side}"


def settings(files: Credentials, store: Running) -> dict[str, Any]:
    """Fleet's settings: TLS and tokens at every listener, and towards Echo."""
    secured = {"tls": files.server("fleet"), "auth": {"bearer_token_file": files.path("fleet.token")}}
    exporter = {
        "endpoint": f"127.0.0.1:{store.ports['otlp/grpc']}", "tls": {"ca_file": files.path("echo.ca")},
        "bearer_token_file": files.path("echo.token"),
    }  # fmt: skip
    return {
        "receivers": {"otlp": {"protocols": {"grpc": secured, "http": secured}}},
        "extensions": {"ingero_threshold": secured},
        "exporters": {"otlp": exporter},
        "service": {
            "pipelines": {"metrics": {"processors": ["ingero"], "exporters": ["prometheus", "otlp"]}}
        },
    }  # fmt: skip


def agent(folder: Path, files: Credentials, service: Running, protocol: str) -> Any:
    """An agent that pushes every 200 ms."""
    return process(
        folder / f"{protocol}.log", str(BIN / "ingero-agent"), "fleet-push", "--stub", "--fleet-protocol", protocol,
        "--fleet-endpoint", f"127.0.0.1:{service.ports[f'otlp/{protocol}']}",
        "--fleet-tls-ca", files.path("fleet.ca"), "--fleet-token-file", files.path("fleet.token"),
        "--fleet-cluster-id", "c", "--fleet-node-id", protocol,
        "--fleet-push-interval", "200ms", "--warmup-samples", "5", "--no-detect-provider",
        "--fleet-persist-path", str(folder / f"{protocol}.json"),
    )  # fmt: skip


def over_http(files: Credentials, service: Running, body: bytes, bearer: str) -> bool:
    context = ssl.create_default_context(cadata=files.authorities["fleet"].cert_pem.bytes().decode())
    with httpx.Client(verify=context, timeout=60, trust_env=False) as client:
        url = f"https://127.0.0.1:{service.ports['otlp/http']}{routes.OTLP_METRICS}"
        headers = {"content-type": "application/x-protobuf", "authorization": bearer}
        return client.post(url, content=body, headers=headers).status_code == 200


def over_grpc(files: Credentials, service: Running, body: bytes, bearer: str) -> bool:
    credentials = grpc.ssl_channel_credentials(files.authorities["fleet"].cert_pem.bytes())
    with grpc.secure_channel(f"127.0.0.1:{service.ports['otlp/grpc']}", credentials) as channel:
        try:
            unary(channel, EXPORT)(body, timeout=60, metadata=(("authorization", bearer),))
        except grpc.RpcError:
            return False
        return True


def test_everything_is_rotated_under_load_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    files = Credentials(tmp_path)
    acknowledged: list[int] = []
    secured = {"insecure": False, "tls": files.server("echo"), "auth": {"tokens_file": files.path("echo.token")}}
    with ExitStack() as stack:
        store = stack.enter_context(start_echo(tmp_path / "echo", secured))
        service = stack.enter_context(fleet(tmp_path / "fleet", settings(files, store)))
        agents = [stack.enter_context(agent(tmp_path, files, service, protocol)) for protocol in ("http", "grpc")]

        def push() -> bool:
            """One push by each protocol; whether both were acknowledged."""
            both = []
            for send in (over_http, over_grpc):
                now = time.time_ns()
                report = HealthReport(node_id="load", cluster_id="c", score=0.9, time_unix_nano=now)
                both.append(send(files, service, encode_report(report).SerializeToString(), files.bearer("fleet")))
                acknowledged.extend([now] if both[-1] else [])
            return all(both)

        def stored(node: str) -> set[int]:
            sql = f"SELECT epoch_ns(\"timestamp\") FROM node_metrics WHERE node_id = '{node}' ORDER BY 1 DESC"
            url = f"https://127.0.0.1:{store.ports['api']}{echo.SQL}"
            answer = web.post(url, json={"sql": sql}, headers={"authorization": files.bearer("echo")})
            return {row[0] for row in answer.json()["rows"]} if answer.status_code == 200 else set()

        def newer(node: str, than: int) -> bool:
            push()
            return max(stored(node), default=0) > than

        for node in ("http", "grpc", "load"):
            wait_until(lambda node=node: newer(node, 0), f"{node} at Echo")  # type: ignore[misc]

        old = files.bearer("fleet")
        files.replace("second")
        replaced_at = time.time_ns()
        for node in ("http", "grpc", "load"):
            wait_until(lambda node=node: newer(node, replaced_at), f"{node} at Echo after it")  # type: ignore[misc]
        wait_until(push, "both protocols with the new token")

        assert not over_http(files, service, b"", old)
        assert not over_grpc(files, service, b"", old)
        context = ssl.create_default_context(cadata=files.authorities["fleet"].cert_pem.bytes().decode())
        url = f"https://127.0.0.1:{service.ports['threshold']}{routes.FLEET_THRESHOLD}?cluster_id=c"
        with httpx.Client(verify=context, timeout=60, trust_env=False) as client:
            statuses = [
                client.get(url, headers={"authorization": item}).status_code for item in (files.bearer("fleet"), old)
            ]
        assert statuses == [200, 401]
        wait_until(lambda: set(acknowledged) <= stored("load"), "everything acknowledged at Echo")
        assert all(running.process.poll() is None for running in (store, service, *agents))
