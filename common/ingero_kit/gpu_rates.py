"""Cost of a GPU per hour, by provider and model. A model without a rate counts as unknown, not as 0."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Final

from pydantic import AfterValidator, Field, ValidationError

from ingero_kit.settings import Settings, explain
from ingero_kit.yaml_documents import YamlError, load_yaml

MAX_BYTES: Final = 1 << 20
"""Largest table that is read."""

HIGHEST_RATE: Final = 10_000.0
"""A rate above this, in the table's currency per GPU and hour, is treated as a mistake."""

ALIASES: Final = {
    "ec2": "aws",
    "amazon": "aws",
    "google": "gcp",
    "gce": "gcp",
    "onprem": "on-premise",
    "on-prem": "on-premise",
    "on_premise": "on-premise",
}
"""Alternative names of providers, and the name that agents report and the table uses."""

KNOWN_MODELS: Final = (
    "NVIDIA B200", "NVIDIA B300", "NVIDIA GB200", "NVIDIA GB300", "NVIDIA H200", "NVIDIA H200 NVL",
    "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H800", "NVIDIA H20",
    "NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA A800-SXM4-80GB", "NVIDIA L40S", "NVIDIA L40",
    "NVIDIA L4", "NVIDIA A10", "NVIDIA A10G", "NVIDIA A30", "NVIDIA A40", "NVIDIA A2", "NVIDIA A16",
    "NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090",
    "NVIDIA GeForce RTX 5090", "Tesla T4", "Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB",
    "Tesla V100-PCIE-16GB", "Tesla P100-PCIE-16GB",
)  # fmt: skip
"""Names as nvidia-smi prints them, to detect misspelt ones; a table may contain others."""


def canonical_provider(name: str) -> str:
    """The canonical spelling of a provider's name."""
    name = name.strip().lower()
    return ALIASES.get(name, name)


class RatesError(Exception):
    """The table cannot be used; the text names every error."""


@dataclass(frozen=True)
class RateTable:
    """Rates per GPU and hour in one currency. `fallback` applies to models that are not listed; `None`: no rate."""

    currency: str = "USD"
    symbol: str = "$"
    providers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fallback: float | None = None

    def find(self, provider: str, model: str) -> float | None:
        """The rate of one GPU per hour; `None` when the table has none."""
        rates = self.providers.get(canonical_provider(provider), {})
        return rates.get(" ".join(model.split()), self.fallback)


def builtin_text() -> str:
    """The built-in table, comments included."""
    return (files("ingero_kit") / "gpu_rates.yaml").read_text()


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("printable characters were expected")
    return text


def _one_space(text: str) -> str:
    return " ".join(text.split())


_Rate = Annotated[float, Field(strict=True, ge=0, le=HIGHEST_RATE, allow_inf_nan=False)]
_Currency = Annotated[str, Field(min_length=1, max_length=8), AfterValidator(_printable)]
_Model = Annotated[str, AfterValidator(_one_space), Field(min_length=1)]


class _File(Settings):
    """The table as it is written."""

    currency_name: _Currency = "USD"
    currency_symbol: _Currency = "$"
    providers: dict[str, dict[_Model, _Rate]]
    fallback_rate: _Rate


def parse(text: str) -> RateTable:
    """Parse a table; raises `RatesError` with its first errors."""
    if len(text) > MAX_BYTES:
        raise RatesError(f"the table is larger than {MAX_BYTES} bytes")
    try:
        tree = load_yaml(text)
        if not isinstance(tree, dict):
            raise RatesError("a mapping with providers and fallback_rate was expected")
        file = _File.model_validate(tree)
    except ValidationError as error:
        wrong = explain(error, "the table").splitlines()
        raise RatesError(
            "; ".join(wrong[:20]) + (f"; and {len(wrong) - 20} more" if len(wrong) > 20 else "")
        ) from None
    except YamlError as error:
        raise RatesError(str(error)) from None
    table: dict[str, dict[str, float]] = {}
    for provider, rates in file.providers.items():
        table.setdefault(canonical_provider(provider), {}).update(rates)
    return RateTable(file.currency_name, file.currency_symbol, table, file.fallback_rate or None)


def builtin() -> RateTable:
    """The built-in table."""
    return parse(builtin_text())


def doubts(table: RateTable) -> list[str]:
    """Possible mistakes in a usable table: names that nvidia-smi never prints, rates of 0."""
    found: list[str] = []
    for provider, rates in table.providers.items():
        for model, rate in rates.items():
            if model not in KNOWN_MODELS:
                near = difflib.get_close_matches(model, KNOWN_MODELS, 1, 0.6)
                hint = f"; did you mean {near[0]}?" if near else ""
                found.append(f"{provider}: {model} is not a name known from nvidia-smi{hint}")
            if rate == 0:
                found.append(f"{provider}: {model} costs 0, so that its stragglers cost nothing")
    return found
