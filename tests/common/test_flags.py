"""Values of flags: what is taken, and what is said of the rest."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ingero_kit.files import write_ports_file
from ingero_kit.flags import FiniteRange, SecondsRange


@click.command()
@click.option("--tick", type=SecondsRange(0.001, 86_400))
@click.option("--share", type=FiniteRange(0, 1))
def command(tick: float | None, share: float | None) -> None:
    click.echo(tick if share is None else share)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", "5.0"), ("0.5", "0.5"), ("5s", "5.0"), ("1m30s", "90.0"), ("250ms", "0.25")]
)
def test_seconds_are_written_as_numbers_or_as_in_settings(text: str, seconds: str) -> None:
    assert CliRunner().invoke(command, ["--tick", text]).output == f"{seconds}\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tick", "soon"], "'soon' is not a valid duration, such as 90, 90s or 1m30s."),
        (["--tick", "nan"], "nan is not a finite number."),
        (["--tick", "2d2"], "'2d2' is not a valid duration"),
        (["--tick", "100000s"], "100000.0 is not in the range 0.001<=x<=86400."),
        (["--share", "5s"], "'5s' is not a valid number."),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_in_words(flags: list[str], words: str) -> None:
    done = CliRunner().invoke(command, flags)

    assert done.exit_code == 2
    assert words in done.output


def test_a_ports_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "ports.json").mkdir()
    with pytest.raises(OSError, match="cannot be written"):
        write_ports_file(tmp_path / "ports.json", {"a": 1})

    assert [file.name for file in tmp_path.iterdir()] == ["ports.json"]
