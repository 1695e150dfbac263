"""The description that Echo serves is enough: a client made from it asks a real Echo, with TLS and a token."""

import importlib
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest
import trustme

from ingero_contract import echo, routes
from ingero_echo.questions import QUESTIONS
from ingero_testing import telemetry
from ingero_testing.processes import Running
from ingero_testing.processes import echo as start_echo

PACKAGE = "generated_echo_client"


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, ssl.SSLContext]]:
    folder = tmp_path_factory.mktemp("echo")
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.private_key_pem.write_to_path(folder / "key.pem")
    server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    (folder / "tokens").write_text("secret name=all\nreader name=reader scopes=read clusters=c\n")
    change = {
        "insecure": False, "tls": {"cert_file": str(folder / "cert.pem"), "key_file": str(folder / "key.pem")},
        "auth": {"tokens_file": str(folder / "tokens")},
    }  # fmt: skip
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with start_echo(folder, change) as service:
        answer = httpx.post(
            f"https://127.0.0.1:{service.ports['otlp/http']}{routes.OTLP_LOGS}", verify=context,
            content=telemetry.verdict("n1", "straggler", "c").SerializeToString(),
            headers={"content-type": "application/x-protobuf", "authorization": "Bearer secret"},
        )  # fmt: skip
        assert answer.status_code == 200
        yield service, context


@pytest.fixture(scope="module")
def generated(
    trust: tuple[Running, ssl.SSLContext], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """Modules of the generated package by name; generating must not give a single warning."""
    service, context = trust
    folder = tmp_path_factory.mktemp("generated")
    description = httpx.get(
        f"https://127.0.0.1:{service.ports['api']}{echo.OPENAPI}", verify=context,
        headers={"authorization": "Bearer secret"}, timeout=60,
    ).json()  # fmt: skip
    (folder / "openapi.json").write_text(json.dumps(description))
    (folder / "config.yaml").write_text("post_hooks: []\n")
    done = subprocess.run(
        [
            sys.executable, "-m", "openapi_python_client", "generate", "--path", str(folder / "openapi.json"),
            "--config", str(folder / "config.yaml"), "--output-path", str(folder / PACKAGE), "--meta", "none",
            "--fail-on-warning",
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield {
        name: importlib.import_module(f"{PACKAGE}.{name}") for name in ("api.default", "client", "models", "types")
    }
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def client(trust: tuple[Running, ssl.SSLContext], generated: dict[str, Any], token: str = "secret") -> Any:
    service, context = trust
    return generated["client"].AuthenticatedClient(
        base_url=f"https://127.0.0.1:{service.ports['api']}", token=token, verify_ssl=context,
        raise_on_unexpected_status=True,
    )  # fmt: skip


def operation(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.api.default.{name}")


def test_every_tool_answers_a_generated_client(
    trust: tuple[Running, ssl.SSLContext], generated: dict[str, Any]
) -> None:
    models = generated["models"]
    with client(trust, generated) as speaker:
        for answer in QUESTIONS.values():
            arguments_of, *_ = get_args(operation(answer.name).sync.__annotations__["body"])
            wanted = {"cluster_id": "c", "since": "all", "node_id": "n1"}
            known = answer.arguments.model_fields
            required = {name for name, field in known.items() if field.is_required()}
            arguments = arguments_of(
                **{
                    name: value
                    for name, value in wanted.items()
                    if name in {"cluster_id", "since"} & {*known} | required
                }
            )
            reply = operation(answer.name).sync(client=speaker, body=arguments)

            assert not isinstance(reply, models.Problem), reply
            assert isinstance(reply.summary, str)
            assert reply.truncated is False
        named = operation("find_stragglers").sync(client=speaker)
        assert [(row.node_id, row.state, row.severity) for row in named.rows] == [("n1", "straggler", 0.4)]


def test_sql_and_what_is_about_echo_itself(trust: tuple[Running, ssl.SSLContext], generated: dict[str, Any]) -> None:
    models = generated["models"]
    with client(trust, generated) as speaker:
        table = operation("sql").sync(
            client=speaker,
            body=models.AnalysisArguments(sql="SELECT node_id, count(*) AS n FROM verdicts GROUP BY 1"),
        )
        assert (table.columns, table.rows) == (["node_id", "n"], [["n1", 1]])
        assert operation("versions").sync(client=speaker).current == "v2"
        assert operation("health").sync(client=speaker).ready is True
        assert operation("whoami").sync(client=speaker).clusters is None
        assert len(operation("list_tools").sync(client=speaker).tools) == len(QUESTIONS) + 2


@pytest.mark.parametrize(
    ("token", "name", "status", "code"),
    [("wrong", "summary", 401, "unauthenticated"), ("reader", "backup", 403, "forbidden")],
)
def test_refusals_have_the_described_shape(
    trust: tuple[Running, ssl.SSLContext], generated: dict[str, Any], token: str, name: str, status: int, code: str
) -> None:
    with client(trust, generated, token) as speaker:
        reply = operation(name).sync_detailed(client=speaker)

    assert (reply.status_code, reply.parsed.code) == (status, code)
    assert reply.parsed.message
    assert reply.parsed.request_id
