"""httpx without its command line, which loads rich and pygments where they are installed: 5 MB."""

import sys
from typing import Any

_modules: dict[str, Any] = sys.modules
_modules.setdefault("httpx._main", None)  # an import of it fails, which httpx expects where they are not installed

import httpx  # noqa: E402

__all__ = ["httpx"]
