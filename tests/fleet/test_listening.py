"""Where Fleet receives pushes beyond this machine, and what it says about that."""

import json
import shlex
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner

from ingero_agent.cli import main as agent
from ingero_contract import routes
from ingero_fleet.cli import main
from ingero_fleet.listening import ALONE, how_to_push, listening_on
from ingero_fleet.settings import FleetConfig, read_config
from ingero_kit.settings import SettingsError
from ingero_testing.processes import BIN, FREE, process, wait_until
from ingero_testing.web import web

HTTP, GRPC = "receivers.otlp.protocols.http", "receivers.otlp.protocols.grpc"


def config(*settings: str) -> FleetConfig:
    return read_config(None, settings)


def test_the_ports_of_the_settings_are_kept() -> None:
    named = config(f"{HTTP}.endpoint=127.0.0.1:5318", f"{GRPC}.endpoint=127.0.0.1:4317")
    found = listening_on(named, "0.0.0.0", insecure=True)

    assert found == [f"{HTTP}.endpoint=0.0.0.0:5318", f"{GRPC}.endpoint=0.0.0.0:4317"]
    assert read_config(None, found).receivers.otlp.protocols.http


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])
def test_plain_text_that_others_can_read_is_refused_unless_told(host: str) -> None:
    with pytest.raises(SettingsError, match="--insecure"):
        listening_on(config(), host, insecure=False)

    assert listening_on(config(), host, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_leave(host: str) -> None:
    assert len(listening_on(config(), host, insecure=False)) == 2


def test_with_tls_no_leave_is_needed(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("fleet")
    files = {"cert_file": tmp_path / "crt", "key_file": tmp_path / "key"}
    issued.cert_chain_pems[0].write_to_path(files["cert_file"])
    issued.private_key_pem.write_to_path(files["key_file"])
    both = [f"{path}.tls.{name}={file}" for path in (HTTP, GRPC) for name, file in files.items()]
    found = config(*both)

    assert listening_on(found, "0.0.0.0", insecure=False)
    assert "--fleet-insecure" not in how_to_push(found, {"otlp/http": 4318})["push"]


def test_the_command_ends_with_the_way_to_allow_it() -> None:
    done = CliRunner().invoke(main, ["serve", "--listen", "0.0.0.0"])

    assert done.exit_code == 2
    assert f"{HTTP}: others could read pushes to 0.0.0.0 in plain text" in done.output


def test_without_a_listener_for_http_nothing_is_told() -> None:
    assert how_to_push(config("receivers.otlp.protocols={grpc: {}}"), {"otlp/grpc": 4317}) == {}


@pytest.mark.parametrize(
    ("host", "reached"), [(None, ALONE), ("127.0.0.2", ALONE), ("0.0.0.0", "other machines too")]
)
def test_a_started_fleet_says_how_to_push(tmp_path: Path, host: str | None, reached: str) -> None:
    free = [f"--set={path}={FREE}" for path in (f"{HTTP}.endpoint", f"{GRPC}.endpoint")]
    pages = ["extensions.ingero_threshold.agent_endpoint", "extensions.ingero_threshold.admin_endpoint",
             "extensions.healthee.endpoint", "extensions.zpages.endpoint", "exporters.prometheus.endpoint",
             "service.telemetry.metrics.address"]  # fmt: skip
    free += [f"--set={path}={FREE}" for path in pages]
    beyond = ["--listen", host, "--insecure"] if host else []
    file = tmp_path / "ports.json"
    with process(
        tmp_path / "log", str(BIN / "ingero-fleet"), "serve", *free, *beyond, "--ports-file", str(file)
    ) as running:
        wait_until(lambda: '"started"' in running.words() or running.process.poll() is not None, "Fleet to start")
        (line,) = (line for line in running.words().splitlines() if '"started"' in line)
        told = json.loads(line)
        port = json.loads(file.read_text())["otlp/http"]
        address = f"http://{host if host == '127.0.0.2' else '127.0.0.1'}:{port}{routes.OTLP_METRICS}"
        answer = web.post(address, content=b"{}", headers={"content-type": "application/json"})

    assert told["reached_by"] == reached
    assert answer.status_code == 200
    words = shlex.split(told["push"])
    assert words[:2] == ["ingero-agent", "fleet-push"] and f":{port}" in told["push"]
    options = {option for parameter in agent.commands["fleet-push"].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
