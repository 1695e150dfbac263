"""Logging in by a kubeconfig: who needs the official client, and what an exec plugin brings."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml
from aiohttp import web

from ingero_kit.settings import SettingsError
from ingero_operator import credentials
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.kinds import NODE

PLUGIN = """
import json, pathlib, sys
calls = pathlib.Path(sys.argv[1])
number = int(calls.read_text()) + 1 if calls.exists() else 1
calls.write_text(str(number))
status = {"token": f"token-{number}"}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


def kubeconfig(folder: Path, user: dict[str, Any], server: str = "http://127.0.0.1:1") -> Path:
    """A kubeconfig with one context that counts and another one."""
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "elsewhere", "context": {"cluster": "c", "user": "other"}},
            {"name": "here", "context": {"cluster": "c", "user": "me"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "other", "user": {"exec": {"command": "x"}}}, {"name": "me", "user": user}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(tree))
    return path


def plugin(folder: Path) -> dict[str, Any]:
    """A user who logs in by a program that hands out another token each time."""
    script = folder / "plugin.py"
    script.write_text(PLUGIN)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script), str(folder / "calls")],
            "interactiveMode": "Never",
        }
    }


@pytest.fixture(autouse=True)
def _outside_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)


@pytest.mark.parametrize(
    ("user", "needed"),
    [
        ({"token": "t"}, False),
        ({"client-certificate": "a", "client-key": "b"}, False),
        ({"exec": {"command": "aws"}}, True),
        ({"auth-provider": {"name": "oidc"}}, True),
        ({}, False),
    ],
)
def test_only_plugins_of_the_current_context_need_the_official_client(
    tmp_path: Path, user: dict[str, Any], needed: bool
) -> None:
    assert credentials.needs_plugin([tmp_path / "absent", kubeconfig(tmp_path, user)]) is needed


def test_a_plain_kubeconfig_does_not_import_the_official_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, {"token": "t"})))
    monkeypatch.setattr(kopf, "login_via_client", lambda **_: pytest.fail("imported"))

    found = credentials.login()

    assert found is not None and (found.server, found.token) == ("http://127.0.0.1:1", "t")


def test_without_the_official_client_a_plugin_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, plugin(tmp_path))))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(SettingsError, match="pip install 'kubernetes>=31'"):
        credentials.login()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_exec_plugin_brings_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, plugin(tmp_path))))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))

    found = credentials.login()

    assert found is not None and (found.server, found.token) == ("http://127.0.0.1:1", "token-1")


def connection(server: str, token: str) -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo(server=server, scheme="Bearer", token=token)


@pytest.mark.parametrize(("fresh", "served"), [("new", True), ("old", False)])
def test_a_token_that_has_expired_is_renewed_once(fresh: str, served: bool) -> None:
    async def case() -> None:
        async def node(request: web.Request) -> web.Response:
            if request.headers.get("Authorization") != "Bearer new":
                return web.json_response({"reason": "Unauthorized", "message": "expired"}, status=401)
            return web.json_response({"metadata": {"name": "n"}})

        app = web.Application()
        app.add_routes([web.get("/api/v1/nodes/n", node)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        logins = []

        def renew() -> kopf.ConnectionInfo:
            logins.append(fresh)
            return connection(server, fresh)

        async with ApiClient(connection(server, "old"), renew=renew) as api:
            if served:
                bodies = await asyncio.gather(*(api.get(NODE, None, "n") for _ in range(5)))
                assert bodies == [{"metadata": {"name": "n"}}] * 5
            else:
                for _ in range(2):
                    with pytest.raises(ApiError, match="expired"):
                        await api.get(NODE, None, "n")
        assert logins == [fresh]
        await runner.cleanup()

    asyncio.run(case())
