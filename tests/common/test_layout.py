"""The shelves must stay shelves: one stray `operator/__init__.py` would shadow the standard library."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shelf", ["common", "operator", "fleet", "agent", "echo", "tests", "tests/operator"])
def test_shelf_is_not_a_package(shelf: str) -> None:
    assert not (ROOT / shelf / "__init__.py").exists()


def test_bcc_is_never_taken_from_the_package_index() -> None:
    locked = (ROOT / "requirements.lock").read_text().splitlines()

    assert not [line for line in locked if line.startswith("bcc==")]
