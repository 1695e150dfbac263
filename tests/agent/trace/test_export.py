"""What was seen is posted in the background; what did not arrive is sent again."""

import asyncio
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from ingero_agent.trace.events import Collective
from ingero_agent.trace.export import TraceExporter, build_request
from ingero_agent.trace.places import Place
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
    assert (taken[0].cluster, taken[0].encoding) == ("a b", "protobuf")
    assert b"ingero.node.id" in taken[0].body


def _collective(pid: int) -> Collective:
    return Collective(
        pid=pid, tid=pid, operation="ncclAllReduce", op_code=1, communicator="00ff", rank=0, nranks=2, device=0,
        seq=1, exact=True, dtype=7, reduce_op=0, size=8, arrival_ns=5, enqueue_ns=1, blocked_ns=2, end_ns=9,
    )  # fmt: skip


def test_what_came_while_a_post_was_under_way_is_sent_before_the_end() -> None:
    taken: list[bytes] = []

    async def work() -> None:
        may_answer = asyncio.Event()

        async def handle(push: Push) -> Answer:
            taken.append(push.body)
            await may_answer.wait()
            return Answer()

        receiver = OtlpHttpReceiver(handle, Authenticator())
        endpoint = f"127.0.0.1:{await receiver.start('127.0.0.1', 0)}"
        exporter = TraceExporter(ClientConfig(endpoint=endpoint, tls=ClientTls(insecure=True)), "n")
        exporter.keep([(Place(), _collective(1))])
        exporter.send(TraceStats(), None, 1, 0)
        while not taken:
            await asyncio.sleep(0.001)
        exporter.keep([(Place(), _collective(2))])
        exporter.send(TraceStats(), None, 2, 0)
        settled = asyncio.get_running_loop().run_in_executor(None, exporter.settle)
        may_answer.set()
        await settled
        exporter.send(TraceStats(), None, 3, 0)
        await asyncio.get_running_loop().run_in_executor(None, exporter.close)
        await receiver.stop(1)

    asyncio.run(asyncio.wait_for(work(), 60))

    posts = [ExportMetricsServiceRequest.FromString(body).resource_metrics for body in taken]
    assert [_pids(block) for blocks in posts for block in blocks] == [{1}, {2}]


def _pids(block: ResourceMetrics) -> set[int]:
    """The processes of a resource's single collectives."""
    return {
        pair.value.int_value
        for one in block.scope_metrics[0].metrics if one.name.startswith("nccl.collective.")
        for point in one.gauge.data_points
        for pair in point.attributes if pair.key == "pid"
    }  # fmt: skip


def test_collectives_of_a_pod_are_a_resource_that_names_node_cluster_and_pod() -> None:
    collectives = [(Place("job-0"), _collective(1)), (Place(), _collective(2)), (Place("job-0"), _collective(3))]
    request = build_request(TraceStats(), collectives, None, "n", "c", 10, 0)
    found = {}
    for block in request.resource_metrics:
        keys = {pair.key: pair.value.string_value for pair in block.resource.attributes}
        assert (keys["ingero.node.id"], keys["ingero.cluster.id"]) == ("n", "c")
        waits = [one for one in block.scope_metrics[0].metrics if one.name == "nccl.collective.barrier_wait_ms"]
        found[keys.get("k8s.pod.name")] = [
            pair.value.int_value
            for one in waits for point in one.gauge.data_points
            for pair in point.attributes if pair.key == "pid"
        ]  # fmt: skip
    assert found == {None: [2], "job-0": [1, 3]}


def test_collectives_of_another_job_than_the_nodes_are_a_resource_of_their_own() -> None:
    jobs = [("41", 1), ("42", 2), ("", 3)]
    collectives = [(Place("", job), _collective(pid)) for job, pid in jobs]
    request = build_request(TraceStats(), collectives, None, "n", "c", 10, 0, "41")
    found: dict[str, set[int]] = {}
    for block in request.resource_metrics:
        keys = {pair.key: pair.value.string_value for pair in block.resource.attributes}
        found[keys["ingero.job.id"]] = _pids(block)

    assert found == {"41": {1, 3}, "42": {2}}
