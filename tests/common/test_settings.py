"""Flag, environment, file, default: in that order, and nothing unknown passes."""

from pathlib import Path

import pytest

from ingero_kit.settings import Duration, Settings, SettingsError, load


class Inner(Settings):
    k: float = 2.0
    interval: Duration = 10.0


class Outer(Settings):
    inner: Inner = Inner()
    name: str = "default"


def write(folder: Path, text: str) -> Path:
    file = folder / "settings.yaml"
    file.write_text(text)
    return file


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, "inner: {k: 3, interval: 1m30s}\n")

    got = load(
        Outer,
        file=file,
        prefix="X_",
        environment={"X_INNER__K": "4", "X_NAME": "env"},
        flags={"name": "flag", "inner.k": None},
    )

    assert got == Outer(inner=Inner(k=4, interval=90), name="flag")


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        pytest.param("inner: {kk: 1}", {}, "inner.kk: no such setting", id="unknown key"),
        pytest.param("inner: {k: many}", {}, "inner.k: ", id="wrong type"),
        pytest.param("", {"X_NAMES": "a"}, "X_NAMES: names: no such setting", id="unknown variable"),
        pytest.param("", {"X_INNER__INTERVAL": "soon"}, "X_INNER__INTERVAL", id="bad duration"),
        pytest.param("[1, 2]", {}, "a mapping was expected", id="not a mapping"),
        pytest.param("a: b: c", {}, "is not YAML", id="not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    tmp_path: Path, text: str, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        load(Outer, file=write(tmp_path, text), prefix="X_", environment=environment)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: cannot be read"):
        load(Outer, file=tmp_path / "nowhere.yaml")
