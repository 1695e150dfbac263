"""What the programs on every node load before anybody has asked for it is memory of every node."""

import subprocess
import sys

import pytest

ANYWHERE = {
    "grpc", "httpx", "mcp", "numpy", "prometheus_client", "pyarrow", "pygments", "rich", "starlette", "yaml",
    "zstandard",
}  # fmt: skip
AGENT = "ingero_agent.cli, ingero_agent.app, ingero_agent.sources.procfs"
TRACER = {"sqlite3", "ingero_agent.trace.settings", "ingero_agent.trace.evidence", "ingero_agent.causal_chains"}


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        (AGENT, ANYWHERE | TRACER | {"ingero_agent.collector", "ingero_agent.node_api"}),
        ("ingero_sink.cli, ingero_sink.app", ANYWHERE | {"google", "orjson"}),
    ],
)
def test_an_idle_program_has_not_loaded_what_it_does_not_use(program: str, unused: set[str]) -> None:
    script = f"import sys, {program}; print(sorted({unused} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("[]\n", "")
