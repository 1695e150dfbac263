"""The wiring of `ingero-agent trace`: settings in; tracer, database, sockets, export, page and service out."""

import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from ingero_agent.event_socket import EventSocket, default_socket_path
from ingero_agent.trace.annotations import AnnotationSocket
from ingero_agent.trace.calibrate import nanoseconds
from ingero_agent.trace.capabilities import evaluate
from ingero_agent.trace.check import machine_facts
from ingero_agent.trace.collector import serve_pages
from ingero_agent.trace.export import TraceExporter
from ingero_agent.trace.loader import CannotTrace
from ingero_agent.trace.problems import TerminationLog, find_problems
from ingero_agent.trace.recorder import open_recorder
from ingero_agent.trace.selection import Selection
from ingero_agent.trace.service import TraceService
from ingero_agent.trace.settings import TraceSettings
from ingero_agent.trace.sockets import Sockets
from ingero_agent.trace.store import Retention, TraceStore
from ingero_agent.trace.tracer import EbpfTracer
from ingero_agent.trace.tracer_base import NOOP_MODE, Tracer
from ingero_kit.logs import get
from ingero_kit.otlp_client import ClientConfig
from ingero_kit.signals import ENDING
from ingero_kit.tls import ClientTls

log = get(__name__)

EVENT_SOCKET, ANNOTATE_SOCKET = "trace.sock", "annotate.sock"
"""Names of the sockets where no path is set. They differ from that of `fleet-push`, so that both can listen."""

EXPORT_SECONDS: Final = 10.0
"""Timeout of one export."""

RETRY_SECONDS: Final = 60.0
"""Time after which loading the kernel programs is tried again."""

Wait = Callable[[float], bool]
"""Waits the given seconds and returns whether tracing is to end."""


def run(settings: TraceSettings) -> None:
    """Trace until a signal ends it or `duration` is over. Raises `CannotTrace`, `OSError`, `ImportError`."""
    stopped = threading.Event()
    for number in ENDING:
        signal.signal(number, lambda *_: stopped.set())
    end = None if settings.duration is None else time.monotonic() + settings.duration

    def wait(seconds: float) -> bool:
        left = seconds if end is None else min(seconds, max(0.0, end - time.monotonic()))
        return stopped.wait(left) or (end is not None and time.monotonic() >= end)

    while not _run_tracer(settings, find_tracer(settings), wait):
        pass


def find_tracer(settings: TraceSettings) -> Tracer:
    """Load the eBPF tracer. If that fails and the settings ask for more than the database, return a `Tracer`
    that counts nothing.

    Raises `CannotTrace` if they ask for the database only.
    """
    try:
        return EbpfTracer(settings.attach, settings.returns, _selection(settings), settings.programs)
    except CannotTrace as error:
        if not (settings.prometheus or settings.otlp or settings.remediate or settings.annotate):
            facts = replace(machine_facts(), load_error=str(error))
            TerminationLog(settings.termination_log).write(find_problems(evaluate(facts)))
            raise
        log.error("cannot_trace", reason=str(error), again_in_seconds=RETRY_SECONDS)
        return Tracer(str(error))


def open_sockets(settings: TraceSettings) -> Sockets | None:
    """The sockets that the settings ask for. Raises `OSError`."""
    path = settings.remediate_socket or default_socket_path(EVENT_SOCKET)
    events = EventSocket(path, settings.remediate_gid) if settings.remediate else None
    annotations = (
        AnnotationSocket(annotate_path(settings), settings.annotate_socket_gid) if settings.annotate else None
    )
    return Sockets(events, annotations) if events or annotations else None


def annotate_path(settings: TraceSettings) -> Path:
    """Where programs send annotations."""
    return settings.annotate_socket or default_socket_path(ANNOTATE_SOCKET)


def _selection(settings: TraceSettings) -> Selection:
    only, exclude = settings.only_command, settings.exclude_command
    return Selection(re.compile(only) if only else None, re.compile(exclude) if exclude else None)


def _exporter(settings: TraceSettings) -> TraceExporter | None:
    if not settings.otlp:
        return None
    target = ClientConfig(
        endpoint=settings.otlp, cluster=settings.cluster,
        tls=ClientTls(insecure=settings.otlp_insecure, ca_file=settings.otlp_tls_ca),
        token_file=settings.otlp_token_file, timeout=EXPORT_SECONDS,
    )  # fmt: skip
    return TraceExporter(target, settings.node, settings.job_id)


def _run_tracer(settings: TraceSettings, tracer: Tracer, wait: Wait) -> bool:
    """Run with this tracer. Returns whether tracing is over; otherwise loading a tracer is tried again."""
    with ExitStack() as stack:
        stack.callback(tracer.close)
        store = TraceStore(settings.db, Retention(seconds=settings.keep, max_bytes=settings.max_db))
        stack.callback(store.close)
        sockets = open_sockets(settings)
        if sockets:
            stack.callback(sockets.close)
        recorder = open_recorder(settings.record) if settings.record else None
        service = TraceService(settings, tracer, store, recorder, sockets, _exporter(settings))
        if settings.prometheus:
            stack.callback(serve_pages(settings.prometheus, service.stats).stop)
        log.info("started", database=str(settings.db), mode=tracer.mode, **nanoseconds(tracer.costs))
        tracer.scan()
        service.report_problems()
        begun, over = time.monotonic(), False
        while not over and (tracer.mode != NOOP_MODE or time.monotonic() - begun < RETRY_SECONDS):
            over = wait(service.wait_seconds(time.monotonic()))
            service.tick(time.monotonic())
        service.close()
        if tracer.lost():
            log.warning("lost", reasons=tracer.lost())
    return over
