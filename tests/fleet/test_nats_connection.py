"""The connection to NATS: TLS, keys and permissions on a real server, and settings that cannot be used."""

import asyncio
import base64
import os
import subprocess
from pathlib import Path

import nkeys
import pytest
import trustme
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ingero_fleet.log_settings import NatsConfig
from ingero_fleet.replication import parts
from ingero_fleet.replication.in_flight import InFlight
from ingero_fleet.replication.jetstream import JetStreamLog
from ingero_fleet.replication.ordered_log import LogMessage
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ClientTls
from scripts.nats_servers import BIN, nats_servers
from tests.fleet.test_jetstream_log import arrives

EXAMPLE = Path(__file__).resolve().parents[2] / "manifests/examples/nats.yaml"


def example_config() -> str:
    """The settings of the NATS servers that the example for Kubernetes runs."""
    found = next(item for item in yaml.safe_load_all(EXAMPLE.read_text()) if item["kind"] == "ConfigMap")
    return str(found["data"]["nats.conf"])


def nkey(folder: Path, name: str) -> tuple[Path, str]:
    """A file with a new seed, and its public key."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    file = folder / name
    file.write_bytes(seed + b"\n")
    return file, nkeys.from_seed(bytearray(seed)).public_key.decode()


def test_servers_of_the_example_admit_only_the_named_key_and_let_it_do_what_a_fleet_does(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own = authority.issue_cert("127.0.0.1")
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    good, public = nkey(tmp_path, "good")
    wrong, _ = nkey(tmp_path, "wrong")
    users = example_config().partition("authorization {")[2].replace("$FLEET_NKEY", f'"{public}"')
    pem = tmp_path / "server.pem"
    extra = f'tls {{ cert_file: "{pem}", key_file: "{pem}" }}\nauthorization {{{users}'

    async def story() -> None:
        with nats_servers(tmp_path / "nats", extra=extra) as servers:
            settings = NatsConfig(
                servers=tuple(servers.urls),
                prefix="prod",
                max_bytes=1 << 20,
                tls=ClientTls(ca_file=tmp_path / "ca.pem"),
                credentials_file=good,
            )
            refused = JetStreamLog(settings.model_copy(update={"credentials_file": wrong}))
            log = JetStreamLog(settings)
            refused.start()
            log.start()
            try:
                async with asyncio.timeout(60):
                    await log.publish("push", "a-1", b"body")
                    found = await anext(log.follow(0))
                    assert isinstance(found, LogMessage) and found.body == b"body"
                    await arrives(log, b"verdicts", asyncio.ensure_future(anext(log.follow_verdicts())))
                    await log.save_snapshot("s", b"state")
                    assert [one.data async for one in log.load_snapshots()] == [b"state"]
                    assert not log.stats.events["client_error"]
                    while not refused.stats.events["connect_failed"]:
                        await asyncio.sleep(0.01)
                assert refused.health().away_since is not None
            finally:
                await asyncio.gather(log.stop(), refused.stop())

    asyncio.run(story())


def test_the_server_accepts_the_settings_of_the_example(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("nats")
    own.private_key_pem.write_to_path(tmp_path / "tls.key")
    own.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    file = tmp_path / "nats.conf"
    file.write_text(example_config().replace("/tls/", f"{tmp_path}/").replace("/data", str(tmp_path)))
    environment = {**os.environ, "POD_NAME": "nats-0", "FLEET_NKEY": nkey(tmp_path, "seed")[1]}
    command = [str(BIN / "nats-server"), "-t", "-c", str(file)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"servers": ()}, "at least 1"),
        ({"servers": ("http://a:4222",)}, "nats://host:port"),
        ({"servers": ("nats://me:secret@a",)}, "credentials_file"),
        ({"prefix": "a.b"}, "pattern"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_the_reason(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        NatsConfig.model_validate({"servers": ("a:4222",)} | change)


def test_addresses_get_the_scheme_and_port_of_nats() -> None:
    config = NatsConfig(servers=("a", "nats://b:1", "tls://[::1]"))
    assert config.servers == ("nats://a:4222", "nats://b:1", "tls://[::1]:4222")


def test_a_credentials_file_of_another_kind_is_named(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for text in ("", "SAACCOUNT", base64.b64encode(os.urandom(48)).decode()):
        file.write_text(text)
        with pytest.raises(SettingsError, match="NKEY seed"):
            JetStreamLog(NatsConfig(servers=("a",), credentials_file=file))
    with pytest.raises(SettingsError, match="cannot be read"):
        JetStreamLog(NatsConfig(servers=("a",), credentials_file=tmp_path / "none"))


@given(st.binary(max_size=5000), st.integers(100, 3000))
def test_a_packed_body_is_unpacked_as_it_was(body: bytes, part_bytes: int) -> None:
    headers, pieces = parts.pack(body, part_bytes)
    assert all(len(piece) <= part_bytes for piece in pieces)
    assert parts.unpack(headers, b"".join(pieces)) == body


@given(st.binary(max_size=200))
def test_what_was_not_packed_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError):
        parts.unpack({parts.ENCODING: "zstd"}, packed)


def test_parts_are_kept_up_to_a_size() -> None:
    cache = parts.PartCache(max_bytes=10)
    for sequence in range(1, 5):
        cache.add(sequence, b"1234")
    cache.add(4, b"1234")
    assert [cache.take(sequence) for sequence in range(1, 5)] == [None, None, b"1234", b"1234"]


def test_what_is_under_way_is_bounded_by_number_and_size() -> None:
    async def story() -> None:
        window, entered, done = InFlight(2, 100), [0], asyncio.Event()

        async def use(size: int) -> None:
            async with window.room(size):
                entered[0] += 1
                await done.wait()

        tasks = [asyncio.create_task(use(size)) for size in (500, 10, 95, 5)]
        seen = []
        for _ in range(3):
            for _ in range(20):
                await asyncio.sleep(0)
            seen.append(entered[0])
            done.set()
            done = asyncio.Event()
        await asyncio.gather(*tasks)
        assert seen == [1, 3, 4], "a body above the bound goes alone; then what fits together"

    asyncio.run(story())
