from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ingero_kit.settings import SettingsError
from ingero_kit.tokens import CHECK_SECONDS, TokenStore, read_authorization, read_digests, read_token_lines


class Rotating:
    """A token file and a store that follows it, with a clock of the test's own."""

    def __init__(self, folder: Path, text: str, grace_seconds: float = 0.0) -> None:
        self.now = 0.0
        self.file = folder / "tokens"
        self.file.write_text(text)
        self.store = TokenStore(self.file, read_digests, grace_seconds, lambda: self.now)

    def write(self, text: str) -> None:
        self.file.write_text(text)
        self.now += CHECK_SECONDS

    def accepts(self, *tokens: str) -> list[bool]:
        return [self.store.find(f"Bearer {token}") is not None for token in tokens]


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("Bearer one", True),
        (b"bearer two", True),
        ("Bearer three", False),
        ("Bearer # one", False),
        ("Basic one", False),
        ("one", False),
        ("", False),
        (None, False),
    ],
)
def test_only_a_known_bearer_token_is_accepted(tmp_path: Path, header: str | bytes | None, accepted: bool) -> None:
    store = Rotating(tmp_path, "one\n# one\n two \n").store

    assert (store.find(header) is not None) is accepted


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="holds no token"):
        Rotating(tmp_path, "# nothing here\n\n")


def test_a_token_file_that_is_no_text_is_named_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(b"one\n\xe9\n")

    with pytest.raises(SettingsError, match=r"tokens: .* line 2 is not UTF-8 text \(byte 5 is 0xE9\)"):
        read_token_lines(tmp_path / "tokens")


def test_a_changed_file_counts_after_a_second_and_a_removed_token_after_its_grace(tmp_path: Path) -> None:
    rotating = Rotating(tmp_path, "old\nboth\n", grace_seconds=30.0)
    assert rotating.accepts("old", "both", "new") == [True, True, False]

    rotating.write("both\nnew\n")
    assert rotating.accepts("old", "both", "new") == [True, True, True]
    rotating.now += 29.0
    rotating.write("new\n")
    assert rotating.accepts("old", "both", "new") == [False, True, True]
    rotating.now += 30.0
    assert rotating.accepts("old", "both", "new") == [False, False, True]


def test_a_replaced_link_counts_as_a_change(tmp_path: Path) -> None:
    """Kubernetes updates a mounted Secret by replacing a link."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokens").write_text(name)
    (tmp_path / "data").symlink_to("first")
    now = [0.0]
    store = TokenStore(tmp_path / "data" / "tokens", read_digests, clock=lambda: now[0])
    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").rename(tmp_path / "data")
    now[0] += CHECK_SECONDS

    assert [store.find(f"Bearer {name}") is not None for name in ("first", "second")] == [False, True]


def test_an_unusable_file_keeps_the_old_tokens_and_is_logged_once_a_change(tmp_path: Path) -> None:
    rotating = Rotating(tmp_path, "sesame\n")
    with capture_logs() as logs:
        rotating.write("# empty\n")
        assert rotating.accepts("sesame") == [True]
        rotating.now += CHECK_SECONDS
        assert rotating.accepts("sesame") == [True]
        rotating.file.unlink()
        rotating.now += CHECK_SECONDS
        assert rotating.accepts("sesame") == [True]
        rotating.write("new\n")
        assert rotating.accepts("sesame", "new") == [False, True]

    assert [line["event"] for line in logs] == ["tokens_not_reloaded", "tokens_not_reloaded", "tokens_reloaded"]
    assert "sesame" not in str(logs)


def test_a_client_reads_its_token_at_every_request(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\nsecond\n")
    assert read_authorization(file) == "Bearer first"
    file.write_text("third\n")
    assert read_authorization(file) == "Bearer third"
    assert read_authorization(None) is None
    file.write_text("\u00e4")
    with pytest.raises(SettingsError, match="no header can carry"):
        read_authorization(file)
