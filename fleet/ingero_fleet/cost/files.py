"""Reads the files that the settings of cost name: rates, provider rules, nodes."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from ingero_fleet.cost.pricing import Prices
from ingero_fleet.cost.providers import ProviderMap, ProvidersError, parse_nodes, parse_providers
from ingero_fleet.processor_settings import CostConfig
from ingero_kit.files import not_utf8
from ingero_kit.gpu_rates import MAX_BYTES, RatesError, builtin, parse
from ingero_kit.settings import SettingsError

MAX_NODES_BYTES: Final = 256 << 20
"""Most bytes that are read of the list of nodes; a longer file is cut off and thus not valid JSON."""


def read_prices(config: CostConfig) -> Prices:
    """Rates and provider rules from the files of the settings; raises `SettingsError` naming file and place."""
    table = builtin()
    try:
        if config.rates_file:
            table = parse(_read(config.rates_file))
    except (RatesError, ValueError) as error:
        raise SettingsError(f"processors.cost.rates_file {config.rates_file}: {error}") from None
    return Prices(table, read_providers(config))


def read_providers(config: CostConfig) -> ProviderMap:
    """Provider rules and what Kubernetes says of nodes; raises `SettingsError` naming file and place."""
    providers = parse_providers("", config.default_provider)
    try:
        if config.providers_file:
            providers = parse_providers(_read(config.providers_file), config.default_provider)
    except (ProvidersError, ValueError) as error:
        raise SettingsError(f"processors.cost.providers_file {config.providers_file}: {error}") from None
    try:
        if config.nodes_file:
            providers = replace(providers, places=parse_nodes(_bytes(config.nodes_file, MAX_NODES_BYTES)))
    except (ProvidersError, ValueError) as error:
        raise SettingsError(f"processors.cost.nodes_file {config.nodes_file}: {error}") from None
    return providers


def _read(file: Path) -> str:
    """The text of a file; raises `ValueError` that says why there is none, with the place."""
    try:
        return _bytes(file, MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8(error)) from None


def _bytes(file: Path, most: int) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(most + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
