"""The command that installs what an optional part needs."""

import importlib.metadata

import pytest

from ingero_kit.extras import pip_command


def test_only_what_is_missing_is_installed_and_never_by_the_name_of_this_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("pyarrow", "mcp"):
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)

    assert pip_command("echo") == "pip install 'mcp>=2' 'pyarrow>=18'"
    assert pip_command("fleet-log") == "pip install 'nats-py[nkeys]>=2.16'"
    assert pip_command("no-such") == "pip install '.[no-such]'"
