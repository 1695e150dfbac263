"""What `fleet-push` and `trace`, which share one settings file, need to know of each other."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator

CONFIG_VARIABLE: Final = "INGERO_AGENT_CONFIG"
"""Names the file."""

TRACE_SECTION: Final = "trace"
"""The part of the file that is about tracing."""

TRACE_PREFIX: Final = "INGERO_AGENT_TRACE_"
"""Begins the names of the variables that are about tracing."""


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text}: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
