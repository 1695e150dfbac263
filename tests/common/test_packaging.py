"""The units and the files of /etc/ingero of the Debian packages."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ingero_agent.settings import read_settings
from ingero_fleet.settings import FleetConfig
from ingero_kit.settings import load

PACKAGING = Path(__file__).parents[2] / "packaging"
UNITS = {"ingero-agent": 2.9, "ingero-fleet": 1.4}
"""Exposure by `systemd-analyze security` that no unit may exceed."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd")
@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_as_hardened_as_documented(name: str) -> None:
    unit = PACKAGING / f"systemd/{name}.service"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)], capture_output=True, text=True
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)

    assert found, done.stdout + done.stderr
    assert float(found.group(1)) <= UNITS[name]
    assert f"| `{name}.service` | {found.group(1)} |" in (PACKAGING.parent / "docs/slurm.md").read_text()


def test_the_examples_are_valid_and_agree() -> None:
    fleet = load(FleetConfig, file=PACKAGING / "etc/fleet.yaml", prefix="")
    agent = read_settings({}, PACKAGING / "etc/agent.yaml")

    assert fleet.receivers.otlp.protocols.http is not None
    assert fleet.receivers.otlp.protocols.http.endpoint == agent.fleet_endpoint
    assert fleet.processors.ingero.push_interval == agent.fleet_push_interval


@pytest.mark.parametrize("name", UNITS)
def test_every_folder_that_an_example_writes_to_is_one_of_its_unit(name: str) -> None:
    unit = (PACKAGING / f"systemd/{name}.service").read_text()
    example = (PACKAGING / f"etc/{name.removeprefix('ingero-')}.yaml").read_text()
    lines = [line for line in example.splitlines() if not line.lstrip().startswith("#")]
    written = re.findall(r"/(var/lib|run)/([a-z-]+)/", "\n".join(lines))
    settings = {"var/lib": "StateDirectory", "run": "RuntimeDirectory"}

    assert written
    assert all(f"\n{settings[kind]}={folder}\n" in unit for kind, folder in written)
