"""The wiring of `fleet-push`: settings in, source, devices, client, socket and loop out."""

import asyncio
import stat
from pathlib import Path

from ingero_agent.cgroups import cgroup_hash
from ingero_agent.cloud_provider import find_provider
from ingero_agent.devices import find_gpus
from ingero_agent.event_socket import EventSocket, default_socket_path
from ingero_agent.loop import PushLoop
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.sources import SignalSource
from ingero_agent.state_writer import StateWriter
from ingero_kit.addresses import without_user
from ingero_kit.clock import steady_clock
from ingero_kit.files import write_ports_file
from ingero_kit.logs import get
from ingero_kit.metrics_server import PageServer
from ingero_kit.otlp_client import ClientConfig
from ingero_kit.settings import SettingsError
from ingero_kit.signals import on_end
from ingero_kit.tls import ClientTls

log = get(__name__)


def make_source(config: AgentSettings, gpus: int) -> SignalSource:
    """Create the signal source that the settings select. Only its module is loaded."""
    if config.stub or config.stub_script:
        from ingero_agent.sources.scripted import FollowedScript, ScriptedSource

        if config.stub and config.stub_script:
            return FollowedScript(config.stub_script)
        return ScriptedSource.from_file(config.stub_script) if config.stub_script else ScriptedSource.constant()
    if config.signal_db_path:
        from ingero_agent.sources.trace_db import DatabaseSource

        return DatabaseSource(config.signal_db_path, config.signal_window, gpus, config.signal_pid)
    from ingero_agent.sources.procfs import ProcfsSource, WatchTarget

    return ProcfsSource(
        WatchTarget(config.watch_pid, config.watch_command, config.watch_cgroup, config.progress_file)
    )


def check_key(file: Path | None, loose: bool) -> None:
    """Refuse a private key that is not there, or that others may read."""
    if file is None or loose:
        return
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise SettingsError(f"{file}: the private key cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(f"{file}: the private key is readable by others: chmod 600 it")


def make_client(config: AgentSettings) -> FleetClient:
    """Create the Fleet client from the `fleet_*` settings."""
    check_key(config.fleet_tls_key, config.fleet_tls_allow_loose_key_perms)
    tls = ClientTls(
        insecure=config.fleet_insecure,
        ca_file=config.fleet_tls_ca,
        cert_file=config.fleet_tls_cert,
        key_file=config.fleet_tls_key,
    )
    target = ClientConfig(
        endpoint=config.fleet_endpoint,
        cluster=config.fleet_cluster_id,
        tls=tls,
        token_file=config.fleet_token_file,
        timeout=config.fleet_timeout,
        protocol=config.fleet_protocol,
        encoding=config.fleet_encoding,
        compression=config.fleet_compression,
    )
    return FleetClient(target, config.fleet_threshold_url)


async def fleet_push(config: AgentSettings) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP."""
    ended = asyncio.Event()
    on_end(ended.set)
    gpus = find_gpus()
    source, client = make_source(config, gpus().count), make_client(config)
    provider = await find_provider() if config.detect_provider else ""
    socket = None
    if config.remediate:
        socket = EventSocket(config.remediate_socket or default_socket_path(), config.remediate_gid)
        await socket.start()
    clock = steady_clock()
    health = PushLoop(config, source, gpus, client, socket, clock, provider=provider, cgroup_hash=cgroup_hash())
    if config.state_file:
        health.after_decision = StateWriter(config.state_file, config, health, client, clock).write
    ras, asking = None, None
    if config.ras_address:
        from ingero_agent.ras import RasPoller

        ras = RasPoller(config.ras_address, config.ras_interval, lambda: health.identity, client, clock)
        asking = asyncio.create_task(ras.run())
    servers, ports = list[PageServer](), dict[str, int]()
    endpoint = without_user(config.fleet_endpoint)
    log.info(
        "started", node=config.fleet_node_id, cluster=config.fleet_cluster_id, endpoint=endpoint,
        instance=health.identity.instance_id,
    )  # fmt: skip
    try:
        if config.metrics_listen or config.api_listen:
            from ingero_agent.collector import serve_pages
            from ingero_agent.node_api import NodeApi

            api = NodeApi(config, health, client)
            if config.metrics_listen:
                pages = api.pages(config.metrics_listen)
                servers.append(serve_pages(config, health, client, socket, clock, pages, ras))
                ports["metrics"] = servers[-1].port
            if config.api_listen:
                servers.append(api.serve())
                ports["api"] = servers[-1].port
        if ports:
            write_ports_file(config.ports_file, ports)
        await health.run(ended)
    finally:
        if asking:
            asking.cancel()
        for server in servers:
            server.stop()
        if socket:
            await socket.stop()
        await client.close()
        if config.state_file:
            config.state_file.unlink(missing_ok=True)
        log.info("stopped")
