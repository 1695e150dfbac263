"""Changing the wire means editing `contract.json`, which a reviewer will see."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_contract.values import VerdictState
from ingero_contract.verdicts import VerdictLine, parse_verdict

ROOT = Path(__file__).parents[2]
MODULES = ["metrics", "signals", "attributes", "headers", "routes", "kubernetes", "echo"]
PINNED: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "contract.json").read_text())


def constants(module_name: str) -> dict[str, str]:
    module = import_module(f"ingero_contract.{module_name}")
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


@pytest.mark.parametrize("module_name", MODULES)
def test_every_constant_is_pinned(module_name: str) -> None:
    assert constants(module_name) == PINNED[module_name]


@pytest.mark.parametrize("module_name", MODULES)
def test_no_two_names_share_a_value(module_name: str) -> None:
    values = list(constants(module_name).values())

    assert len(values) == len(set(values))


def test_no_component_spells_a_contract_name_itself() -> None:
    distinctive = {
        value
        for module_name in ("metrics", "signals", "attributes", "headers", "routes", "echo")
        for value in constants(module_name).values()
        if value.startswith(("ingero.", "nccl.", "X-Ingero", "ingero-", "/api/", "/v1/", "/internal/", "gpu."))
    }
    offenders = [
        f"{path.relative_to(ROOT)}: {value}"
        for folder in ("operator", "fleet", "agent", "echo", "common/ingero_kit", "common/ingero_detect")
        for path in (ROOT / folder).rglob("*.py")
        for value in distinctive
        if f'"{value}"' in path.read_text()
    ]

    assert offenders == []


@given(
    st.sampled_from(VerdictState),
    st.sampled_from(["", "slow", "slow_from_birth", "stopped"]),
    st.one_of(st.none(), st.integers(0, 2**40)),
    st.one_of(st.none(), st.floats(0, 1)),
    st.sampled_from(["", "late_rank"]),
)
def test_a_verdict_survives_its_header(
    state: VerdictState, kind: str, since: int | None, severity: float | None, collectives: str
) -> None:
    severity = severity and round(severity, 4)
    line = VerdictLine(state=state, kind=kind, since=since, severity=severity, collectives=collectives)

    assert parse_verdict(line.format()) == line


@pytest.mark.parametrize(
    "text", ["", "fine", "straggler;kind=<b>", "x" * 1000, "straggler;kind=a\r\nb", "healthy;collectives=<b>"]
)
def test_rubbish_is_no_verdict(text: str) -> None:
    assert parse_verdict(text) is None


@given(st.text(max_size=300))
def test_reading_any_text_never_fails(text: str) -> None:
    parse_verdict(text)
