"""Long runs of the repository's tools: each step is printed with its time, and nothing outlives the run."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ingero_testing.processes import wait_until
from scripts import steps
from scripts.steps import command, step

ROOT = Path(__file__).parents[2]
STARTS = "echo $$ > group.part; sleep 600 & mv group.part group; wait; sleep 600"
RUN = (
    "import sys; from pathlib import Path; from scripts import steps; steps.end_by_signals(); "
    f"steps.command(['sh', '-c', {STARTS!r}], Path(sys.argv[1]))"
)


def living(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = file.read_text().rpartition(") ")
            state, _, pgid, *_ = rest.split()
            found += [name.partition("(")[2]] if int(pgid) == group and state != "Z" else []
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["TERM", "INT", "HUP"])
@pytest.mark.parametrize("tool", ["python", "in-group"])
def test_what_a_command_has_started_ends_with_the_run(number: signal.Signals, tool: str, tmp_path: Path) -> None:
    """`make deb` and `make images` are of the second kind."""
    starts = f"cd {tmp_path}; {STARTS}"
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)] if tool == "python" else ["scripts/in-group", "sh", "-c", starts],
        cwd=ROOT, stderr=subprocess.DEVNULL, preexec_fn=partial(signal.signal, number, signal.SIG_DFL),
    )  # fmt: skip
    wait_until((tmp_path / "group").exists, "the command")
    group = int((tmp_path / "group").read_text())
    wait_until(lambda: "sleep" in living(group), "what the command starts")

    run.send_signal(number)

    assert run.wait(60) != 0 and living(group) == []


def test_a_command_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SECONDS_TO_END", 0.1)
    deaf = "trap '' TERM; echo $$ > group; while :; do sleep 0.05; done"

    done = command(["sh", "-c", deaf], tmp_path, seconds=1)

    assert done.returncode == -signal.SIGKILL and living(int((tmp_path / "group").read_text())) == []


def test_output_and_exit_status_are_those_of_the_command(tmp_path: Path) -> None:
    say = ["sh", "-c", "echo one; echo two >&2; exit 3"]

    apart, together = command(say, tmp_path), command(say, tmp_path, errors=subprocess.STDOUT)
    with (tmp_path / "out").open("w") as stream:
        command(["sh", "-c", "pwd; echo $WHERE"], tmp_path, os.environ | {"WHERE": "here"}, output=stream)

    assert (apart.returncode, apart.stdout, apart.stderr) == (3, "one\n", "two\n")
    assert together.stdout == "one\ntwo\n"
    assert (tmp_path / "out").read_text() == f"{tmp_path}\nhere\n"


def test_a_command_in_a_group_has_its_input_output_and_exit_status() -> None:
    done = subprocess.run(
        ["scripts/in-group", "sh", "-c", "cat; exit 3"], cwd=ROOT, input="given", capture_output=True, text=True
    )

    assert (done.returncode, done.stdout, done.stderr) == (3, "given", "")


def test_a_step_says_what_it_does_before_and_how_long_it_took_after(capsys: pytest.CaptureFixture[str]) -> None:
    with step("the wheel"):
        before = capsys.readouterr().out
    after = capsys.readouterr().out

    assert (before, after) == ("the wheel ...\n", "  took 0 s\n")
