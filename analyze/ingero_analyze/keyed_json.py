"""Objects whose names are those of hosts and GPUs, as scripts collect results: a row for each. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

KEYED: Final = {
    "nodes": "node", "hosts": "host", "hostnames": "host", "servers": "server", "machines": "machine",
    "workers": "worker", "ranks": "rank", "gpus": "gpu", "devices": "device",
}  # fmt: skip
"""Names of objects whose own names are those of nodes, GPUs or ranks, and how the column of these is called."""

_GPU: Final = re.compile(r"(?:gpu|cuda|device|chip|accelerator)s?[ :_-]?\d{1,3}", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,3}")


def rows_by_host(whole: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of an object that holds, by host, an object by GPU of results; `None` for any other.

    A result is an object, a value, or a list of such, which are those of runs. Numbers alone name GPUs only where a
    result is no single value, because pandas writes columns so.
    """
    if not whole or not all(isinstance(each, dict) and each for each in whole.values()):
        return None
    names = {name for each in whole.values() for name in each}
    results = [result for each in whole.values() for result in each.values()]
    if not all(map(_GPU.fullmatch, names)) and not (
        all(map(_NUMBER.fullmatch, names)) and all(isinstance(result, dict | list) for result in results)
    ):
        return None
    return [
        {"node": node, "gpu": gpu, **row}
        for node, each in whole.items() for gpu, result in each.items() for row in _runs(result)
    ]  # fmt: skip


def _runs(result: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(result, list):
        yield result if isinstance(result, dict) else {"value": result}
        return
    for run, one in enumerate(result):
        yield {"run": run} | (one if isinstance(one, dict) else {"value": one})


def with_lists(found: dict[str, Any]) -> dict[str, Any]:
    """An object with objects by node, GPU or rank as lists of objects that have these names."""
    return {
        name: [{KEYED[name.lower()]: key, **each} for key, each in cell.items()] if _is_keyed(name, cell) else cell
        for name, cell in found.items()
    }


def _is_keyed(name: str, cell: Any) -> bool:
    return (
        name.lower() in KEYED
        and isinstance(cell, dict)
        and bool(cell)
        and all(isinstance(each, dict) for each in cell.values())
    )
