"""The units and the files of /etc/ingero of the Debian packages."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from ingero_agent.settings import read_settings
from ingero_agent.trace.settings import read_settings as read_trace_settings
from ingero_fleet.settings import FleetConfig
from ingero_kit.settings import load
from ingero_operator.slurm.settings import SlurmSettings
from ingero_sink.settings import read_settings as read_sink_settings
from ingero_testing.processes import wait_until
from ingero_testing.slurm import needs_slurm, real_slurm

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
UNITS = {"ingero-agent": 2.9, "ingero-fleet": 1.4, "ingero-sink": 1.6, "ingero-slurm": 1.7, "ingero-trace": 3.2}
"""Exposure by `systemd-analyze security` that no unit may exceed."""


def settings_file(unit: str) -> Path:
    """The example of the file that a unit reads."""
    found = re.search(r" --config /etc/ingero/([a-z]+\.yaml)$", unit, re.MULTILINE)
    assert found
    return PACKAGING / "etc" / found.group(1)


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
    row = next(line for line in (ROOT / "docs/slurm.md").read_text().splitlines() if f"| `{name}.service` |" in line)
    assert f" | {found.group(1)} | " in row
    assert f"`{settings_file(unit.read_text()).name}`" in row


def test_the_example_of_fleet_names_only_files_that_its_user_can_read() -> None:
    text, unit = ((PACKAGING / name).read_text() for name in ("etc/fleet.yaml", "systemd/ingero-fleet.service"))

    assert "DynamicUser=yes" in unit
    assert re.findall(r"_file: (?!/run/credentials/ingero-fleet\.service/)", text) == []
    assert "LoadCredential=tokens:" in (ROOT / "docs/slurm.md").read_text()


def test_the_examples_are_valid_and_agree() -> None:
    fleet = load(FleetConfig, file=PACKAGING / "etc/fleet.yaml", prefix="")
    agent = read_settings({}, PACKAGING / "etc/agent.yaml")

    assert fleet.receivers.otlp.protocols.http is not None
    assert fleet.receivers.otlp.protocols.http.endpoint == agent.fleet_endpoint
    assert fleet.processors.ingero.push_interval == agent.fleet_push_interval


def test_the_examples_of_tracer_sink_and_drain_service_are_valid_and_agree() -> None:
    trace = read_trace_settings({}, PACKAGING / "etc/agent.yaml")
    sink = read_sink_settings({}, PACKAGING / "etc/sink.yaml")
    slurm = load(SlurmSettings, file=PACKAGING / "etc/slurm.yaml", prefix="")

    assert f"# signal_db_path: {trace.db}" in (PACKAGING / "etc/agent.yaml").read_text()
    assert sink.socket_paths == (Path("/run/ingero/remediate.sock"),)
    assert not slurm.drain


@pytest.mark.parametrize("name", UNITS)
def test_every_folder_that_an_example_writes_to_is_one_of_its_unit(name: str) -> None:
    unit = (PACKAGING / f"systemd/{name}.service").read_text()
    lines = [line for line in settings_file(unit).read_text().splitlines() if not line.lstrip().startswith("#")]
    written = re.findall(r"/(var/lib|run)/([a-z-]+)/", "\n".join(lines))
    settings = {"var/lib": "StateDirectory", "run": "RuntimeDirectory"}

    assert written
    assert name == "ingero-sink" or all(f"\n{settings[kind]}={folder}\n" in unit for kind, folder in written)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_begins_again_after_a_failure_but_not_with_settings_that_cannot_be_used(name: str) -> None:
    unit = (PACKAGING / f"systemd/{name}.service").read_text()

    assert "\nRestart=on-failure\n" in unit and "\nRestartPreventExitStatus=2\n" in unit


@pytest.mark.parametrize("script", ["postinst", "prerm"])
def test_the_scripts_of_a_package_serve_all_its_units(script: str, tmp_path: Path) -> None:
    units = "ingero-agent.service ingero-trace.service"
    calls, systemctl = tmp_path / "calls", tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    systemctl.chmod(0o755)
    text = (PACKAGING / "deb" / script).read_text().replace("@UNITS@", units)
    text = text.replace("/run/systemd/system", str(tmp_path))

    for argument in ("configure", "remove", "upgrade"):
        subprocess.run(
            ["sh", "-c", text, script, argument], check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=20
        )

    expected = {
        "postinst": ["daemon-reload", f"try-restart {units}"],
        "prerm": [f"--no-reload disable --now {units}"],
    }
    assert calls.read_text().splitlines() == expected[script]


def test_the_package_of_the_agent_has_all_that_the_sink_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert set(extras["sink"]) <= set(extras["agent"])


def slurm_program(name: str, folder: Path, answer: str) -> Path:
    """A program of the package that runs these commands as `ingero-agent`, and appends what it logs to a file."""
    for program, commands in (("ingero-agent", answer), ("logger", f'echo "$@" >> {folder}/log')):
        (folder / program).write_text(f"#!/bin/sh\n{commands}\n")
        (folder / program).chmod(0o755)
    text = (PACKAGING / "slurm" / name).read_text()
    (folder / name).write_text(text.replace("PATH=/usr/sbin:", f"PATH={folder}:/usr/sbin:"))
    (folder / name).chmod(0o755)
    return folder / name


@pytest.mark.parametrize(
    ("answer", "logged"),
    [
        ("echo healthy: active; exit 0", "-p daemon.info job 7 begins on n1, healthy: active"),
        ("echo straggler: slow; exit 1", "-p daemon.warning job 7 begins on n1, straggler: slow"),
        ("echo unknown: gone; exit 3", "-p daemon.info job 7 begins on n1, unknown: gone"),
        ("exit 127", "-p daemon.info job 7 begins on n1, unknown: no answer"),
    ],
)
def test_a_prolog_logs_the_health_of_the_node_and_never_fails(answer: str, logged: str, tmp_path: Path) -> None:
    program = slurm_program("slurm-job", tmp_path, answer)
    environment = {"SLURM_JOB_ID": "7", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURMD_NODENAME": "n1"}

    assert subprocess.run([program], env=environment, timeout=20).returncode == 0
    assert (tmp_path / "log").read_text() == f"-t ingero-slurm {logged}\n"


@pytest.mark.parametrize(("status", "passed"), [(0, 0), (1, 1), (3, 0), (127, 0)])
def test_the_health_check_fails_for_a_straggler_only(status: int, passed: int, tmp_path: Path) -> None:
    program = slurm_program("slurm-health", tmp_path, f"exit {status}")

    assert subprocess.run([program], env={}, timeout=20).returncode == passed


def test_the_documented_lines_of_slurm_conf_name_what_the_package_installs() -> None:
    named = re.findall(r"^\w+=/usr/lib/ingero/(\S+)$", (ROOT / "docs/slurm.md").read_text(), re.MULTILINE)

    assert sorted(named) == ["slurm-health", "slurm-job", "slurm-job"]
    assert {file.name for file in (PACKAGING / "slurm").iterdir() if os.access(file, os.X_OK)} == set(named)


@needs_slurm
def test_slurm_logs_when_a_job_begins_and_ends(tmp_path: Path) -> None:
    program = slurm_program("slurm-job", tmp_path, "echo straggler: slow; exit 1")
    log = tmp_path / "log"

    def ended() -> bool:
        """Also for slurmctld: a daemon that is stopped before that waits for seconds."""
        asked = ["scontrol", "--oneliner", "show", "node", "n2"]
        return " State=IDLE " in subprocess.run(asked, env=environment, capture_output=True, text=True).stdout

    with real_slurm(tmp_path, f"Prolog={program}\nEpilog={program}\n") as file:
        environment = {**os.environ, "SLURM_CONF": str(file)}
        subprocess.run(["srun", "--nodelist=n2", "true"], check=True, env=environment, timeout=60)
        wait_until(ended, "the end of the job")

    assert re.findall(r"job \d+ .*", log.read_text()) == [
        "job 1 begins on n2, straggler: slow", "job 1 ends on n2, straggler: slow",
    ]  # fmt: skip
