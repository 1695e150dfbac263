"""Statuses as NCCL RAS writes them, and a small server that speaks its protocol."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def rank(place: int, process: int, count: int, **more: int) -> dict[str, Any]:
    flags = {"finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": place, "host": f"10.0.0.{process}", "pid": 100 + process, "cuda_dev": 0, "nvml_dev": 0,
        "status": {"init_state": 0, "async_error": 0, **flags},
        "collective_counts": {"Broadcast": 0, "AllReduce": count, **more},
    }  # fmt: skip


def gone(place: int, process: int, *, dead: bool) -> dict[str, Any]:
    entry = rank(place, process, 0)
    del entry["collective_counts"]
    return entry | {"status": {"unresponsive": True, "considered_dead": dead}}


def communicator(
    name: str, ranks: list[dict[str, Any]], missing: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    away = missing or []
    return {
        "hash": name, "secondary_hash": "0x1:0x2", "size": len(ranks) + len(away), "ranks_count": len(ranks),
        "missing_ranks_count": len(away), "ranks": ranks, "missing_ranks": away,
    }  # fmt: skip


def world(counts: list[int]) -> dict[str, Any]:
    return communicator("0xa", [rank(place, place, count) for place, count in enumerate(counts)])


def status(*comms: Any, second: int = 0) -> str:
    return json.dumps({
        "nccl_version": "2.28.7", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": f"2026-01-31 12:00:{second:02}", "communicators_count": len(comms), "communicators": comms,
        "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    }, indent=2)  # fmt: skip


class RasService:
    """Answers as NCCL's RAS thread does: lines, and the connection closes after STATUS."""

    def __init__(self, *statuses: str, replaced: dict[str, bytes | None] | None = None) -> None:
        self.commands: list[str] = []
        self._statuses, self._replaced = list(statuses), replaced or {}

    def answer(self, command: str) -> tuple[bytes, bool]:
        """The bytes to send and whether the connection goes on."""
        self.commands.append(command)
        word = command.rstrip("0123456789").strip()
        if word in self._replaced:
            sent = self._replaced[word]
            return sent or b"", sent is not None
        if word == "CLIENT PROTOCOL":
            return b"SERVER PROTOCOL 2\n", True
        if word in ("TIMEOUT", "SET FORMAT json"):
            return b"OK\n", True
        if word == "STATUS" and self._statuses:
            return self._statuses.pop(0).encode(), False
        return f"ERROR: Unknown command {command}\n".encode(), word != "STATUS"


@contextmanager
def serving(service: RasService) -> Iterator[str]:
    """The service on a free port; gives its address."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):
                for line in self.rfile:
                    sent, more = service.answer(line.decode().rstrip("\n"))
                    self.wfile.write(sent)
                    if not more:
                        return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
