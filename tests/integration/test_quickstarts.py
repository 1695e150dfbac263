"""The quickstarts: what their pages print is executed."""

import shlex
from pathlib import Path

import click
import pytest

from ingero_agent.cli import main as agent
from ingero_echo.cli import main as echo
from ingero_fleet.cli import main as fleet
from ingero_operator.cli import main as operator
from ingero_sink.cli import main as sink
from ingero_testing.needs import COLLECTOR, NAMESPACES, find_collector
from ingero_testing.slurm import needs_slurm
from scripts.pages import blocks_of, namespaces, play

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs/quickstart").glob("*.md")), ROOT / "docs/slurm.md"]
COMMANDS: dict[str, click.Command] = {
    "ingero-agent": agent, "ingero-echo": echo, "ingero-fleet": fleet, "ingero-operator": operator,
    "ingero-sink": sink,
}  # fmt: skip


def quickstart(name: str, home: Path, path: str = "") -> str:
    prefix = namespaces()
    if not prefix:
        pytest.skip(NAMESPACES)
    return play(ROOT / "docs/quickstart" / name, ROOT, home, 270, path, tuple(prefix))


def test_one_host(tmp_path: Path) -> None:
    quickstart("one-host.md", tmp_path)


def test_a_collector_in_front_of_and_behind_fleet(tmp_path: Path) -> None:
    found = find_collector()
    if found is None:
        pytest.skip(COLLECTOR)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "otelcol").symlink_to(found)
    quickstart("collector.md", tmp_path, f"{folder}:{ROOT / '.venv/bin'}")


def invocations(text: str) -> list[list[str]]:
    """The words of every command of ours in a shell text; lines in quotes count as part of their command."""
    words = shlex.split(text.replace("\\\n", " ").replace("\n", " ; "), comments=False)
    words = [part for word in words for part in (word.partition("=")[2].split() if "=ingero-" in word else [word])]
    found: list[list[str]] = []
    for word in words:
        if word in COMMANDS:
            found.append([word])
        elif found and found[-1] and word in (";", "|", "&", "&&", "done", ">"):
            found.append([])
        elif found and found[-1]:
            found[-1].append(word)
    return [item for item in found if item]


@needs_slurm
def test_slurm(tmp_path: Path) -> None:
    quickstart("slurm.md", tmp_path, str(ROOT / ".venv/bin"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_every_command_and_option_of_a_page_exists(page: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.kind in ("sh", "console")]
    assert {block.kind for block in blocks_of(page)} <= {"sh", "console", "text", "yaml"}
    for words in (words for block in blocks for words in invocations(block.text)):
        command: click.Command | None = COMMANDS[words[0]]
        rest = words[1:]
        while isinstance(command, click.Group) and rest:
            context = click.Context(command)
            command = command.get_command(context, rest.pop(0))
        assert command is not None, words
        options = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        wrong = {word for word in rest if word.startswith("--") and word.partition("=")[0] not in options}
        assert not wrong - {"--help", "--version"}, f"{page.name}: {words[0]} has no {wrong}"


def test_the_check_of_options_sees_commands_in_variables_and_loops() -> None:
    found = invocations(
        'push="ingero-agent fleet-push --stub"\nfor n in 1; do\n  $push --x &\ndone\ningero-sink --a b'
    )

    assert [words[:2] for words in found] == [["ingero-agent", "fleet-push"], ["ingero-sink", "--a"]]
