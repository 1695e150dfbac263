"""The published tables; each has `cluster_id` and `timestamp`."""

from pathlib import Path
from typing import Final

TABLES: Final = ("events", "node_metrics", "node_rollups", "collectives", "verdicts", "causal_chains")

LOCKDOWN_SETTINGS: Final = (
    "enable_external_access=false",
    "autoinstall_known_extensions=false",
    "autoload_known_extensions=false",
    "allow_community_extensions=false",
    "python_enable_replacements=false",
    "lock_configuration=true",
)
"""Settings that deny the engine access to files, network and extensions; the last one locks the configuration."""


def lockdown(readable: Path | str | None = None) -> tuple[str, ...]:
    """The settings, with a folder whose files the engine may read."""
    if not readable:
        return LOCKDOWN_SETTINGS
    folder = str(readable).replace("'", "''")
    return (f"allowed_directories=['{folder}/']", *LOCKDOWN_SETTINGS)
