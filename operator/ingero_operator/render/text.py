"""Manifests as YAML text, the same for the same input."""

from collections.abc import Iterable
from typing import Any

import yaml

NOTE = "# Printed by `make generate` from operator/ingero_operator; edit the code there.\n"


class _Plain(yaml.SafeDumper):
    """Writes every value in full: anchors confuse readers and some tools."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key."""
        super().increase_indent(flow, False)


class _Quick(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Dumps one document, with libyaml where it is installed, because every resource needs one."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(documents: Iterable[dict[str, Any]]) -> str:
    """One or several documents, with a header comment that names their source."""
    text = yaml.dump_all(
        documents, Dumper=_Plain, sort_keys=False, width=1000, default_flow_style=False, allow_unicode=True
    )
    return NOTE + text


def dump_bare(document: dict[str, Any]) -> str:
    """One document without the header: a configuration file inside a ConfigMap."""
    text: str = yaml.dump(document, Dumper=_Quick, sort_keys=True, width=1000, default_flow_style=False)
    return text
