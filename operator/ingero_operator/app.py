"""The wiring of the operator: from the settings to API client, cache, queue, reconcilers and metrics."""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import kopf
from aiohttp import web

from ingero_kit.addresses import parse_listen
from ingero_kit.clock import Clock, steady_clock
from ingero_kit.logs import get
from ingero_kit.process_memory import trim_heap
from ingero_kit.settings import SettingsError
from ingero_kit.signals import on_end
from ingero_operator import handlers
from ingero_operator.admission import NodePolicyProbe
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.audit_exporter import AuditExporter
from ingero_operator.cache import OwnerKey
from ingero_operator.children import ChildApplier
from ingero_operator.context import HealthEventSink, ReconcileContext
from ingero_operator.credentials import login
from ingero_operator.echo_stores import CONDITIONS as STORE_CONDITIONS
from ingero_operator.echo_stores import EchoStores
from ingero_operator.errors import ReconcileError
from ingero_operator.events import EventRecorder
from ingero_operator.failures import Failures, explain
from ingero_operator.fleet_clusters import FleetClusters
from ingero_operator.fleet_poller import FleetPoller
from ingero_operator.fleet_status import CONDITIONS as FLEET_CONDITIONS
from ingero_operator.informer import RESOURCES, Informer
from ingero_operator.kinds import ECHO_STORE, FLEET_CLUSTER, HTTP_ROUTE, SERVICE_MONITOR
from ingero_operator.leader import LeaderElector
from ingero_operator.metrics import make_app
from ingero_operator.node_watch import NodeWatch
from ingero_operator.pod_reader import PodReader
from ingero_operator.referenced import ReferencedObjects
from ingero_operator.render.common import Platform
from ingero_operator.resync import Resync
from ingero_operator.settings import OperatorConfig
from ingero_operator.status_writer import StatusWriter
from ingero_operator.taints.controller import TaintController
from ingero_operator.tasks import RestartRequired, Tasks, message_of
from ingero_operator.volume_usage import VolumeUsagePoller
from ingero_operator.workqueue import WorkQueue

log = get(__name__)

NATIVE_SIDECARS_SINCE: Final = 29
STOP_SECONDS: Final = 0.5
STOP_TRIES: Final = 5
ENDINGS: Final = {
    "leader election": "the Lease was lost, or could not be renewed in time; another replica may lead now",
    "kopf": "kopf has stopped watching the cluster; what it logged before says why",
    "work queue": "the work queue has stopped",
}
"""What it means when an endless task returns: the operator no longer watches, leads or works."""


class Operator:
    """One replica of the operator."""

    def __init__(self, config: OperatorConfig, api: ApiClient, announce: Callable[[dict[str, int]], None]) -> None:
        self.config = config
        self.api = api
        self._announce = announce
        clock = steady_clock()
        self.queue: WorkQueue[OwnerKey] = WorkQueue()
        self.informer = Informer(self.queue.add)
        self.elector = LeaderElector(api, config.namespace, config.identity, config.lease_duration)
        self.tasks: Tasks = Tasks(clock)
        cache, failures, recorder = self.informer.cache, Failures(clock), EventRecorder(api, config.identity)
        self.context: ReconcileContext = ReconcileContext(
            config=config,
            clock=clock,
            leads=self.leads,
            api=api,
            informer=self.informer,
            referenced=ReferencedObjects(api, clock, config.secret_poll, lambda: cache.count(*RESOURCES)),
            fleet_poller=FleetPoller(clock, config.poll, config.polls_per_second, self.queue.hint, tasks=self.tasks),
            volume_usage=VolumeUsagePoller(clock, self.queue.hint, tasks=self.tasks),
            applier=ChildApplier(api, cache, failures),
            failures=failures,
            status=StatusWriter(api, cache, recorder, clock),
            recorder=recorder,
            pods=PodReader(api, clock, failures),
            audit_exporter=AuditExporter(clock, tasks=self.tasks),
            health_events=_health_events(config, clock, self.tasks),
            admission=NodePolicyProbe(api, clock, needed=config.node_policy),
            status_admission=NodePolicyProbe(api, clock, "status", needed=config.node_policy),
        )
        self.taint_controller: TaintController = TaintController(self.context)
        self.fleets = FleetClusters(self.context, self.taint_controller)
        self.stores = EchoStores(self.context)
        self.node_watch = NodeWatch(api, self.informer)
        self.resync: Resync = Resync(api, self.informer, config.resync)
        self.lag: float = 0.0
        self._last_beat = time.monotonic()
        self.active: bool = False
        self.prepared: bool = False

    def leads(self) -> bool:
        """Whether this replica may still write to nodes: it renewed its Lease recently."""
        return not self.config.leader_election or self.elector.leads(self.config.lease_duration * 8 / 15)

    def healthy(self) -> bool:
        """Whether the event loop runs. Dead watches end the process by themselves."""
        return time.monotonic() - self._last_beat < 30

    def blocked_reason(self) -> str:
        """Why this replica neither leads nor could take over; empty when it does or could."""
        return "" if self.active or not self.config.leader_election else self.elector.blocked_reason()

    async def run(self, ended: asyncio.Event) -> None:
        """Stand by, then lead and work; returns on a clean stop and raises `RestartRequired` otherwise."""
        runner = await self._listen()
        heart = asyncio.create_task(self.tasks.keep("heartbeat", self._heartbeat))
        try:
            await _first(ended.wait(), self._prepare())  # a standby also fails on what would stop a leader
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
        await self._check_cluster()
        self.api.namespaces = await self._namespaces()
        kopf_stop, kopf_ready = asyncio.Event(), asyncio.Event()
        watching = kopf.operator(
            registry=handlers.registry(self.informer), standalone=True,
            clusterwide=not self.api.namespaces, namespaces=self.api.namespaces,
            stop_flag=kopf_stop, ready_flag=kopf_ready,
            identity=self.config.identity,  # type: ignore[arg-type]  # kopf would ask for a user name: a container has none
        )  # fmt: skip
        endless = {
            "node watch": self.node_watch.run, "fleet poller": self.context.fleet_poller.run, "resync": self._resync
        }  # fmt: skip
        work: dict[str, Coroutine[Any, Any, Any]] = {
            **{name: self.tasks.keep(name, run) for name, run in endless.items()},
            "kopf": watching,
            "work queue": self._work(kopf_ready, ended),
            "stop signal": ended.wait(),
        }
        if self.config.leader_election:
            work["leader election"] = self.elector.keep()
        tasks = {name: asyncio.create_task(item) for name, item in work.items()}
        try:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            for name, task in tasks.items():
                if task.done() and name != "stop signal":
                    raise RestartRequired(f"{name}: {ending(name, task)}")
        finally:
            self.active = False
            await end(task for name, task in tasks.items() if name != "kopf")
            kopf_stop.set()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(tasks["kopf"], STOP_SECONDS)

    async def _work(self, ready: asyncio.Event, ended: asyncio.Event) -> None:
        """Fill the cache, then reconcile."""
        await ready.wait()
        on_end(ended.set)  # kopf has replaced the signal handlers
        await self.resync.list_all()
        await self.node_watch.listed.wait()
        self.active = True
        log.info("working", workers=self.config.workers)
        gc.collect()
        gc.freeze()
        trim_heap()
        await self.queue.run(self.reconcile, self.config.workers)

    async def _prepare(self) -> None:
        """Wait for the API server and check that it serves what a leader needs."""
        while not self.prepared:
            try:
                await self._check_cluster()
                self.prepared = True
            except ApiError as error:
                if not error.transient:
                    raise
                log.warning("api_server_unreachable", reason=error.message)
                await asyncio.sleep(self.config.lease_duration * 2 / 15)

    async def _check_cluster(self) -> None:
        """Read what the cluster offers; both kinds of the operator must exist."""
        for kind in (FLEET_CLUSTER, ECHO_STORE):
            if not await self.api.serves(kind):
                raise RestartRequired(f"the API server does not serve {kind.plural}.{kind.group}: apply crds/ first")
        await self._platform()

    async def _namespaces(self) -> tuple[str, ...]:
        """The watched namespaces that the account has rights in. One that was deleted, with its Role, or has no Role
        yet, stops no work in the others."""
        refused = {name: await self.api.may_list(FLEET_CLUSTER, name) for name in self.config.watch_namespaces}
        for name, reason in refused.items():
            if reason:
                log.warning("namespace_not_watched", namespace=name, reason=reason)
        if refused and all(refused.values()):
            raise RestartRequired(f"no namespace of watch_namespaces can be watched: {next(iter(refused.values()))}")
        return tuple(name for name, reason in refused.items() if not reason)

    async def _platform(self) -> None:
        self.context.platform = Platform(
            config=self.config,
            native_sidecars=await self.api.minor_version() >= NATIVE_SIDECARS_SINCE,
            service_monitors=await self.api.serves(SERVICE_MONITOR),
            http_routes=await self.api.serves(HTTP_ROUTE),
        )

    async def reconcile(self, key: OwnerKey) -> float | None:
        """Reconcile one resource. An error that ends the reconcile appears in its conditions, unless it is transient
        and occurs for the first time."""
        try:
            return await (self.fleets if key[0] == "FleetCluster" else self.stores).reconcile(key)
        except Exception as error:
            if not (isinstance(error, ApiError) and error.transient and not self.queue.failures.get(key)):
                await self._report_error(key, error)
            raise

    async def _report_error(self, key: OwnerKey, error: Exception) -> None:
        resource, what = self.informer.cache.get(key), f"{key[0]} {key[2]}"
        if resource is None:
            return
        if isinstance(error, ApiError):
            reported = explain(what, error)
        else:
            message = f"{what}: {type(error).__name__}: {error}; this is a fault of the operator, please report it"
            reported = ReconcileError("OperatorFault", message, stalls=False)
        conditions = FLEET_CONDITIONS if key[0] == "FleetCluster" else STORE_CONDITIONS
        with contextlib.suppress(ApiError):
            await self.context.status.report_error(resource, conditions, reported)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self.resync.pause())
            try:
                await self._platform()
                if await self._namespaces() != self.api.namespaces:
                    raise RestartRequired("the namespaces that can be watched have changed; starting anew")
                if not await self.resync.run(time.monotonic()):
                    raise RestartRequired("the watches miss what the API server has; starting anew")
                trim_heap()
            except ApiError as error:
                log.warning("resync_failed", reason=error.message)

    async def _heartbeat(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.5)
            self._last_beat = time.monotonic()
            self.lag = max(self.lag * 0.95, self._last_beat - before - 0.5)

    async def _listen(self) -> web.AppRunner:
        host, port = parse_listen(self.config.listen)
        runner = web.AppRunner(make_app(self), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        self._announce({"http": int(runner.addresses[0][1])})
        return runner


def _health_events(config: OperatorConfig, clock: Clock, tasks: Tasks) -> HealthEventSink | None:
    """The exporter to NVSentinel, if it is configured."""
    if not config.nvsentinel:
        return None
    from ingero_operator.nvsentinel import HealthEventExporter  # gRPC takes memory that others need not pay for

    return HealthEventExporter(clock, config.nvsentinel, config.nvsentinel_ca, config.nvsentinel_token, tasks)


def ending(name: str, task: asyncio.Task[Any]) -> str:
    """Why an endless task has ended."""
    if task.cancelled():
        return "it was cancelled"
    failure = task.exception()
    return message_of(failure) if failure is not None else ENDINGS.get(name, "it has returned")


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and again those that swallowed the cancellation.

    Libraries swallow it when something else ends at the same moment. A leader that kept renewing its Lease and did
    nothing would block the next one."""
    left = set(tasks)
    for _ in range(STOP_TRIES):
        for task in left:
            task.cancel()
        if left:
            over, left = await asyncio.wait(left, timeout=STOP_SECONDS / STOP_TRIES)
            for task in over:
                if not task.cancelled():
                    task.exception()  # the awaiting task has logged it


async def _first(*waiting: Coroutine[Any, Any, Any]) -> None:
    """Wait until the first is done, and cancel the others."""
    tasks = [asyncio.create_task(item) for item in waiting]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]
        task.cancel()


async def serve(config: OperatorConfig, announce: Callable[[dict[str, int]], None]) -> None:
    """Run until SIGTERM or SIGINT. Raises `SettingsError` without a cluster, `RestartRequired` after a failure."""
    connection = await asyncio.to_thread(login)
    if connection is None:
        raise SettingsError("there is no service account and no kubeconfig: set KUBECONFIG, or run in a pod")
    for noisy in ("kopf", "aiohttp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    ended = asyncio.Event()
    on_end(ended.set)
    async with ApiClient(connection, config.watch_namespaces, renew=login) as api:
        log.info("started", server=connection.server, identity=config.identity)
        await Operator(config, api, announce).run(ended)
        log.info("stopped")
