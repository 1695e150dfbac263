"""What holds for every test: no property is timed on the wall clock, and a process that dies fails one test."""

import pytest
from hypothesis import settings
from xdist.remote import Producer

from ingero_testing.scheduling import Surviving

settings.register_profile("ingero", deadline=None)
settings.load_profile("ingero")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Surviving | None:
    return Surviving(config, log) if config.getvalue("dist") == "loadgroup" else None
