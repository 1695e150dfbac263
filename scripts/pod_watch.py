"""Prints whom a Fleet names whenever that changes, one line of JSON each. Runs in the container of Fleet.

Argument: the cluster.
"""

import json
import ssl
import sys
import time
import urllib.request
from pathlib import Path

TOKEN, AUTHORITY = Path("/etc/ingero/token/token"), Path("/etc/ingero/tls/ca.crt")
PAUSE_SECONDS = 0.2


def named(cluster: str) -> list[str]:
    """The stragglers of a cluster. Raises `OSError`, also while there are no statistics."""
    secure = AUTHORITY.exists()
    headers = {"Authorization": f"Bearer {TOKEN.read_text().split()[0]}"} if TOKEN.exists() else {}
    url = f"{'https' if secure else 'http'}://localhost:8080/api/v1/stragglers?cluster_id={cluster}"
    context = ssl.create_default_context(cafile=str(AUTHORITY)) if secure else None
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5, context=context) as answer:
        return sorted(item["node_id"] for item in json.load(answer)["stragglers"])


def main() -> None:
    """Ask until killed, or until Fleet is gone."""
    last: dict[str, object] = {}
    found: dict[str, object]
    while True:
        try:
            found = {"named": named(sys.argv[1])}
        except OSError as error:
            found = {"problem": str(error)}
        if found != last:
            print(json.dumps({"at": time.time(), **found}), flush=True)
            last = found
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
