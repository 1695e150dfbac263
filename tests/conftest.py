"""What holds for every test: no property is timed on the wall clock, and a process that dies fails one test."""

import gc
import os
from collections import Counter
from collections.abc import Generator

import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer

from ingero_testing.scheduling import SERIAL, SuiteScheduling

settings.register_profile("ingero", deadline=None)
settings.load_profile("ingero")

LONGEST_IN_NAME = 200
"""Characters of a parameter that are shown in the name of a test."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SuiteScheduling | None:
    return SuiteScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Processes for `-n auto`: two more than processors, as tests of services mostly wait."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return 2 + len(os.sched_getaffinity(0))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Short names for long texts: a test's name is in the environment of every process that it starts."""
    return f"{argname}-of-{len(val)}" if isinstance(val, str | bytes) and len(val) > LONGEST_IN_NAME else None


def pytest_collection() -> None:
    """No garbage collection while tests are imported, which all stay: it takes a quarter of that time."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Serial tests are a separate group, and the last ones where there is only one process.

    Tests that load programs into the kernel are serial too: they count calls while a budget of processor time holds.
    Those that only load or compile them say `counts=False`.
    """
    for item in items:
        ebpf = item.get_closest_marker("ebpf")
        if ebpf and ebpf.kwargs.get("counts", True):
            item.add_marker(SERIAL)
        if item.get_closest_marker(SERIAL):
            item.add_marker(pytest.mark.xdist_group(SERIAL))
    items.sort(key=lambda item: item.get_closest_marker(SERIAL) is not None)


def pytest_collection_finish() -> None:
    """Exclude the tests and all that they import from garbage collection: it takes a tenth of the run."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def umask() -> Generator[None]:
    """A command that runs inside of a test, and protects what it writes, does so for that test only."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def logging_settings() -> Generator[None]:
    """A command that runs inside of a test, and chooses what is logged, does so for that test only."""
    configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """The last line says how many tests were skipped, and why: what they need, and the command that brings it."""
    gc.unfreeze()
    yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(session.config, "workerinput"):
        return
    skipped = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminal.stats.get("skipped", []))
    reasons = " | ".join(f"{count} × {reason}" for reason, count in skipped.most_common())
    terminal.write_line(f"{skipped.total()} tests skipped{': ' if reasons else ''}{reasons}")
