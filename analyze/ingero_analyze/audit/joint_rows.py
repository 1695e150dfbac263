"""Rows about several nodes or GPUs, such as a pair that exchanged data or the nodes of a job, as a row each. Pure."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ingero_analyze.audit.columns import ROLES, words_of
from ingero_analyze.json_tables import Row

PAIRS: Final = (
    ("node a", "node b"), ("node 1", "node 2"), ("node1", "node2"), ("host a", "host b"), ("host 1", "host 2"),
    ("host1", "host2"), ("hosta", "hostb"), ("nodea", "nodeb"), ("src", "dst"), ("source", "destination"),
    ("source", "target"), ("src node", "dst node"), ("src host", "dst host"), ("source node", "destination node"),
    ("source node", "target node"), ("source host", "destination host"), ("sender", "receiver"), ("from", "to"),
    ("server", "client"), ("client", "server"),
)  # fmt: skip
GPU_PAIRS: Final = tuple(
    (first.format(of), second.format(of))
    for first, second in (("{} a", "{} b"), ("{}a", "{}b"), ("src {}", "dst {}"), ("source {}", "destination {}"),
                          ("source {}", "target {}"), ("from {}", "to {}"), ("{} from", "{} to"))
    for of in ("gpu", "gpu id", "gpu index", "gpu uuid", "device", "device id", "dev", "gcd")
)  # fmt: skip
LISTS: Final = ("nodes", "node list", "nodelist", "hosts", "host list", "hostlist", "node names", "hostnames")
"""Columns of the nodes that a row is about."""

MOST_NODES: Final = 20_000
"""Most nodes of one row; a longer list stays as it is."""

_PART: Final = re.compile(r"[^\s,;+\[\]]*(?:\[[^\]]*\][^\s,;+\[\]]*)+|[^\s,;+\[\]]+")
_RANGE: Final = re.compile(r"(\d+)-(\d+)")


def of_single_members(
    columns: Sequence[str], rows: Iterator[tuple[int, Row]], chosen: Collection[str]
) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """The table with one row a node or GPU, all with the value of their row, where columns name several of a row.

    Those of one row are of one run: a pair is its own, a list that of its job if a column tells it. `chosen`: columns
    that the user named.
    """
    names = {words_of(column): column for column in columns}
    if set(names) & {*ROLES["gpu"]}:
        return list(columns), rows
    nodes = _pair(names, PAIRS) or [names[name] for name in LISTS if name in names][:1]
    known = {column for name, column in names.items() if name in ROLES["node"]} - set(nodes)
    nodes = [] if known else nodes
    gpus = _pair(names, GPU_PAIRS)
    nodes = nodes if not gpus or len(nodes) == len(gpus) else []
    several = nodes + gpus
    if not several or set(several) & set(chosen):
        return list(columns), rows
    run = next((names[name] for name in ROLES["run"] if name in names), None)
    rest = [column for column in columns if column not in several and column != run]
    single = [*(["node"] if nodes else []), *(["gpu"] if gpus else [])]
    return [*rest, *single, "run"], _rows(rows, rest, (nodes, gpus), None if len(several) > 1 else run)


def _pair(names: Mapping[str, str], known: Iterable[tuple[str, str]]) -> list[str]:
    return next(([names[a], names[b]] for a, b in known if a in names and b in names), [])


def _rows(
    rows: Iterator[tuple[int, Row]],
    rest: Sequence[str],
    several: tuple[Sequence[str], Sequence[str]],
    run: str | None,
) -> Iterator[tuple[int, Row]]:
    for line, row in rows:
        members = _members(row, *several)
        if not members:
            yield line, row
            continue
        common = {column: row.get(column, "") for column in rest} | {"run": row.get(run, "") if run else str(line)}
        for member in members:
            yield line, common | member


def _members(row: Row, nodes: Sequence[str], gpus: Sequence[str]) -> list[dict[str, str]]:
    """The nodes of a row, or both ends of a pair of GPUs, with their nodes where these are known; each once."""
    if not gpus:
        listed = dict.fromkeys(node for column in nodes for node in nodes_of(row.get(column, "")))
        return [{"node": node} for node in listed]
    ends = [{"gpu": row[gpu]} for gpu in gpus if row.get(gpu)]
    if nodes and len(ends) == len(gpus):
        ends = [{"node": row.get(node, "")} | end for node, end in zip(nodes, ends, strict=True)]
    return ends[:1] if ends[1:] == ends[:1] else ends


def nodes_of(text: str) -> list[str]:
    """The nodes of a list such as n1,n2 or "n[01-04,7]"."""
    found = list[str]()
    for part in _PART.findall(text):
        heads = [""]
        for piece in re.split(r"(\[[^\]]*\])", part):
            tails = [one for span in piece[1:-1].split(",") for one in _span(span)] if piece[:1] == "[" else [piece]
            if len(heads) * len(tails) > MOST_NODES:
                return [text]
            heads = [head + tail for head in heads for tail in tails]
        found += heads
    return found if len(found) <= MOST_NODES else [text]


def _span(text: str) -> list[str]:
    """The numbers of a range such as 01-04, as wide as its first one."""
    ends = _RANGE.fullmatch(text.strip())
    if ends is None or not 0 <= int(ends[2]) - int(ends[1]) < MOST_NODES:
        return [text.strip()]
    return [str(number).zfill(len(ends[1])) for number in range(int(ends[1]), int(ends[2]) + 1)]
