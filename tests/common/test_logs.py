"""A log line says what happened, and nothing that was secret."""

import json
import logging

import pytest

from ingero_kit import logs


def fail(secret: str) -> None:
    raise ValueError("it broke")


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_traceback_holds_no_local_variables(style: logs.Format, capsys: pytest.CaptureFixture[str]) -> None:
    root, secret = logging.getLogger(), "-".join(["s3cr3t", "word"])
    before = (root.handlers[:], root.level)
    try:
        logs.configure("info", style)
        for logger in (logs.get("ours"), logging.getLogger("library")):
            try:
                fail(secret)
            except ValueError:
                logger.exception("failed")
    finally:
        root.handlers[:], root.level = before
    words = capsys.readouterr().err

    assert secret not in words
    assert "it broke" in words
    if style == "json":
        assert [json.loads(line)["event"] for line in words.splitlines()] == ["failed", "failed"]
