"""The `ingero-fleet bench` command."""

import ipaddress
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, cast

import click

from ingero_kit.addresses import parse_endpoint
from ingero_kit.flags import FiniteRange, SecondsRange

if TYPE_CHECKING:
    from ingero_analyze.loadgen.driver import LoadPlan, LoadResult
    from ingero_analyze.loadgen.requests import Protocol


def summary(plan: "LoadPlan", result: "LoadResult") -> dict[str, object]:
    """The figures of a run."""
    return {
        "protocol": plan.protocol,
        "pushes": result.pushes,
        "seconds": round(result.seconds, 3),
        "pushes_per_second": round(result.pushes / result.seconds, 1) if result.seconds else 0.0,
        "p50_ms": round(1000 * result.percentile(0.50), 3),
        "p99_ms": round(1000 * result.percentile(0.99), 3),
        "p999_ms": round(1000 * result.percentile(0.999), 3),
        "max_ms": round(1000 * result.percentile(1.0), 3),
        "with_threshold": result.with_threshold,
        "errors": dict(result.errors),
    }


@click.command()
@click.option("--endpoint", default="127.0.0.1:4318", show_default=True, help="host:port of an OTLP listener.")
@click.option(
    "--protocol",
    type=click.Choice(["http/protobuf", "http/json", "grpc"]),
    default="http/protobuf",
    show_default=True,
)
@click.option("--connections", default=64, show_default=True, type=click.IntRange(1, 10_000))
@click.option(
    "--nodes", default=1000, show_default=True, type=click.IntRange(1, 1_000_000), help="Agents to simulate."
)
@click.option("--seconds", default=10.0, show_default=True, type=SecondsRange(0.1, 3600), metavar="SECONDS")
@click.option("--pushes", default=0, type=click.IntRange(0), help="Stop after so many; 0 means by time alone.")
@click.option("--rate", default=0.0, type=FiniteRange(0), help="Pushes a second; 0 means as fast as answers come.")
@click.option("--cluster", default="load", show_default=True)
@click.option("--cpu", type=int, help="Pin this process to one core.")
@click.option("--expect-threshold", is_flag=True, help="Fail unless answers carry a threshold (HTTP).")
@click.option("--allow-remote", is_flag=True, help="Permit a target that is not this machine.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a line for people.")
def bench(
    endpoint: str, protocol: str, connections: int, nodes: int, seconds: float, pushes: int, rate: float,
    cluster: str, cpu: int | None, expect_threshold: bool, allow_remote: bool, as_json: bool,
) -> None:  # fmt: skip
    """Drive simulated agents against an OTLP endpoint and print pushes a second and latency.

    \b
    ingero-fleet bench --endpoint 127.0.0.1:4318 --nodes 10000 --seconds 10
    ingero-fleet bench --endpoint 127.0.0.1:4317 --protocol grpc
    ingero-fleet bench --rate 5000 --json           latency counts from the intended moment of each push
    """
    import uvloop

    from ingero_analyze.loadgen.driver import LoadPlan, drive_load

    try:
        host, port = parse_endpoint(endpoint)
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except (ValueError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--endpoint") from None
    if not ipaddress.ip_address(address).is_loopback and not allow_remote:
        raise click.BadParameter(
            f"{host} is another machine; say --allow-remote if you mean it", param_hint="--endpoint"
        )
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    plan = LoadPlan(
        host=str(address), port=port, protocol=cast("Protocol", protocol),
        connections=min(connections, nodes), nodes=nodes, cluster=cluster, seconds=seconds, pushes=pushes, rate=rate,
    )  # fmt: skip
    try:
        result = uvloop.run(drive_load(plan))
    except OSError as error:
        click.echo(f"ingero-fleet: {endpoint}: {error}", err=True)
        sys.exit(1)
    facts = summary(plan, result)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(
            f"{facts['pushes_per_second']} pushes/s ({facts['pushes']} in {facts['seconds']} s), "
            f"p50 {facts['p50_ms']} ms, p99 {facts['p99_ms']} ms, "
            f"with threshold {facts['with_threshold']}, errors {facts['errors'] or 'none'}"
        )
    if result.errors or (expect_threshold and not result.with_threshold):
        sys.exit(1)
