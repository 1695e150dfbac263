"""Flag, environment, file, default: in that order, and nothing unknown passes."""

from pathlib import Path
from typing import Self

import pytest
from pydantic import model_validator

from ingero_kit.settings import Duration, Settings, SettingsError, format_duration, load, parse_duration


class Inner(Settings):
    k: float = 2.0
    interval: Duration = 10.0


class Outer(Settings):
    inner: Inner = Inner()
    name: str | None = "default"

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.name == "secret" and self.inner.k > 9:
            raise ValueError("k cannot be above 9 with that name")
        return self


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
        pytest.param(
            "",
            {"X_INNER__INTERVAL": "soon"},
            "X_INNER__INTERVAL: inner.interval: a duration such as 5s",
            id="bad duration",
        ),
        pytest.param("[1, 2]", {}, "a mapping was expected", id="not a mapping"),
        pytest.param("a: b: c", {}, "is not YAML", id="not YAML"),
        pytest.param("name: 2026-13-45", {}, "is not YAML: month must be", id="no date"),
        pytest.param("name: " + "[" * 500 + "]" * 500, {}, "line 1: more than 64 lists", id="too deep"),
        pytest.param("inner: {k: 3}\nname: a\nname: b", {}, "line 3: the key 'name'", id="key twice"),
        pytest.param("", {"X_INNER": "{k: 1, k: 2}"}, "X_INNER: line 1: the key 'k'", id="twice in a variable"),
        pytest.param("", {"X_INNER__K": "2026-13-45"}, "X_INNER__K: inner.k: ", id="no date in a variable"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    tmp_path: Path, text: str, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        load(Outer, file=write(tmp_path, text), prefix="X_", environment=environment)


def test_what_is_required_is_named_with_its_flag() -> None:
    class Strict(Settings):
        fleet_endpoint: str
        other: str

    with pytest.raises(SettingsError) as caught:
        load(Strict, flags={"fleet_endpoint": None})

    assert str(caught.value).splitlines() == [
        "settings: fleet_endpoint: is required (--fleet-endpoint)", "settings: other: is required",
    ]  # fmt: skip


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: cannot be read"):
        load(Outer, file=tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_in_another_encoding_is_named_with_the_place_and_the_cure(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes("inner: {k: 3}\nname: Café\n".encode(encoding))

    with pytest.raises(SettingsError, match=r"settings.yaml: line [12] is not UTF-8 text \(byte \d+ is 0x") as caught:
        load(Outer, file=file)

    assert "iconv" in str(caught.value) and "codec" not in str(caught.value)


def test_an_assignment_beats_all_and_null_takes_a_value_away(tmp_path: Path) -> None:
    file = write(tmp_path, "name: file\n")

    got = load(Outer, file=file, flags={"name": "flag"}, assignments=["name=null", "inner.interval=250ms"])

    assert got == Outer(inner=Inner(interval=0.25), name=None)


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("inner.k", "--set inner.k: PATH=VALUE was expected"),
        ("inner.k=[", "--set: inner.k: "),
        ("inner.k=many", "--set: inner.k: "),
        ("inner.kk=1", "--set: inner.kk: no such setting"),
        ("iner.k=1", "--set: iner.k: no such setting; did you mean inner?"),
        ("inner=5", "--set: inner: a group of settings was expected (got 5)"),
        ("inner.interval=.inf", "--set: inner.interval: "),
        ("inner={k: 1, k: 2}", "--set inner: line 1: the key 'k'"),
    ],
)
def test_a_wrong_assignment_is_named(assignment: str, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(Outer, assignments=[assignment])

    assert words in str(error.value)


def test_an_assignment_to_an_unknown_group_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--set: other\.k: no such setting$"):
        load(Outer, file=write(tmp_path, "name: x\n"), assignments=["other.k=1"])


def test_an_error_shows_no_password_of_an_address() -> None:
    with pytest.raises(SettingsError) as error:
        load(Outer, assignments=["inner.k=http://user:secret@host:1"])

    assert "(got 'http://host:1')" in str(error.value)


def test_an_address_of_ipv6_needs_no_quotes() -> None:
    assert load(Outer, assignments=["name=[::1]:4317"]).name == "[::1]:4317"


def test_settings_that_do_not_fit_together_are_reported_without_their_values() -> None:
    with pytest.raises(SettingsError) as error:
        load(Outer, assignments=["name=secret", "inner.k=10"])

    assert str(error.value) == "k cannot be above 9 with that name"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0ms"),
        (0.25, "250ms"),
        (1e-7, "0.0001ms"),
        (90.0, "90s"),
        (2_592_000.0, "2592000s"),
        (1234567.5, "1234567.5s"),
    ],
)
def test_a_duration_is_written_as_it_is_read(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == pytest.approx(seconds)
