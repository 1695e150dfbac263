"""What a user of Fleet sets, in the Collector's manner: receivers, processors, extensions, exporters, service.

`ingero-fleet validate --config FILE` checks a file; `ingero-fleet serve --help` names the precedence.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import model_validator

from ingero_fleet.exporter_settings import ExportersConfig
from ingero_fleet.log_settings import LogConfig
from ingero_fleet.processor_settings import ProcessorsConfig
from ingero_fleet.receiver_settings import ReceiversConfig
from ingero_fleet.service_settings import ExtensionsConfig, ServiceConfig
from ingero_kit.settings import Settings, load


class FleetConfig(Settings):
    """Everything."""

    receivers: ReceiversConfig = ReceiversConfig()
    """Where telemetry comes in."""
    processors: ProcessorsConfig = ProcessorsConfig()
    """What is done with it."""
    extensions: ExtensionsConfig = ExtensionsConfig()
    """Extensions."""
    exporters: ExportersConfig = ExportersConfig()
    """Where findings go."""
    service: ServiceConfig = ServiceConfig()
    """What of the above runs."""
    log: LogConfig = LogConfig()
    """The log that several Fleets share."""

    @model_validator(mode="after")
    def _defined(self) -> Self:
        pipelines = self.service.pipelines
        for signal in ("metrics", "logs", "traces"):
            for name in getattr(pipelines, signal).exporters:
                if name != "prometheus" and getattr(self.exporters, name) is None:
                    raise ValueError(f"service.pipelines.{signal}.exporters names {name}, which is not configured")
        return self

    def unused_exporters(self) -> list[str]:
        """Exporters that are configured and in no pipeline, so that nothing goes to them."""
        pipelines = self.service.pipelines
        used = {name for one in (pipelines.metrics, pipelines.logs, pipelines.traces) for name in one.exporters}
        return [name for name in ("otlp", "otlphttp", "nats") if getattr(self.exporters, name) and name not in used]


def read_config(file: Path | None, assignments: Sequence[str] = ()) -> FleetConfig:
    """What `--set` gave over variables over the file over the defaults. `SettingsError` names what cannot be used."""
    return load(
        FleetConfig, file=file, prefix="INGERO_FLEET_", assignments=assignments,
        reserved=frozenset({"INGERO_FLEET_CONFIG"}),
    )  # fmt: skip
