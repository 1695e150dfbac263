"""The list of Fleet's ports in docs/architecture.md is what a Fleet opens, and what its Service has."""

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from ingero_fleet.settings import FleetConfig
from ingero_kit.addresses import parse_endpoint
from ingero_operator.render.fleet import PORTS
from ingero_testing.processes import fleet
from ingero_testing.web import web

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/architecture.md"


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    port: int
    listener: str
    in_service: str
    paths: tuple[str, ...]
    setting: str


def documented() -> list[Row]:
    """The rows of the table of ports."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DOCUMENT.read_text().splitlines()
        if re.match(r"\| \d+ \|", line)
    ]
    return [
        Row(
            int(port),
            listener.strip("`"),
            name.strip("`–"),
            tuple(re.findall(r"`(/[^`]*)`", serves)),
            setting.strip("`"),
        )
        for port, listener, name, serves, setting in cells
    ]


def listening(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(file.readlink()))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return {
        int(line[1].rsplit(":", 1)[1], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets
    }


def test_a_fleet_opens_the_documented_listeners_and_no_other_and_serves_their_paths(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    change = {"extensions": {"healthee": {"auth": {"bearer_token_file": str(token)}}}}
    with fleet(tmp_path, change) as service:
        assert {row.listener for row in documented()} == set(service.ports)
        assert listening(service.process.pid) == set(service.ports.values())
        for row in documented():
            for path in row.paths:
                assert web.get(service.url(row.listener, path)).status_code != 404, (row.listener, path)
        state = service.url("health", "/internal/ee/state")
        assert web.get(state).status_code == 401
        assert web.get(state, headers={"authorization": "Bearer secret"}).status_code in (200, 503)


def test_the_documented_ports_are_the_defaults_of_their_settings() -> None:
    config = FleetConfig()

    for row in documented():
        endpoint = reduce(getattr, row.setting.split("."), config)
        assert parse_endpoint(str(endpoint))[1] == row.port, row.setting


def test_the_documented_ports_are_those_of_the_service() -> None:
    assert {row.in_service: row.port for row in documented() if row.in_service} == {
        name: port for name, (port, _) in PORTS.items()
    }
