"""The layout of the tree. A folder of a component is no package: `operator/__init__.py` would shadow `operator`."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shelf", ["common", "operator", "fleet", "agent", "echo", "tests", "tests/operator"])
def test_shelf_is_not_a_package(shelf: str) -> None:
    assert not (ROOT / shelf / "__init__.py").exists()


def test_bcc_is_never_taken_from_the_package_index() -> None:
    locked = (ROOT / "requirements.lock").read_text().splitlines()

    assert not [line for line in locked if line.startswith("bcc==")]


def test_every_class_name_of_the_product_is_defined_once() -> None:
    places = defaultdict(list)
    for shelf in ("agent", "analyze", "common", "echo", "fleet", "operator"):
        for file in (ROOT / shelf).rglob("*.py"):
            for name in re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE):
                places[name].append(str(file.relative_to(ROOT)))

    assert {name: files for name, files in places.items() if len(files) > 1} == {}
