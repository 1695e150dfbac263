"""Python servers that take OTLP pushes, do nothing with them and answer with an empty response.

`python bench/peers.py grpc.aio|uvicorn|receivers` listens on free ports of loopback, prints them as one line of JSON
and serves until it is ended. `bench/fleet.py` compares the receivers with them.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def announce(**ports: int) -> None:
    """Print the ports, by listener."""
    print(json.dumps({f"otlp/{protocol}": port for protocol, port in ports.items()}), flush=True)


async def grpc_aio() -> None:
    """grpcio's asynchronous server, messages left encoded."""
    import grpc

    async def export(request: bytes, context: object) -> bytes:
        return b""

    server = grpc.aio.server()
    for signal, service in (("metrics", "Metrics"), ("logs", "Logs"), ("trace", "Trace")):
        name = f"opentelemetry.proto.collector.{signal}.v1.{service}Service"
        methods = {"Export": grpc.unary_unary_rpc_method_handler(export)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(grpc=port)
    await server.wait_for_termination()


async def uvicorn_asgi() -> None:
    """uvicorn with httptools and uvloop, below an application of a dozen lines."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        fields = [(b"content-type", b"application/x-protobuf"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": b""})

    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http="httptools", lifespan="off", log_config=None, access_log=False)
    )
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    announce(http=server.servers[0].sockets[0].getsockname()[1])
    await serving


async def receivers() -> None:
    """The receivers of this project with a handler that does nothing."""
    from ingero_kit.logs import configure
    from ingero_kit.otlp_receiver import ACCEPTED, Authenticator, OtlpGrpcReceiver, OtlpHttpReceiver

    configure("error")
    http = OtlpHttpReceiver(lambda push: ACCEPTED, Authenticator())
    grpc = OtlpGrpcReceiver(lambda push: ACCEPTED, Authenticator())
    announce(http=await http.start("127.0.0.1", 0), grpc=await grpc.start("127.0.0.1", 0))
    await asyncio.Event().wait()


KINDS = {"grpc.aio": grpc_aio, "uvicorn": uvicorn_asgi, "receivers": receivers}


def main() -> None:
    """Serve until ended."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    kind = parser.parse_args().kind
    # grpcio has an event loop of its own below and is a little faster on asyncio's.
    run = asyncio.run if kind == "grpc.aio" else uvloop.run
    run(KINDS[kind]())


if __name__ == "__main__":
    main()
