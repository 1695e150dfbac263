"""Every reason and every setting of the operator is documented."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "operator/ingero_operator").rglob("*.py"))
CALLS = (
    r'(?:yes|no|unknown)\(\s*(?:kind|[A-Z_]+|"\w+"),\s*"([A-Z]\w+)"',
    r'ReconcileError\(\s*"([A-Z]\w+)"',
    r'(?:_locked|_refused)\(\s*\S+,\s*"([A-Z]\w+)"',
    r'return "([A-Z]\w+)", f?"',
    r'Judgement\(\s*Level\.NONE,\s*"([A-Z]\w+)"',
)


def reasons() -> set[str]:
    return {found for source in SOURCES for call in CALLS for found in re.findall(call, source.read_text())}


def test_every_reason_has_its_cure() -> None:
    text = (ROOT / "docs/operator.md").read_text()

    assert len(reasons()) > 40
    plain = {
        "Available", "Bound", "Allowed", "AsExpected", "AsRequested", "QuorumMet", "Progressing", "Fresh",
        "Valid",
    }  # fmt: skip
    assert sorted(reason for reason in reasons() - plain if reason not in text) == []


def test_every_metric_of_the_operator_is_documented() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    page = (ROOT / "operator/ingero_operator/metrics.py").read_text()
    names = set(re.findall(r'"ingero_operator_([a-z_]+)"', page)) | set(
        re.findall(r'^\s+\("([a-z_]+)", "', page, re.M)
    )

    assert len(names) > 12
    assert sorted(name for name in names if f"ingero_operator_{name}" not in text) == []
