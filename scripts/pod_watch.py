"""Prints whom a Fleet names and what it knows of each node, whenever that changes, one line of JSON each.

Runs in the container of Fleet. Argument: the cluster.
"""

import json
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

TOKEN, AUTHORITY = Path("/etc/ingero/token/token"), Path("/etc/ingero/tls/ca.crt")
PAUSE_SECONDS = 0.2


def named(cluster: str) -> list[str]:
    """The stragglers of a cluster. Raises `OSError`, also while there are no statistics."""
    scheme = "https" if AUTHORITY.exists() else "http"
    found = answer(f"{scheme}://localhost:8080/api/v1/stragglers?cluster_id={cluster}")
    return sorted(item["node_id"] for item in found["stragglers"])


def nodes(cluster: str) -> Any:
    """Why each node of a cluster is a straggler or not, without what changes all the time. Raises `OSError`."""
    api = "http://localhost:8081/api/v1"
    names = [one["node_id"] for one in answer(f"{api}/nodes?cluster_id={cluster}")["nodes"]]
    found = [answer(f"{api}/why?cluster_id={cluster}&node_id={name}") for name in names]
    return [{key: value for key, value in one.items() if key != "last_push_age_seconds"} for one in found]


def answer(url: str) -> Any:
    """What Fleet answers. Raises `OSError`."""
    headers = {"Authorization": f"Bearer {TOKEN.read_text().split()[0]}"} if TOKEN.exists() else {}
    context = ssl.create_default_context(cafile=str(AUTHORITY)) if AUTHORITY.exists() else None
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5, context=context) as reply:
        return json.load(reply)


def main() -> None:
    """Ask until killed, or until Fleet is gone."""
    last: dict[str, object] = {}
    while True:
        for what, ask in (("named", named), ("nodes", nodes)):
            try:
                found = {what: ask(sys.argv[1])}
            except OSError as error:
                found = {f"no {what}": str(error)}
            if found != last.get(what):
                print(json.dumps({"at": time.time(), **found}), flush=True)
                last[what] = found
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
