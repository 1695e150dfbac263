"""Slurm for tests: a program that stands in for `scontrol`, and a real one on this machine where it is installed."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero_testing.processes import free_port, wait_until

FAKE = """#!{python} -SE
import json, pathlib, sys
folder = pathlib.Path({folder!r})
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
nodes = json.loads((folder / "nodes.json").read_text())
if sys.argv[1:4] == ["--oneliner", "show", "node"]:
    for name, node in nodes.items():
        if sys.argv[4:] in ([], [name]):
            reason = " Reason=%s [root@2026-11-23T04:00:00]" % node["reason"] if node["reason"] else ""
            print("NodeName=%s Arch=x86_64 ActiveFeatures=%s Gres=gpu:8 OS=Linux 6.1 #1 SMP State=%s Partitions=p "
                  "BootTime=2026-11-01T00:00:00%s" % (name, node["features"] or "(null)", node["state"], reason))
    sys.exit(0)
given = dict(item.split("=", 1) for item in sys.argv[2:])
node = nodes[given["nodename"]]
if node.get("refused"):
    print("slurm_update error: Access/permission denied", file=sys.stderr)
    sys.exit(1)
if given.get("state") == "drain":
    node["state"] = "IDLE+DRAIN"
if given.get("state") == "undrain":
    node.update(state="IDLE", reason="")
node["reason"] = given.get("reason", node["reason"])
(folder / "nodes.json").write_text(json.dumps(nodes))
sys.exit(bool(node.get("answer_lost")))
"""


class FakeScontrol:
    """A real program with the nodes n1 to n8 in a file. It records its calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "scontrol"
        self.program.write_text(FAKE.format(python=sys.executable, folder=str(folder)))
        self.program.chmod(0o755)
        row = {"state": "IDLE", "reason": "", "features": ""}
        self._nodes = folder / "nodes.json"
        self._nodes.write_text(json.dumps({f"n{number}": row for number in range(1, 9)}))

    def change(self, name: str, **values: object) -> None:
        """Change a node, as a user or Slurm would."""
        nodes = json.loads(self._nodes.read_text())
        nodes[name] |= values
        self._nodes.write_text(json.dumps(nodes))

    def updates(self) -> list[list[str]]:
        """The arguments of every call that changes a node."""
        calls = self._folder / "calls"
        rows = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
        return [row[1:] for row in rows if row[0] == "update"]


PROGRAMS = ("slurmctld", "slurmd", "scontrol", "munged")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/linear
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=p Nodes=ALL Default=YES State=UP
"""


def slurm_missing() -> str:
    """Why a real Slurm cannot run here; empty when it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install --no-install-recommends slurm-wlm munge"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root"


@contextlib.contextmanager
def real_slurm(folder: Path, more: str = "") -> Iterator[Path]:
    """slurmctld and two slurmd on this machine; yields the configuration file when both nodes are idle.

    `more` is added to the configuration.
    """
    host = os.uname().nodename.split(".")[0]
    (folder / "spool").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    file = folder / "slurm.conf"
    file.write_text(CONFIGURATION.format(host=host, folder=folder, ports=[free_port() for _ in range(3)]) + more)
    munge = [
        "munged", "--force", "--foreground", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.sock",
        f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed",
    ]  # fmt: skip
    nodes = [["slurmd", "-D", "-N", name, "-f", str(file)] for name in ("n1", "n2")]
    environment = {**os.environ, "SLURM_CONF": str(file)}
    running: list[subprocess.Popen[bytes]] = []

    def start(command: list[str]) -> None:
        with (folder / f"{command[0]}.out").open("ab") as out:
            running.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))

    def idle() -> bool:
        asked = subprocess.run(
            ["scontrol", "--oneliner", "show", "node"], env=environment, capture_output=True, text=True, timeout=60
        )
        return asked.stdout.count(" State=IDLE ") == 2

    try:
        start(munge)
        wait_until((folder / "munge.sock").exists, "munged")
        for command in (["slurmctld", "-D", "-i", "-f", str(file)], *nodes):
            start(command)
        wait_until(idle, "idle nodes")
        yield file
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


needs_slurm = pytest.mark.skipif(bool(slurm_missing()), reason=f"needs Slurm: {slurm_missing()}")
