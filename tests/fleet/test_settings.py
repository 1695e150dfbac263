"""Settings in the Collector's manner: what is wrong is named with its path in the file."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ingero_fleet.app import needing_restart
from ingero_fleet.cli import main
from ingero_fleet.settings import FleetConfig
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
        (
            "processors: {ingero: {treshold: {k: 2}}}",
            "processors.ingero.treshold: no such setting; did you mean threshold?",
        ),
        ("receivers: {jaeger: {}}", "receivers.jaeger: no such setting"),
        ("processors: {ingero: {threshold: {k: -1}}}", "processors.ingero.threshold.k:"),
        ("extensions: {ingero_threshold: {admin_endpoint: '0.0.0.0:8081'}}", "loopback"),
        ("service: {pipelines: {metrics: {exporters: [otlp]}}}", "not configured"),
        ("receivers: {otlp: {protocols: {http: {endpoint: nowhere}}}}", "not host:port"),
        ("receivers: {otlp: {protocols: {http: {endpoint: 'host:99999'}}}}", "no port is larger"),
        ("exporters: {otlp: {endpoint: 'http://echo:4318'}}", "use exporters.otlphttp"),
        ("exporters: {otlp: {endpoint: 'https://echo:4317'}}", "use exporters.otlphttp"),
        ("exporters: {otlp: {endpoint: 'echo:0'}}", "a port above 0"),
        ("exporters: {otlp: {endpoint: echo}}", "not host:port"),
        ("exporters: {otlphttp: {endpoint: 'ftp://echo:4318'}}", "http://host:port"),
        ("exporters: {otlphttp: {endpoint: 'http://echo:99999'}}", "http://host:port"),
        ("exporters: {otlphttp: {endpoint: 'http://ec ho:4318'}}", "http://host:port"),
        ("log: {role: receiver}", "a receiver needs log.nats"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    status, output = validate(tmp_path, text)

    assert status == 2
    assert words in output


@pytest.mark.parametrize(
    "text",
    [
        "exporters: {otlp: {endpoint: 'echo:4317'}}",
        "exporters: {otlp: {endpoint: 'dns:///echo.ns.svc:4317'}}",
        "exporters: {otlp: {endpoint: '[::1]:4317'}}",
        "exporters: {otlphttp: {endpoint: 'echo:4318'}}",
        "exporters: {otlphttp: {endpoint: 'https://echo:4318/otlp'}}",
        "exporters: {otlphttp: {endpoint: 'http://[::1]:4318'}}",
    ],
)
def test_addresses_of_exporters(tmp_path: Path, text: str) -> None:
    assert validate(tmp_path, text)[0] == 0


def test_what_validate_prints_holds_long_durations(tmp_path: Path) -> None:
    status, text = validate(tmp_path, "processors: {ingero: {push_interval: 30d}}")

    assert status == 0
    assert validate(tmp_path, text) == (0, text)


def test_a_misspelt_variable_is_refused() -> None:
    result = CliRunner().invoke(main, ["validate"], env={"INGERO_FLEET_PROCESSORS__INGERO__PUSH_INTERVALL": "1s"})

    assert result.exit_code == 2
    assert "PUSH_INTERVALL" in result.output


def test_bare_protocol_names_take_the_defaults(tmp_path: Path) -> None:
    status, text = validate(tmp_path, "receivers: {otlp: {protocols: {grpc: , http: }}}")

    assert status == 0
    assert yaml.safe_load(text)["receivers"]["otlp"]["protocols"]["http"]["endpoint"] == "127.0.0.1:4318"


def test_changed_settings_that_need_a_restart_are_named() -> None:
    def changed(tree: dict[str, object], *kept: str) -> list[str]:
        return needing_restart(FleetConfig(), FleetConfig.model_validate(tree), kept)

    processors = {"ingero": {"threshold": {"k": 3.5}, "push_interval": "7s"}, "nccl": {"window": 64, "share": 0.1}}
    nccl = ["processors.nccl.window", "processors.nccl.share"]
    assert changed({}, "push_interval") == changed({"processors": {"cost": {"default_provider": "x"}}}) == []
    assert changed({"processors": processors}, "push_interval") == ["processors.ingero.push_interval", *nccl]
    assert changed({"processors": processors, "log": {"nats": {"servers": ["nats://a:4222"]}}}, "threshold") == [
        "processors.ingero.threshold", *nccl, "log",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pipelines", "unused"),
    [({}, ["otlp", "otlphttp"]), ({"logs": {"exporters": ["otlphttp"]}}, ["otlp"]),
     ({"metrics": {"exporters": ["prometheus", "otlp"]}, "traces": {"exporters": ["otlphttp"]}}, [])],
)  # fmt: skip
def test_an_exporter_in_no_pipeline_is_known(pipelines: dict[str, object], unused: list[str]) -> None:
    exporters = {"otlp": {"endpoint": "echo:4317"}, "otlphttp": {"endpoint": "http://echo:4318"}}

    config = FleetConfig.model_validate({"exporters": exporters, "service": {"pipelines": pipelines}})

    assert config.unused_exporters() == unused
