"""Names the functions at addresses of a process, in a short-lived process of its own, through BCC's symbol cache.

`python -m ingero_agent.trace.symbols PID` reads addresses from its input, JSON, and writes their names. Interpreters
that write `/tmp/perf-PID.map` (CPython 3.12 and newer with `-X perf`) have names of Python functions as well.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final

from ingero_agent.trace.helper import DIST_PACKAGES
from ingero_kit.logs import get

log = get(__name__)

NAMING_SECONDS: Final = 10.0
"""Longest time that naming may take."""

MAX_NAME: Final = 200
"""Most characters of a name."""

_MAX_ADDRESSES: Final = 50_000


def name_addresses(pid: int, addresses: Iterable[int]) -> dict[int, str]:
    """A name for each address: the function, or else the file and the place in it. Empty if naming fails."""
    wanted = sorted(set(addresses))[:_MAX_ADDRESSES]
    command = [sys.executable, "-W", "ignore", "-m", "ingero_agent.trace.symbols", str(pid)]
    try:
        done = subprocess.run(
            command, input=json.dumps(wanted).encode(), capture_output=True, timeout=NAMING_SECONDS, check=True
        )
        return dict(zip(wanted, json.loads(done.stdout), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("addresses_not_named", pid=pid, reason=str(error))
        return {}


def _name(symbol: bytes | None, offset: int, module: bytes | None) -> str:
    if symbol:
        return symbol.decode(errors="replace")[:MAX_NAME]
    if module:
        return f"{PurePath(module.decode(errors='replace')).name}+{offset:#x}"[-MAX_NAME:]
    return "unknown"


def main() -> None:
    """Name the addresses of the input."""
    sys.path.append(DIST_PACKAGES)
    from bcc import SymbolCache

    symbols = SymbolCache(int(sys.argv[1]))
    json.dump([_name(*symbols.resolve(address, True)) for address in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
