"""The wiring of the operator: settings in; API server, cache, queue, reconcilers and pages out."""

import asyncio
import contextlib
import gc
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import kopf
from aiohttp import web

from ingero_kit.addresses import parse_listen
from ingero_kit.clock import steady_clock
from ingero_kit.logs import get
from ingero_kit.settings import SettingsError
from ingero_operator import handlers
from ingero_operator.admission import NodePolicyProbe
from ingero_operator.api_client import ApiClient, ApiError, login
from ingero_operator.audit_exporter import AuditExporter
from ingero_operator.cache import OwnerKey
from ingero_operator.children import ChildApplier
from ingero_operator.context import ReconcileContext
from ingero_operator.echo_stores import PARTS as STORE_PARTS
from ingero_operator.echo_stores import EchoStores
from ingero_operator.errors import ReconcileError
from ingero_operator.events import EventRecorder
from ingero_operator.failures import Failures, explain
from ingero_operator.fleet_clusters import PARTS as FLEET_PARTS
from ingero_operator.fleet_clusters import FleetClusters
from ingero_operator.fleet_poller import FleetPoller
from ingero_operator.informer import Informer
from ingero_operator.kinds import ECHO_STORE, FLEET_CLUSTER, SERVICE_MONITOR
from ingero_operator.leader import LeaderElector, LeaseConfig
from ingero_operator.metrics import RuntimeStats, make_app
from ingero_operator.render.common import Platform
from ingero_operator.resync import Resync
from ingero_operator.settings import OperatorConfig
from ingero_operator.taints.controller import TaintController
from ingero_operator.tasks import RestartRequired, Tasks, message_of
from ingero_operator.volume_usage import VolumeUsagePoller
from ingero_operator.workqueue import WorkQueue

log = get(__name__)

NATIVE_SIDECARS_SINCE: Final = 29
STOP_SECONDS: Final = 0.5
STOP_TRIES: Final = 5
ENDINGS: Final = {
    "leading": "the Lease was lost, or could not be renewed in time; another replica may lead now",
    "watching": "kopf has stopped watching the cluster; what it logged before says why",
    "working": "the work queue has stopped",
}
"""What it means when a task without an end returns: the operator is blind, leads no longer, or does nothing."""


class Operator:
    """One replica."""

    def __init__(self, config: OperatorConfig, api: ApiClient, announce: Callable[[dict[str, int]], None]) -> None:
        self.config = config
        self.api = api
        self._announce = announce
        clock = steady_clock()
        self.queue: WorkQueue[OwnerKey] = WorkQueue()
        self.informer = Informer(self.queue.add)
        self.elector = LeaderElector(
            api,
            LeaseConfig(
                namespace=config.namespace,
                identity=config.identity,
                duration=config.lease_duration,
                renew_deadline=config.lease_duration * 2 / 3,
                retry=config.lease_duration * 2 / 15,
            ),
        )
        self.tasks = Tasks(clock)
        fleet_poller = FleetPoller(clock, config.poll, config.polls_per_second, self.queue.hint, tasks=self.tasks)
        failures = Failures(clock)
        self.context = ReconcileContext(
            api=api,
            informer=self.informer,
            applier=ChildApplier(api, self.informer.cache, failures),
            recorder=EventRecorder(api, config.identity),
            fleet_poller=fleet_poller,
            volume_usage=VolumeUsagePoller(clock, self.queue.hint, tasks=self.tasks),
            audit_exporter=AuditExporter(clock, tasks=self.tasks),
            config=config,
            clock=clock,
            leads=self.leads,
            admission=NodePolicyProbe(api, clock, config.node_guard),
            failures=failures,
        )
        self.taint_controller = TaintController(self.context)
        self.fleets = FleetClusters(self.context, self.taint_controller)
        self.stores = EchoStores(self.context)
        self.resync = Resync(api, self.informer, config.resync)
        self.lag = 0.0
        self._last_beat = time.monotonic()
        self._active = self._prepared = False

    def leads(self) -> bool:
        """Whether this replica may still act on nodes: it leads, and knew so a moment ago."""
        return not self.config.leader_election or self.elector.leads(self.config.lease_duration * 8 / 15)

    def healthy(self) -> bool:
        """Whether the event loop runs and the watches keep up."""
        return time.monotonic() - self._last_beat < 30 and self.resync.behind == 0

    async def run(self, ended: asyncio.Event) -> None:
        """Stand by, lead, work; returns on a clean stop and raises `Ended` when it must be restarted."""
        runner = await self._listen()
        heart = asyncio.create_task(self.tasks.keep("heartbeat", self._heartbeat))
        try:
            await _first(ended.wait(), self._prepare())  # what would end a leader must not hide in a standby
            if self.config.leader_election and not ended.is_set():
                await _first(ended.wait(), self.elector.acquire())
            if not ended.is_set():
                await self._lead(ended)
        finally:
            heart.cancel()
            if self.config.leader_election and self.elector.renewed:
                await self.elector.release()
            await runner.cleanup()

    async def _lead(self, ended: asyncio.Event) -> None:
        await self._look_around()
        kopf_stop, kopf_ready = asyncio.Event(), asyncio.Event()
        watching = kopf.operator(
            registry=handlers.registry(self.informer.on_event), settings=handlers.settings(),
            clusterwide=not self.config.watch_namespaces, namespaces=self.config.watch_namespaces,
            stop_flag=kopf_stop, ready_flag=kopf_ready,
            identity=self.config.identity,  # type: ignore[arg-type]  # kopf would ask for a user name: a container has none
        )  # fmt: skip
        tasks = {
            "watching": asyncio.create_task(watching),
            "asking": asyncio.create_task(self.tasks.keep("asking", self.context.fleet_poller.run)),
            "telling": asyncio.create_task(self.tasks.keep("telling", self.context.audit_exporter.run)),
            "sweeping": asyncio.create_task(self.tasks.keep("sweeping", self._sweep)),
            "stopping": asyncio.create_task(ended.wait()),
        }
        if self.config.leader_election:
            tasks["leading"] = asyncio.create_task(self.elector.keep())
        try:
            await _first(kopf_ready.wait(), *tasks.values())
            _on_signals(ended.set)  # kopf has taken them for itself
            tasks["seeding"] = asyncio.create_task(self.resync.list_all())
            await _first(*tasks.values())
            if tasks["seeding"].done():
                tasks.pop("seeding").result()
                tasks["working"] = asyncio.create_task(self.queue.run(self.reconcile, self.config.workers))
                self._active = True
                log.info("working", workers=self.config.workers)
                gc.collect()
                gc.freeze()
                await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            for name, task in tasks.items():
                if task.done() and name != "stopping":
                    raise RestartRequired(f"{name}: {ending(name, task)}")
        finally:
            self._active = False
            others = [task for name, task in tasks.items() if name != "watching"]
            await end(others)
            kopf_stop.set()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(tasks["watching"], STOP_SECONDS)

    async def _prepare(self) -> None:
        """Wait for the API server and see that it serves what a leader needs."""
        while not self._prepared:
            try:
                await self._look_around()
                self._prepared = True
            except ApiError as error:
                if not error.transient:
                    raise
                log.warning("api_server_unreachable", reason=error.message)
                await asyncio.sleep(self.config.lease_duration * 2 / 15)

    async def _look_around(self) -> None:
        """What the cluster offers; both of our own kinds must be there."""
        for kind in (FLEET_CLUSTER, ECHO_STORE):
            if not await self.api.serves(kind):
                raise RestartRequired(f"the API server does not serve {kind.plural}.{kind.group}: apply crds/ first")
        await self._platform()

    async def _platform(self) -> None:
        self.context.platform = Platform(
            version=self.config.version,
            image=self.config.image,
            registry=self.config.image_registry,
            digests=self.config.image_digests,
            allowed_images=self.config.allowed_images,
            pull_secrets=self.config.image_pull_secrets,
            operator_namespace=self.config.namespace,
            agent_priority_class=self.config.agent_priority_class,
            native_sidecars=await self.api.minor_version() >= NATIVE_SIDECARS_SINCE,
            service_monitors=await self.api.serves(SERVICE_MONITOR),
        )

    async def reconcile(self, key: OwnerKey) -> float | None:
        """One resource. What stops it as a whole is said in its conditions before it is tried again, unless it may
        pass by itself and is met for the first time."""
        room, parts = (self.fleets, FLEET_PARTS) if key[0] == "FleetCluster" else (self.stores, STORE_PARTS)
        try:
            return await room.reconcile(key)
        except Exception as error:
            resource, refusal = self.informer.cache.get(key), error if isinstance(error, ApiError) else None
            passing = refusal is not None and refusal.transient and not self.queue.failures.get(key)
            if resource is not None and not passing:
                what = f"{key[0]} {key[2]}"
                message_of = (
                    f"{what}: {type(error).__name__}: {error}; this is a fault of the operator, please report it"
                )
                reported = (
                    explain(what, refusal) if refusal else ReconcileError("OperatorFault", message_of, stalls=False)
                )
                with contextlib.suppress(ApiError):
                    await self.context.report_error(resource, parts, reported)
            raise

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.resync.pause())
            try:
                await self._platform()
                if not await self.resync.run():
                    raise RestartRequired("the watches miss what the API server has; starting anew")
            except ApiError as error:
                log.warning("sweep_failed", reason=error.message)

    async def _heartbeat(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.5)
            self._last_beat = time.monotonic()
            self.lag = max(self.lag * 0.95, self._last_beat - before - 0.5)

    async def _listen(self) -> web.AppRunner:
        host, port = parse_listen(self.config.listen)
        stats = RuntimeStats(
            context=self.context,
            taint_controller=self.taint_controller,
            queue=self.queue,
            fit=lambda: self._prepared,
            leading=lambda: self._active,
            blocked_reason=lambda: (
                "" if self._active or not self.config.leader_election else self.elector.blocked_reason()
            ),
            healthy=self.healthy,
            lag=lambda: self.lag,
            sweeps=lambda: self.resync.rounds,
            tasks=self.tasks,
        )
        runner = web.AppRunner(make_app(stats), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        self._announce({"http": int(runner.addresses[0][1])})
        return runner


def ending(name: str, task: asyncio.Task[Any]) -> str:
    """Why a task is over that should have gone on."""
    if task.cancelled():
        return "it was cancelled"
    failure = task.exception()
    return message_of(failure) if failure is not None else ENDINGS.get(name, "it has returned")


def _on_signals(action: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, action)


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, again where one let its cancellation pass unheard (libraries do, in the moment in which something
    else is over as well): a leader that went on renewing its Lease, and did nothing, would hold up the next one."""
    left = set(tasks)
    for _ in range(STOP_TRIES):
        for task in left:
            task.cancel()
        if left:
            over, left = await asyncio.wait(left, timeout=STOP_SECONDS / STOP_TRIES)
            for task in over:
                if not task.cancelled():
                    task.exception()  # was told by whoever waited for it


async def _first(*waiting: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Wait until the first is done; those that were given as coroutines are cancelled then."""
    own = [asyncio.create_task(item) for item in waiting if asyncio.iscoroutine(item)]
    given = [item for item in waiting if isinstance(item, asyncio.Task)]
    await asyncio.wait([*own, *given], return_when=asyncio.FIRST_COMPLETED)
    for task in own:
        if task.done() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]
        task.cancel()


async def serve(config: OperatorConfig, announce: Callable[[dict[str, int]], None]) -> None:
    """Run until SIGTERM or SIGINT. Raises `SettingsError` without a cluster, `Ended` when a restart is the cure."""
    connection = login()
    if connection is None:
        raise SettingsError("there is no service account and no kubeconfig: set KUBECONFIG, or run in a pod")
    for noisy in ("kopf", "aiohttp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    ended = asyncio.Event()
    _on_signals(ended.set)
    async with ApiClient(connection, config.watch_namespaces) as api:
        log.info("started", server=connection.server, identity=config.identity)
        await Operator(config, api, announce).run(ended)
        log.info("stopped")
