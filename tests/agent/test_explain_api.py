"""The agent answers why its node is slow to who may know, and says what is wrong to everybody else."""

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from ingero_agent.explain_api import ApiAccess, ExplainApi, TraceReader
from ingero_agent.settings import AgentSettings
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.probes.table import SCHED_SWITCH
from ingero_agent.trace.store import TraceStore
from ingero_http.http1.messages import Request, Response
from ingero_kit.settings import SettingsError


def api(folder: Path, **settings: Any) -> ExplainApi:
    file = folder / "trace.db"
    store = TraceStore(file)
    store.add([CallCount(SCHED_SWITCH, 7, 10, 200 * 10**9)], time.time() - 10, {7: "train"})
    store.close()
    given = {"signal_db_path": file, "metrics_listen": "127.0.0.1:0", **settings}
    config = AgentSettings(fleet_endpoint="x:1", fleet_cluster_id="c", fleet_node_id="n", **given)
    return ExplainApi(ApiAccess(config.metrics_listen, config.explain_token_file), TraceReader(config))


def ask(served: ExplainApi, query: str = "", method: bytes = b"GET", **headers: str) -> Response:
    names = {name.encode(): text.encode() for name, text in headers.items()}
    return asyncio.run(served.answer(Request(method, b"/api/v1/explain", query.encode(), names, b"")))


def test_findings_come_with_node_window_evidence_and_advice(tmp_path: Path) -> None:
    answer = ask(api(tmp_path), "since=2m", host="localhost:9465")
    body = orjson.loads(answer.body)

    assert (answer.status, answer.content_type) == (200, b"application/json")
    assert (body["node_id"], body["cluster_id"]) == ("n", "c")
    assert body["end"] - body["begin"] == pytest.approx(120)
    (finding,) = body["findings"]
    assert (finding["kind"], finding["subject"], finding["severity"]) == ("cpu-starved", "7", "HIGH")
    assert "train (7)" in finding["summary"]
    assert finding["evidence"]
    assert finding["advice"]


def test_only_a_token_or_the_loopback_opens_it(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    local, remote = api(tmp_path), api(tmp_path, metrics_listen=":0")
    guarded = api(tmp_path, metrics_listen=":0", explain_token_file=tokens)

    assert ask(local).status == 200
    assert ask(local, host="rebound.example").status == 403
    assert ask(local, host="localhost", origin="http://elsewhere.example").status == 403
    assert ask(remote).status == 403
    assert ask(guarded).status == 401
    assert ask(guarded, authorization="Bearer wrong").status == 401
    assert ask(guarded, authorization="Bearer secret", host="n:9465").status == 200


def test_a_token_file_without_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# none\n")
    with pytest.raises(SettingsError, match="tokens"):
        api(tmp_path, explain_token_file=tmp_path / "tokens")


@pytest.mark.parametrize("since", ["", "x", "1s", "2h", "nan"])
def test_a_duration_out_of_range_is_refused(since: str, tmp_path: Path) -> None:
    assert ask(api(tmp_path), f"since={since}").status == 400


def test_what_cannot_be_answered_is_said(tmp_path: Path) -> None:
    missing = ask(api(tmp_path, signal_db_path=tmp_path / "none.db"))

    assert ask(api(tmp_path, signal_db_path=None, stub=True)).status == 404
    assert ask(api(tmp_path), method=b"POST").status == 405
    assert (missing.status, b"ingero-agent trace --db" in missing.body) == (503, True)


def test_one_search_runs_at_a_time(tmp_path: Path) -> None:
    served = api(tmp_path)

    async def both() -> list[int]:
        request = Request(b"GET", b"/api/v1/explain", b"", {}, b"")
        return sorted(
            answer.status for answer in await asyncio.gather(served.answer(request), served.answer(request))
        )

    assert asyncio.run(both()) == [200, 429]
    assert ask(served).status == 200
