"""The baseline on disk: whole or not at all, and never trusted blindly."""

import json
from pathlib import Path
from typing import Any

import pytest

from ingero_agent.baseline_file import load_baseline, save_baseline
from ingero_agent.health.baseline import Baseline
from ingero_agent.health.signals import SignalReading

NOW = 1_700_000_000.0
BASELINE = Baseline().advance(SignalReading(rate=10, compute=0.5, memory=0.5, cpu=0.5))


def test_a_baseline_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "baseline.json"
    save_baseline(file, BASELINE, NOW)

    assert load_baseline(file, NOW + 60, 600) == (BASELINE, "fresh")
    assert [entry.name for entry in file.parent.iterdir()] == ["baseline.json"]


@pytest.mark.parametrize(
    ("change", "age", "outcome", "left"),
    [
        pytest.param({}, 601, "stale", [], id="too old"),
        pytest.param({}, -5, "stale", [], id="from the future"),
        pytest.param({"schema_version": 2}, 1, "newer", ["b.json"], id="newer version"),
        pytest.param({"fast_alpha": 0.5}, 1, "corrupt", ["b.json.corrupt-20231114T221321Z"], id="other weights"),
        pytest.param({"sample_count": -1}, 1, "corrupt", ["b.json.corrupt-20231114T221321Z"], id="negative count"),
        pytest.param({"fast_ema": None}, 1, "corrupt", ["b.json.corrupt-20231114T221321Z"], id="hole"),
    ],
)
def test_what_cannot_be_used_is_put_aside(
    tmp_path: Path, change: dict[str, Any], age: float, outcome: str, left: list[str]
) -> None:
    file = tmp_path / "b.json"
    save_baseline(file, BASELINE, NOW)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))

    assert load_baseline(file, NOW + age, 600) == (None, outcome)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == left


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"x" * (2 << 20)])
def test_rubbish_is_renamed(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "b.json"
    file.write_bytes(content)

    assert load_baseline(file, NOW, 600) == (None, "corrupt")
    assert not file.exists()


@pytest.mark.parametrize(("content", "outcome"), [(None, "stale"), (b"{", "corrupt")])
def test_what_cannot_be_put_aside_does_not_end_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, outcome: str
) -> None:
    """As in a folder of another user, or on a file system that is read-only."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "b.json"
    save_baseline(file, BASELINE, NOW)
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)

    assert load_baseline(file, NOW + 601, 600) == (None, outcome)


def test_nothing_there_is_missing(tmp_path: Path) -> None:
    assert load_baseline(tmp_path / "b.json", NOW, 600) == (None, "missing")
