"""Which cloud this is, asked of metadata services on the loopback interface: good, slow, garbled and redirecting."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from ingero_agent.cloud_provider import MAX_ANSWER, find_provider

Request = tuple[str, str, dict[str, str]]
"""Method, target, headers in lower case."""

Service = Callable[[Request], bytes]
"""The bytes to answer with."""


def answer(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def aws(request: Request) -> bytes:
    method, target, headers = request
    if target == "/latest/api/token":
        good = method == "PUT" and headers.get("x-aws-ec2-metadata-token-ttl-seconds", "").isdigit()
        return answer(200, "TOKEN==") if good else answer(400)
    if target == "/latest/meta-data/instance-id":
        good = method == "GET" and headers.get("x-aws-ec2-metadata-token") == "TOKEN=="
        return answer(200, "i-0123456789abcdef0") if good else answer(401)
    return answer(404)


def gcp(request: Request) -> bytes:
    if request[2].get("metadata-flavor") != "Google":
        return answer(403)
    if request[:2] == ("GET", "/computeMetadata/v1/instance/id"):
        return answer(200, "4711", metadata_flavor="Google")
    return answer(404, metadata_flavor="Google")


def azure(request: Request) -> bytes:
    if request[2].get("metadata") != "true":
        return answer(400)
    if request[:2] == ("GET", "/metadata/instance?api-version=2021-02-01"):
        return answer(200, '{"compute": {"azEnvironment": "AzurePublicCloud"}, "network": {}}')
    return answer(404)


def nothing(request: Request) -> bytes:
    return answer(404)


def ask(service: Service, *, drip: bool = False, mute: bool = False) -> str:
    """What an agent finds when this service answers on every metadata address."""

    async def work() -> str:
        over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {
                    line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head[1:] if line
                }
                if mute:
                    await over.wait()
                data = service((method, target, headers))
                for part in [data[at : at + 1] for at in range(len(data))] if drip else [data]:
                    writer.write(part)
                    await writer.drain()
                    if drip:
                        await asyncio.wait([asyncio.ensure_future(over.wait())], timeout=0.05)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            return await asyncio.wait_for(find_provider(base, base), 30)
        finally:
            over.set()
            server.close()
            await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))

    return asyncio.run(work())


@pytest.mark.parametrize(("service", "name"), [(aws, "aws"), (gcp, "gcp"), (azure, "azure"), (nothing, "")])
def test_each_cloud_is_known_by_its_own_answers(service: Service, name: str) -> None:
    assert ask(service) == name


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(lambda _: answer(200, "<html>please log in, compute</html>"), id="captive portal"),
        pytest.param(lambda _: answer(200, "<html>", metadata_flavor="Google"), id="portal with a header"),
        pytest.param(lambda _: answer(200, "i-0123456789abcdef0!"), id="nearly an instance"),
        pytest.param(lambda _: answer(200, '["compute"]'), id="JSON of another shape"),
        pytest.param(lambda _: answer(200, "[" * 50_000), id="deep JSON"),
        pytest.param(lambda _: b"SSH-2.0-OpenSSH_9.6\r\n", id="no HTTP"),
        pytest.param(lambda _: b"\x00\xff" * 1000, id="bytes"),
        pytest.param(lambda _: b"", id="closed at once"),
        pytest.param(lambda _: answer(200, "x" * (2 * MAX_ANSWER)), id="endless"),
        pytest.param(lambda _: answer(500), id="broken"),
    ],
)
def test_garbage_is_no_cloud(service: Service) -> None:
    assert ask(service) == ""


@pytest.mark.parametrize("service", [aws, gcp, azure])
def test_a_service_that_takes_requests_and_never_answers_is_given_up(service: Service) -> None:
    assert ask(service, mute=True) == ""


@pytest.mark.parametrize("service", [aws, gcp, azure])
def test_a_drip_of_bytes_gains_no_time(service: Service) -> None:
    assert ask(service, drip=True) == ""


def test_redirects_are_not_followed() -> None:
    followed = []

    def redirecting(request: Request) -> bytes:
        if request[1].startswith("/elsewhere"):
            followed.append(request)
            return gcp(("GET", "/computeMetadata/v1/instance/id", {"metadata-flavor": "Google"}))
        return answer(302, location=f"/elsewhere{request[1]}", metadata_flavor="Google")

    assert ask(redirecting) == ""
    assert followed == []


def test_nobody_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{closed.getsockname()[1]}"

        assert asyncio.run(find_provider(base, base)) == ""
