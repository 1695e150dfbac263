"""The loop of `ingero-operator slurm`: polls Fleet and makes a pass after the other until it is stopped."""

import asyncio
from dataclasses import replace
from typing import Final

from ingero_kit.clock import Clock, steady_clock
from ingero_kit.files import not_utf8
from ingero_kit.logs import get
from ingero_kit.settings import SettingsError
from ingero_kit.signals import on_end
from ingero_operator.audit_exporter import AuditExporter, OtlpTarget
from ingero_operator.cache import OwnerKey
from ingero_operator.fleet_answers import PollRequest
from ingero_operator.fleet_poller import FleetPoller
from ingero_operator.slurm.controller import SlurmController
from ingero_operator.slurm.nodes import UnreadableNodes
from ingero_operator.slurm.scontrol import ScontrolFailed
from ingero_operator.slurm.settings import SlurmSettings
from ingero_operator.slurm.state_store import DrainStateStore
from ingero_operator.taints import audit_events
from ingero_operator.taints.model import Step
from ingero_operator.tasks import Tasks

log = get(__name__)

KEY: Final[OwnerKey] = ("SlurmCluster", "", "slurm")
EFFECT: Final = "drain"
"""The effect in the record of a drain."""
FLUSH_SECONDS: Final = 5.0


def make_request(settings: SlurmSettings, drained: frozenset[str]) -> PollRequest:
    """How Fleet is polled now, with the token as the file has it. Raises `SettingsError`."""
    try:
        token = settings.token_file.read_text().strip() if settings.token_file else None
        authority = settings.ca_file.read_text() if settings.ca_file else None
    except (OSError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, OSError) else not_utf8(error)
        raise SettingsError(f"token_file or ca_file cannot be read: {reason}") from None
    return PollRequest(
        url=settings.fleet_url.rstrip("/"), cluster=settings.cluster_id, token=token or None, authority=authority,
        tainted=drained, otlp=settings.fleet_otlp_url.rstrip("/"), interval=settings.statistics_interval,
    )  # fmt: skip


class _Audit:
    """Sends a record of every step to Fleet, which forwards it to Echo."""

    def __init__(self, settings: SlurmSettings, clock: Clock, tasks: Tasks) -> None:
        self._settings, self._clock = settings, clock
        self._exporter = AuditExporter(clock, tasks=tasks)

    def __call__(self, step: Step, message: str) -> None:
        settings = self._settings
        if not settings.fleet_otlp_url:
            return
        request = make_request(settings, frozenset())
        shown = replace(step, taint=replace(step.taint, effect=EFFECT)) if step.taint else step
        now, until = self._clock(), step.taint.expires if step.taint else 0.0
        record = audit_events.log_request(
            shown, cluster=settings.cluster_id, owner=settings.cluster_id, message=message, now=now,
            identity=f"{step.verb}/{step.node}/{step.verdict}/{step.reason}/{until:.0f}",
        )  # fmt: skip
        self._exporter.export(OtlpTarget(url=request.otlp, token=request.token, authority=request.authority), record)

    async def flush(self) -> None:
        """Wait a little for records that are on their way."""
        until = self._clock() + FLUSH_SECONDS
        while len(self._exporter) and self._clock() < until:
            await asyncio.sleep(0.05)


async def control(settings: SlurmSettings) -> None:
    """Drain and undrain until SIGTERM, SIGINT or SIGHUP. Raises `SettingsError`, `OSError`."""
    ended, clock = asyncio.Event(), steady_clock()
    on_end(ended.set)
    store, tasks = DrainStateStore(settings.state_file, settings.cluster_id), Tasks(clock)
    try:
        audit = _Audit(settings, clock, tasks)
        controller = SlurmController(settings, store, clock, audit)
        poller = FleetPoller(clock, settings.poll, 10.0, lambda _: None, tasks=tasks)
        poller.watch(KEY, make_request(settings, controller.drained))
        polling = asyncio.create_task(tasks.keep("fleet polls", poller.run))
        log.info("started", cluster=settings.cluster_id, dry_run=not settings.drain)
        try:
            problem = ""
            while not ended.is_set():
                before, problem = problem, await _one_pass(settings, controller, poller)
                if problem != before:
                    log.warning("no_new_drains" if problem else "new_drains_possible", reason=problem)
                await _wait(ended, settings.poll)
        finally:
            polling.cancel()
            await audit.flush()
    finally:
        store.close()
    log.info("stopped")


async def _one_pass(settings: SlurmSettings, controller: SlurmController, poller: FleetPoller) -> str:
    """Make a pass; why Slurm, Fleet or the state did not allow drains, or an empty text."""
    try:
        poller.watch(KEY, make_request(settings, controller.drained))
        await controller.run_pass(poller.result(KEY))
    except (ScontrolFailed, UnreadableNodes, SettingsError, OSError) as error:
        return str(error)
    result = poller.result(KEY)
    return f"Fleet: {result.failure}" if result is not None and result.failure else ""


async def release(settings: SlurmSettings) -> int:
    """Undrain every node that was drained for this cluster; how many are left. Raises like `run_pass`."""
    store, clock = DrainStateStore(settings.state_file, settings.cluster_id), steady_clock()
    audit = _Audit(settings, clock, Tasks(clock))
    try:
        controller = SlurmController(settings, store, clock, audit)
        await controller.run_pass(None, release=True)
        await audit.flush()
        return len(controller.drained)
    finally:
        store.close()


async def _wait(ended: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return
