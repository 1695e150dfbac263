"""The settings file of the published agent, of which Fleet's address is taken where nothing else gives it."""

import os
from pathlib import Path
from typing import Final

from ingero_kit.settings import SettingsError, read_yaml

VARIABLE: Final = "INGERO_CONFIG"
NAME: Final = "ingero.yaml"
FOLDERS: Final = (Path(), Path("/etc/ingero"))


def published_endpoint(folders: tuple[Path, ...] = FOLDERS) -> str | None:
    """`fleet.endpoint` of the first file in the published agent's order. Raises `SettingsError` for a wrong one.

    That agent documents the key. Everything else in the file is for that agent.
    """
    named = os.environ.get(VARIABLE)
    candidates = [Path(named)] if named else [folder / NAME for folder in folders if (folder / NAME).exists()]
    if not candidates:
        return None
    section = read_yaml(candidates[0]).get("fleet") or {}
    endpoint = section.get("endpoint") if isinstance(section, dict) else section
    if endpoint is None or (isinstance(endpoint, str) and isinstance(section, dict)):
        return endpoint or None
    raise SettingsError(f"{candidates[0]}: fleet.endpoint: an address such as fleet:4318 was expected")
