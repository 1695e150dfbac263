"""`ingero demo`: the story with real processes, and what it says when something is missing."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ingero_analyze.demo import Demo, DemoFailed
from ingero_kit.umbrella import main


def test_the_node_that_slows_down_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    done = CliRunner().invoke(main, ["demo"])

    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "Fleet and 4 agents run; live page: http://127.0.0.1:" in lines[0]
    assert re.fullmatch(r"node-4 is the straggler, named after [0-9.]+ s", lines[-2])
    assert lines[-1].startswith("why: It lost ")
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_is_not_installed_is_named_with_the_way_to_install_it(tmp_path: Path) -> None:
    demo = Demo(tmp_path, 4)
    demo.start("node-1", "ingero_that_is_absent", "fleet-push")

    with pytest.raises(DemoFailed, match=r"node-1 ended with status 1: ModuleNotFoundError.*pip install"):
        demo.wait("nothing", lambda: False)


def test_settings_that_cannot_be_used_are_told_with_the_programs_own_words(tmp_path: Path) -> None:
    demo = Demo(tmp_path, 4)
    demo.start("fleet", "ingero_fleet", "serve", "--set=no.such=1")

    with pytest.raises(DemoFailed, match=r"fleet ended with status 2: .*no\.such: no such setting"):
        demo.wait("nothing", lambda: False)
