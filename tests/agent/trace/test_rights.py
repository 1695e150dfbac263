"""What the tracer can do with the rights that its pod is given, and what it says when one of them is missing."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ingero_agent.sources import ReadFailed
from ingero_agent.sources.trace_db import DatabaseSource
from ingero_agent.trace.capabilities import PRIVILEGES, no_mapped_files
from ingero_agent.trace.discovery import mapped_files_error
from ingero_operator.render.agents import CAPABILITIES
from ingero_testing.gpu_job import NODE, RUNTIME, compile_c, descendants, go, job, listening_port, said, tracing
from ingero_testing.processes import BIN, Running, process, wait_until
from tests.agent.trace.test_layers import CALLER, launches

ANOTHER_USER = ("setpriv", "--reuid=1000", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")
FIND = """
from ingero_agent.trace.discovery import LibraryFinder
finder = LibraryFinder()
print(finder.find(), dict(finder.refused))
"""


def with_rights(*names: str) -> tuple[str, ...]:
    """In front of a command: root with these capabilities alone."""
    return ("setpriv", "--inh-caps=-all", f"--bounding-set=-all,{','.join('+' + name.lower() for name in names)}")


def page(agent: Running, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{listening_port(agent)}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def before(rights: tuple[str, ...]) -> tuple[str, ...]:
    """Nobody but root has rights to lose."""
    return rights if os.getuid() == 0 else ()


def below(pid: int) -> list[int]:
    """The program behind what stands in front of it."""
    return descendants(pid)[-1:]


def mapped(pid: int) -> bytes:
    """What that program maps, as soon as it is there."""
    return b"".join(Path(f"/proc/{one}/maps").read_bytes() for one in below(pid))


def caller(folder: Path) -> tuple[Path, Path]:
    runtime = compile_c(folder, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    program = compile_c(folder, "caller", CALLER, str(runtime), "-pthread")
    return program, runtime


@pytest.mark.ebpf
def test_with_its_pods_rights_a_container_of_another_user_is_counted_though_its_library_was_deleted(
    tmp_path: Path, open_folder: Path
) -> None:
    program, runtime = caller(open_folder)
    with job(program, before=(*NODE, *ANOTHER_USER)) as running:
        inode = runtime.stat().st_ino
        wait_until(lambda: str(runtime).encode() in mapped(running.pid), "the library to be mapped")
        (open_folder / "another").write_bytes(runtime.read_bytes())
        (open_folder / "another").replace(runtime)
        with tracing(tmp_path, "--prometheus", "127.0.0.1:0", before=with_rights(*CAPABILITIES)) as agent:
            wait_until(lambda: f'"inode": {inode},' in agent.words(), "links")
            go(running)
            assert said(running) == "done"
            (pid,) = below(running.pid)
            wait_until(lambda: launches(tmp_path / "trace.db", pid) == [(1, 3, 1000)], "the launches")
            ready = page(agent, "/readyz")
            words = page(agent, "/metrics")[1]

    assert ready == (200, "ok\n")
    assert 'ingero_trace_capability{capability="libraries",mode="none"}' not in words


def test_where_mapped_files_cannot_be_opened_the_agent_is_not_ready_and_names_the_capability(tmp_path: Path) -> None:
    rights = with_rights(*(name for name in CAPABILITIES if name != "CHECKPOINT_RESTORE"))
    command = (str(BIN / "ingero-agent"), "trace", "--db", str(tmp_path / "trace.db"))
    with process(tmp_path / "trace.log", *before(rights), *command, "--prometheus", "127.0.0.1:0") as agent:
        wait_until(lambda: "listening" in agent.words(), "the page")
        status, reason = page(agent, "/readyz")
        wait_until(lambda: 'capability="libraries",mode="none"} 1.0' in page(agent, "/metrics")[1], "the first poll")
    alone = subprocess.run([*before(rights), *command], capture_output=True, text=True, timeout=120)

    assert status == 503
    for words in (reason, agent.words(), alone.stderr):
        assert "CAP_CHECKPOINT_RESTORE" in words
        assert "securityContext.capabilities.add: [" in words
    assert alone.returncode == 1
    with pytest.raises(ReadFailed):
        DatabaseSource(tmp_path / "trace.db", 60, gpus=1).read(time.time())


@pytest.mark.ebpf
def test_check_tries_to_open_what_is_mapped_and_names_the_capability() -> None:
    rights = with_rights(*(name for name in CAPABILITIES if name != "CHECKPOINT_RESTORE"))
    done = subprocess.run(
        [*rights, BIN / "ingero-agent", "check", "--json"], capture_output=True, text=True, timeout=120
    )
    answer = json.loads(done.stdout)
    found = {one["name"]: one for one in answer["capabilities"]}

    assert (done.returncode, answer["can_trace"]) == (1, False)
    assert (found["files"]["state"], found["privileges"]["state"]) == ("missing", "missing")
    assert found["files"]["fix"].endswith("capabilities.add: [CHECKPOINT_RESTORE]")


@pytest.mark.ebpf
def test_a_process_that_may_not_be_read_is_counted_by_what_is_missing(open_folder: Path) -> None:
    program, _ = caller(open_folder)
    with job(program, before=ANOTHER_USER) as running:
        wait_until(lambda: b"libcudart" in Path(f"/proc/{running.pid}/maps").read_bytes(), "the library to be mapped")
        for missing in ("SYS_PTRACE", "CHECKPOINT_RESTORE"):
            rights = with_rights(*(name for name in CAPABILITIES if name != missing))
            done = subprocess.run(
                [*rights, sys.executable, "-c", FIND], capture_output=True, text=True, timeout=60, check=True
            )
            assert f"'CAP_{missing}': " in done.stdout
            assert "libcudart" not in done.stdout


def test_the_rights_of_the_pod_are_those_that_check_asks_for() -> None:
    assert {name.removeprefix("CAP_") for name in PRIVILEGES} <= set(CAPABILITIES)


def test_a_capability_that_counts_in_a_user_namespace_only_has_another_cure() -> None:
    assert "hostUsers" in no_mapped_files("Operation not permitted", (1 << 41) - 1)[1]


def test_a_file_that_is_not_there_is_no_missing_right(tmp_path: Path) -> None:
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 00000000 08:01 12 /usr/bin/python3\n")

    assert mapped_files_error(tmp_path) == ""
