"""`ingero`: the other commands under one name, with what is missing said, and completion for shells."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ingero_kit import umbrella
from ingero_kit.flags import InstalledCommand, LazyGroup
from ingero_testing.processes import BIN


def test_every_program_of_the_package_is_a_command() -> None:
    programs = {
        entry.name: entry.value for entry in entry_points(group="console_scripts") if entry.name.startswith("ingero-")
    }

    assert {f"ingero-{name}": value for name, value in umbrella.PROGRAMS.items()} == programs


def test_a_command_does_what_its_program_does() -> None:
    one, other = (
        subprocess.run(command, capture_output=True, text=True, timeout=60)
        for command in (
            [str(BIN / "ingero"), "fleet", "validate", "--set", "no.such=1"],
            [str(BIN / "ingero-fleet"), "validate", "--set", "no.such=1"],
        )
    )

    assert (one.returncode, one.stderr) == (other.returncode, other.stderr) == (2, one.stderr)


@pytest.mark.parametrize("program", sorted(set(umbrella.PROGRAMS) - {"sink"}))
def test_help_lists_every_command_with_its_whole_first_sentence(program: str) -> None:
    shown = CliRunner().invoke(umbrella.main, [program, "--help"]).stdout

    commands = shown.partition("Commands:")[2]
    assert commands.strip()
    assert "..." not in commands


def test_a_command_whose_libraries_are_missing_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ingero_echo.cli", raising=False)
    monkeypatch.setitem(umbrella.PROGRAMS, "echo", "ingero_echo.absent:main")
    group = LazyGroup(name="ingero", lazy=umbrella.PROGRAMS)

    listed, used = (CliRunner().invoke(group, words) for words in (["--help"], ["echo", "serve", "--config", "x"]))

    assert listed.exit_code == 0 and "not installed (no module" in " ".join(listed.output.split())
    assert used.exit_code == 1 and "pip install" in used.output and "'pyarrow>=18'" in used.output


def test_a_command_that_misses_a_library_while_it_runs_says_how_to_install_it() -> None:
    @click.command(cls=InstalledCommand)
    def serve() -> None:
        import_module("no_such_library")

    serve.callback.__module__ = "ingero_echo.cli"

    done = CliRunner().invoke(serve)

    assert done.exit_code == 1
    assert done.output.startswith("Error: not installed (no module no_such_library): pip install")


@pytest.mark.parametrize("program", sorted(set(umbrella.PROGRAMS) - {"analyze"}))
def test_every_program_says_what_is_missing_where_only_the_base_is_installed(program: str, tmp_path: Path) -> None:
    block = "import sys; sys.modules.update(dict.fromkeys({names!r}.split()))"
    names = "numpy grpc rich orjson pyarrow duckdb fastapi uvicorn httptools kopf google opentelemetry uvloop"
    command = {"operator": ["run"], "sink": [], "agent": ["fleet-push"]}.get(program, ["serve"])
    code = f"{block.format(names=names)}; from ingero_{program}.cli import main; main({{}})"

    shown, used = (
        subprocess.run(
            [sys.executable, "-c", code.format(words)], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        for words in (["--help"], command)
    )

    assert (shown.returncode, shown.stderr) == (0, "")
    assert used.returncode in (1, 2)
    assert "Traceback" not in used.stderr
    assert "pip install" in used.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_covers_every_program(shell: str) -> None:
    found = CliRunner().invoke(umbrella.main, ["completion", shell])

    assert found.exit_code == 0
    for name in ("ingero", *(f"ingero-{part}" for part in umbrella.PROGRAMS)):
        assert f"_{name}_COMPLETE".replace("-", "_").upper() in found.output


def test_bash_completes_the_flags_of_a_nested_command() -> None:
    words = "ingero fleet serve --po"
    done = subprocess.run(
        [BIN / "ingero"],
        env={"_INGERO_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout == "plain,--ports-file\n"


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["sink", "--socket-path", "/a", "--remediate-socket", "/b"], "socket_paths", ("/a", "/b")),
        (["agent", "annotate", "step=1", "--socket", "/a"], "path", Path("/a")),
        (["fleet", "rates", "update", "--output", "/a"], "output", Path("/a")),
        (["fleet", "replay", "x.csv", "--format", "json"], "as_json", True),
        (["fleet", "diagnose", "x.csv", "--format", "table"], "as_json", False),
    ],
)
def test_older_names_of_flags_work_and_are_not_shown(words: list[str], name: str, value: object) -> None:
    command: click.Command = umbrella.main
    context = click.Context(command)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None
        command, words = found, words[1:]

    context = command.make_context("test", list(words))

    assert context.params[name] == value
    old = next(word for word in words if word.startswith("--"))
    assert f"{old} " not in command.get_help(context)


def commands(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    """A command and all below it."""
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                yield from commands(below, click.Context(below, parent=context))


def test_every_example_in_the_help_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("prod.yaml", "new.yaml", "old.yaml"):
        Path(file).touch()
    lines = {
        line.strip()
        for command in commands(umbrella.main, click.Context(umbrella.main))
        for line in (command.help or "").partition("\b")[2].splitlines()
    }
    examples = [found for line in lines if (found := re.match(r"(?:[A-Z_]+=\S+ )?ingero(?:-(\w+))? (.+)", line))]
    for program, rest in (example.groups() for example in examples):
        words = shlex.split(re.split(r" \| | > |   +", rest)[0])
        command: click.Command = umbrella.main
        words = [program, *words] if program else words
        while isinstance(command, click.Group):
            below = command.get_command(click.Context(command), words[0])
            assert below is not None, rest
            command, words = below, words[1:]
        with command.make_context("test", words):
            pass

    assert len(examples) > 40
