"""What a user of the sink sets."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from ingero_kit.addresses import Endpoint
from ingero_kit.settings import Duration, Settings, load
from ingero_sink.stats import MAX_NODES

PREFIX: Final = "INGERO_SINK_"
CONFIG_VARIABLE: Final = "INGERO_SINK_CONFIG"


def _paths(value: object) -> object:
    """A list, or one text with the paths joined as in PATH."""
    return value.split(os.pathsep) if isinstance(value, str) else value


class SinkSettings(Settings):
    """`ingero-sink`."""

    socket_paths: Annotated[tuple[Path, ...], BeforeValidator(_paths)] = Field(
        default=(Path("/run/ingero/remediate.sock"),), min_length=1,
        json_schema_extra={"flag": "remediate-socket", "old_flag": "socket-path"},
    )  # fmt: skip
    """An agent's socket; once for `fleet-push`, once for `trace`. A variable joins several with colons."""
    listen: Endpoint = "127.0.0.1:9464"
    """Address of `/metrics`, `/healthz` and `/readyz`: `host:port`, or `:port` for every address."""
    reconnect_delay: Duration = Field(default=2.0, gt=0, lt=86400)
    """Pause before connecting again."""
    max_tracked_nodes: int = Field(default=MAX_NODES, ge=1)
    """Most stragglers with a series of their own; beyond it the oldest is dropped."""
    readiness_window: Duration = Field(default=60.0, gt=0, lt=86400)
    """How long the last event keeps the sink ready without an agent."""
    ports_file: Path | None = None
    """File to write the port taken into, as JSON, when ready."""


def read_settings(flags: Mapping[str, Any], file: Path | None = None) -> SinkSettings:
    """Flags, then INGERO_SINK_*, then the file, then defaults. Raises `SettingsError`."""
    return load(SinkSettings, file=file, prefix=PREFIX, flags=flags, reserved=frozenset({CONFIG_VARIABLE}))
