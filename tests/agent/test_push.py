"""What the agent reads from Fleet's answers, and how it addresses Fleet."""

from pathlib import Path

import pytest

from ingero_agent.app import check_key
from ingero_agent.cgroups import cgroup_path
from ingero_agent.push import read_threshold
from ingero_kit.otlp_client import base_url
from ingero_kit.settings import SettingsError


@pytest.mark.parametrize(
    ("endpoint", "insecure", "url"),
    [
        ("fleet:4318", False, "https://fleet:4318"),
        ("fleet:4318/", True, "http://fleet:4318"),
        ("http://fleet:4318", False, "http://fleet:4318"),
        ("[::1]:4318", True, "http://[::1]:4318"),
    ],
)
def test_addresses_are_completed(endpoint: str, insecure: bool, url: str) -> None:
    assert base_url(endpoint, insecure) == url


@pytest.mark.parametrize("endpoint", ["ftp://fleet", "a b", "a\r\nb"])
def test_other_schemes_and_control_characters_are_refused(endpoint: str) -> None:
    with pytest.raises(SettingsError):
        base_url(endpoint, False)


@pytest.mark.parametrize(
    ("threshold", "quorum", "expected"),
    [
        ("0.870348", "true", (0.870348, True)),
        ("0.5", "FALSE", (0.5, False)),
        ("0.5", None, None),
        (None, "true", None),
    ],
)
def test_threshold_and_quorum_count_only_together(
    threshold: str | None, quorum: str | None, expected: tuple[float, bool] | None
) -> None:
    assert read_threshold(threshold, quorum) == expected


@pytest.mark.parametrize(
    ("threshold", "quorum"), [("0", "false"), ("1.0", "true"), ("nan", "true"), ("0.5", "yes"), ("x", "true")]
)
def test_thresholds_that_make_no_sense_are_rejected(threshold: str, quorum: str) -> None:
    with pytest.raises(ValueError, match=r"threshold|quorum|float"):
        read_threshold(threshold, quorum)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch(0o644)

    with pytest.raises(SettingsError, match="chmod 600"):
        check_key(key, loose=False)
    check_key(key, loose=True)
    key.chmod(0o600)
    check_key(key, loose=False)
    with pytest.raises(SettingsError, match=r"nope\.pem: the private key cannot be read: No such file"):
        check_key(tmp_path / "nope.pem", loose=False)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/kubepods/pod1/abc\n", "/kubepods/pod1/abc"),
        ("12:cpu:/a\n3:memory:/a/longer\n", "/a/longer"),
        ("1:name=systemd:/x\n0::/unified\n", "/unified"),
        ("", ""),
    ],
)
def test_the_cgroup_path_is_found_in_both_versions(text: str, path: str) -> None:
    assert cgroup_path(text) == path
