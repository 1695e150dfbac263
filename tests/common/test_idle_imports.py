"""What a program has loaded before anybody asks for it is memory of every process."""

import subprocess
import sys

import pytest

ANYWHERE = {"grpc", "httpx", "mcp", "nats", "prometheus_client", "pygments", "rich"}
ON_NODES = ANYWHERE | {"numpy", "pyarrow", "starlette", "yaml", "zstandard"}
TRACER = {"sqlite3", "ingero_agent.trace.settings", "ingero_agent.trace.evidence", "ingero_agent.causal_chains"}


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        (
            "ingero_agent.cli, ingero_agent.app, ingero_agent.sources.procfs",
            (ON_NODES | TRACER | {"ingero_agent.collector", "ingero_agent.node_api"}) - {"httpx", "zstandard"},
        ),
        ("ingero_operator.cli, ingero_operator.app, kopf", {"uvloop"}),
        ("ingero_sink.cli, ingero_sink.app", ON_NODES | {"google", "orjson"}),
        (
            "ingero_fleet.cli, ingero_fleet.app, ingero_fleet.plain_pages",
            ANYWHERE | {"anyio", "fastapi", "google.protobuf.descriptor_pb2", "starlette", "zstandard"},
        ),
        (
            "ingero_echo.cli, ingero_echo.app, ingero_echo.json_api",
            ANYWHERE | {"mcp_types", "numpy", "pyarrow", "pyiceberg", "sqlalchemy"},
        ),
    ],
)
def test_an_idle_program_has_not_loaded_what_it_does_not_use(program: str, unused: set[str]) -> None:
    script = f"import sys, {program}; print(sorted({unused} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("[]\n", "")


APP = """
import sys
from ingero_kit.process_memory import leave_out_pydantic_v1
leave_out_pydantic_v1()
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.testclient import TestClient

class Answer(BaseModel):
    values: list[int]

app = FastAPI()

@app.get("/")
def page(several: int) -> Answer:
    return Answer(values=[several])

print(TestClient(app).get("/?several=7").json(), [name for name in sys.modules if name.startswith("pydantic.v1.")])
"""


def test_pages_do_without_the_first_version_of_pydantic() -> None:
    done = subprocess.run([sys.executable, "-c", APP], capture_output=True, text=True, timeout=60)

    assert done.stdout == "{'values': [7]} []\n", done.stderr
