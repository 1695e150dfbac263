"""Settings in the Collector's manner: what is wrong is named with its path in the file."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ingero_fleet.cli import main
from ingero_testing.processes import FLEET


def validate(tmp_path: Path, text: str) -> tuple[int, str]:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    result = CliRunner().invoke(main, ["validate", "--config", str(file)])
    return result.exit_code, result.output


def test_what_validate_prints_is_valid_again(tmp_path: Path) -> None:
    status, text = validate(tmp_path, yaml.safe_dump(FLEET))

    assert status == 0
    assert validate(tmp_path, text) == (0, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("processors: {ingero: {treshold: {k: 2}}}", "processors.ingero.treshold: no such setting"),
        ("receivers: {jaeger: {}}", "receivers.jaeger: no such setting"),
        ("processors: {ingero: {threshold: {k: -1}}}", "processors.ingero.threshold.k:"),
        ("extensions: {ingero_threshold: {admin_endpoint: '0.0.0.0:8081'}}", "loopback"),
        ("service: {pipelines: {metrics: {exporters: [otlp]}}}", "not configured"),
        ("receivers: {otlp: {protocols: {http: {endpoint: nowhere}}}}", "not host:port"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    status, output = validate(tmp_path, text)

    assert status == 2
    assert words in output


def test_a_misspelt_variable_is_refused() -> None:
    result = CliRunner().invoke(main, ["validate"], env={"INGERO_FLEET_PROCESSORS__INGERO__PUSH_INTERVALL": "1s"})

    assert result.exit_code == 2
    assert "PUSH_INTERVALL" in result.output


def test_bare_protocol_names_take_the_defaults(tmp_path: Path) -> None:
    status, text = validate(tmp_path, "receivers: {otlp: {protocols: {grpc: , http: }}}")

    assert status == 0
    assert yaml.safe_load(text)["receivers"]["otlp"]["protocols"]["http"]["endpoint"] == "127.0.0.1:4318"
