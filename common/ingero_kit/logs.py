"""Logging. Call `configure` once at start-up; all code, libraries included, then logs in one format."""

import logging
import sys
from typing import Final, Literal

from ingero_http.structured_logs import structlog

_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
"""Tracebacks have no local variables, because these contain tokens and data of clients."""

Format = Literal["auto", "json", "console"]


def configure(level: str = "info", style: Format = "auto") -> None:
    """Send logs of structlog and of the standard library to standard error.

    `auto` means readable lines on a terminal and one JSON object per line elsewhere.
    """
    people = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(allow={"k8s_ref"}),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)]
        if people
        else [_TRACEBACKS, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn", "httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module; events are constant strings, everything that varies is a field."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger
