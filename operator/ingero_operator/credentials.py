"""Credentials for the API server: the pod's service account, or the current context of the kubeconfig.

kopf reads a kubeconfig itself as long as it has tokens and certificates. Exec plugins and OIDC, by which EKS, GKE and
AKS log in, need the official `kubernetes` client. It is an extra and imported only then, because of its memory.
"""

import importlib.util
import logging
import os
from pathlib import Path
from typing import Any, Final

import kopf
import yaml

from ingero_kit.extras import pip_command
from ingero_kit.settings import SettingsError

DEFAULT_KUBECONFIG: Final = "~/.kube/config"
PLUGINS: Final = ("exec", "auth-provider")
"""Fields of a kubeconfig's user that name a program or protocol to log in by."""


def login() -> kopf.ConnectionInfo | None:
    """The credentials, or `None` when there are none. May run a plugin, so call it from a thread.

    Raises `SettingsError` where a plugin is needed and the official client is not installed.
    """
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings)
    if found is not None or not needs_plugin(kubeconfig_files()):
        return found or kopf.login_with_kubeconfig(settings=settings)
    if importlib.util.find_spec("kubernetes") is None:
        raise SettingsError(
            "the current context of the kubeconfig logs in by a plugin, which needs the official Kubernetes client: "
            + pip_command("kubeconfig")
        )
    return kopf.login_via_client(logger=logging.getLogger(__name__), settings=settings)


def kubeconfig_files() -> list[Path]:
    """The kubeconfig's files, in the order in which they count."""
    names = os.environ.get("KUBECONFIG", DEFAULT_KUBECONFIG).split(os.pathsep)
    return [Path(name).expanduser() for name in names if name]


def needs_plugin(files: list[Path]) -> bool:
    """Whether the user of the current context logs in by a plugin."""
    trees = [_read(file) for file in files if file.is_file()]
    current = next((name for tree in trees if (name := tree.get("current-context"))), None)
    context = _named(trees, "contexts", current).get("context") or {}
    user = _named(trees, "users", context.get("user")).get("user") or {}
    return any(user.get(field) for field in PLUGINS)


def _read(file: Path) -> dict[str, Any]:
    tree = yaml.safe_load(file.read_text())
    return tree if isinstance(tree, dict) else {}


def _named(trees: list[dict[str, Any]], section: str, name: str | None) -> dict[str, Any]:
    """The first entry of a name in a section of the files."""
    entries = (entry for tree in trees for entry in tree.get(section) or [])
    return next((entry for entry in entries if entry.get("name") == name), {})
