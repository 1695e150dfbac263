"""Objects whose names are those of hosts and GPUs, as scripts collect results: a row for each. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

KEYED: Final = {
    "nodes": "node", "hosts": "host", "hostnames": "host", "servers": "server", "machines": "machine",
    "workers": "worker", "ranks": "rank", "gpus": "gpu", "devices": "device",
}  # fmt: skip
"""Names of objects whose own names are those of nodes, GPUs or ranks, and how the column of these is called."""

FEWEST_NODES: Final = 3
"""Names that are alike, from which they are those of nodes."""

_DIGITS: Final = re.compile(r"\d+")
_COUNTED: Final = re.compile(
    r"|.*(?:gpu|cuda|device|chip|accelerator|rank|run|trial|step|iter|iteration|epoch|rep|repeat|attempt|test|round|t|x|v)",
    re.IGNORECASE,
)
"""What is counted and no node, without its number."""

_GPU: Final = re.compile(r"(?:gpu|cuda|device|chip|accelerator)s?[ :_-]?\d{1,3}", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,3}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*|\d{10}(?:\d{3}){0,3}(?:\.\d+)?")
"""Times of ISO 8601, and units since 1970."""

OF_MEMBER: Final = frozenset((*KEYED.values(), "hostname", "instance", "pod"))
"""Names of cells that say whose values an object holds."""


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


def rows_by_name(whole: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of an object that holds results by node, alone or beside cells that all share; `None` for any other.

    Names of nodes are alike but for their numbers, which tells them from those of columns.
    """
    if _are_nodes(whole):
        return [{"node": node, **row} for node, result in whole.items() for row in _cells(result)]
    inner = [name for name, cell in whole.items() if isinstance(cell, dict) and _are_nodes(cell)]
    if len(inner) != 1:
        return None
    around = {name: cell for name, cell in whole.items() if not isinstance(cell, dict | list)}
    return [around | row for row in rows_by_name(whole[inner[0]]) or ()]


def rows_by_time(whole: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of an object whose names are times, and which holds an object for each of them: one of cells, or of
    results by node. `None` for any other."""
    if not whole or not all(map(is_time, whole)) or not all(isinstance(each, dict) for each in whole.values()):
        return None
    return [
        {"time": time, **row}
        for time, each in whole.items()
        for row in ((rows_by_name(each) if _are_nodes(each) else None) or [each])
    ]


def is_time(name: str) -> bool:
    """Whether a name is a date with a time of day, or a number since 1970."""
    return bool(_TIME.fullmatch(name))


def _are_nodes(found: dict[str, Any]) -> bool:
    alike = {_DIGITS.sub("", name) for name in found}
    kinds = {type(each) if isinstance(each, dict | list) else float for each in found.values()}
    return (
        len(found) >= FEWEST_NODES
        and len(alike) == 1
        and all(map(_DIGITS.search, found))
        and not _COUNTED.fullmatch(min(alike).strip(" _-"))
        and len(kinds) == 1
        and all(map(_is_result, found.values()))
    )


def _is_result(found: Any) -> bool:
    """Whether it is a number, a list of such, or an object that is not empty."""
    if isinstance(found, list):
        return bool(found) and all(isinstance(each, int | float) for each in found)
    return bool(found) if isinstance(found, dict) else isinstance(found, int | float)


def _cells(result: Any) -> Iterator[dict[str, Any]]:
    yield result if isinstance(result, dict) else {"value": result}


def _runs(result: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(result, list):
        yield result if isinstance(result, dict) else {"value": result}
        return
    for run, one in enumerate(result):
        yield {"run": run} | (one if isinstance(one, dict) else {"value": one})


def with_lists(found: dict[str, Any]) -> dict[str, Any]:
    """An object with objects by node, GPU or rank as lists of objects that have these names. Where no cell says whose
    values it holds, names that are alike but for their numbers are those of nodes."""
    unnamed = OF_MEMBER.isdisjoint(map(str.lower, found))
    return {
        name: [{KEYED.get(name.lower(), "node"): key, **each} for key, each in cell.items()]
        if _is_keyed(name, cell, unnamed)
        else cell
        for name, cell in found.items()
    }


def _is_keyed(name: str, cell: Any, unnamed: bool) -> bool:
    return (
        isinstance(cell, dict)
        and bool(cell)
        and all(isinstance(each, dict) for each in cell.values())
        and (name.lower() in KEYED or (unnamed and _are_nodes(cell)))
    )
