"""structlog without rich.

Where rich is installed, structlog imports it for tracebacks that are not used here: 5 MB in every process.
"""

import sys

_rich = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None makes the import fail
import structlog  # noqa: E402

if _rich is None:
    del sys.modules["rich"]

__all__ = ["structlog"]
