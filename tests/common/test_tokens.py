from pathlib import Path

import pytest

from ingero_kit.settings import SettingsError
from ingero_kit.tokens import Tokens


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("Bearer one", True),
        (b"bearer two", True),
        ("Bearer three", False),
        ("Basic one", False),
        ("one", False),
        ("", False),
        (None, False),
    ],
)
def test_only_a_known_bearer_token_is_accepted(header: str | bytes | None, accepted: bool) -> None:
    assert Tokens("one", "two").accept(header) is accepted


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("# nothing here\n\n")

    with pytest.raises(SettingsError, match="holds no token"):
        Tokens.read(file)
