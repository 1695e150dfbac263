"""What was seen is posted in the background; what did not arrive is sent again."""

import asyncio
from pathlib import Path

import orjson

from ingero_agent.trace.export import TraceExporter
from ingero_agent.trace.stats import TraceStats
from ingero_kit.otlp_client import ClientConfig
from ingero_kit.otlp_receiver import Answer, Authenticator, OtlpHttpReceiver, Push
from ingero_kit.tls import ClientTls
from ingero_kit.tokens import TokenStore, read_digests


def test_an_export_carries_token_and_cluster_and_one_that_is_refused_is_made_up_for(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("wrong")
    accepted = tmp_path / "accepted"
    accepted.write_text("right")
    taken: list[Push] = []

    def handle(push: Push) -> Answer:
        taken.append(push)
        return Answer()

    async def work() -> int:
        authenticator = Authenticator(TokenStore(accepted, read_digests))
        receiver = OtlpHttpReceiver(handle, authenticator)
        endpoint = f"127.0.0.1:{await receiver.start('127.0.0.1', 0)}"
        exporter = TraceExporter(
            ClientConfig(endpoint=endpoint, cluster="a b", tls=ClientTls(insecure=True), token_file=token), "n"
        )
        stats = TraceStats()
        exporter.send(stats, None, 1, 0)
        while not authenticator.refused:
            await asyncio.sleep(0.001)
        token.write_text("right")
        while not taken:
            exporter.send(stats, None, 2, 0)
            await asyncio.sleep(0.001)
        await asyncio.get_running_loop().run_in_executor(None, exporter.close)
        await receiver.stop(1)
        return authenticator.refused

    assert asyncio.run(asyncio.wait_for(work(), 60)) == 1
    assert (taken[0].cluster, taken[0].encoding) == ("a b", "json")
    assert b"ingero.node.id" in orjson.dumps(orjson.loads(taken[0].body))
