"""Cells that hold several values of a node, such as those of its GPUs or runs, as one row for each of them. Pure."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from ingero_analyze.audit.columns import ROLES, is_value, words_of
from ingero_analyze.json_tables import Row
from ingero_analyze.tables import Rows

LOOKED_AT: Final = 64
"""Rows by which such columns are known."""

GPUS_OF_A_NODE: Final = (4, 8, 16)
"""Lengths of lists of all nodes that are taken for those of their GPUs, where nothing says what they are of."""

TAKEN_FOR: Final = (
    "lists of {} values are taken for those of the GPUs of a node, from 0 on; if they are of its runs, call the "
    "column runs, or write a row a run"
)

NAMES: Final = ("values", "results", "runs", "samples", "measurements", "times", "rates", "data", "history")
"""Names of lists of values, where no column has the name of a value; others are of anything, such as `gpu_ids`."""

_NUMBER: Final = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_DECIMAL: Final = r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?"
_LIST: Final = re.compile(
    rf"[\[(]\s*{_NUMBER}(?:[,;\s]\s*{_NUMBER})+\s*[\])]|{_NUMBER}(?:[;|]\s*{_NUMBER})+|{_DECIMAL}(?:[,\s]\s*{_DECIMAL})+"
)
"""Numbers in brackets, or with what separates no thousands."""

_EACH: Final = re.compile(_NUMBER)
_GPUS: Final = re.compile(r".*\b(?:gpus?|gcds?|devices|cards|chips|ranks)\b.*")
_RUNS: Final = re.compile(
    r".*\b(?:runs?|trials?|iterations?|iters?|reps?|repeats?|repetitions?|attempts?|rounds?|samples?|steps?|history|days)\b.*"
)


def of_single_values(
    columns: Sequence[str], rows: Iterator[tuple[int, Row]], chosen: Collection[str]
) -> tuple[Rows, str]:
    """The table with one row a value, where a node has several in a cell, and a note on what they are taken for.

    `chosen`: columns that the user named, which may be such.
    """
    first = list(islice(rows, LOOKED_AT))
    rows = chain(first, rows)
    lists = [name for name in columns if _are_lists([row.get(name, "") for _, row in first])]
    roles = {role for role in ("gpu", "run") for name in columns if words_of(name) in ROLES[role]}
    values = [name for name in lists if name in chosen or is_value(name)]
    if not any(map(is_value, columns)):
        values = values or [name for name in lists if words_of(name) in NAMES][:1]
    if not values or not any(words_of(name) in ROLES["node"] for name in columns):
        return (list(columns), rows), ""
    sizes = {len(_EACH.findall(row.get(values[0], ""))) for _, row in first} - {0}
    role, guessed = _role(" ".join(map(words_of, values)), roles, sizes)
    names = {name: name if name in chosen or is_value(name) else "value" for name in values}
    names |= {name: name for name in lists if name not in values}
    rest = [name for name in columns if name not in names]
    note = TAKEN_FOR.format(max(sizes)) if guessed else ""
    return ([*rest, *([role] if role else []), *names.values()], _spread(rows, rest, role, names)), note


def _are_lists(cells: Sequence[str]) -> bool:
    held = [cell for cell in cells if cell.strip()]
    return bool(held) and all(map(_LIST.fullmatch, held))


def _role(name: str, known: Collection[str], sizes: set[int]) -> tuple[str, bool]:
    """What the values of a list are of, "" if a column tells it; and whether this is only guessed."""
    of_gpus, of_runs = bool(_GPUS.fullmatch(name)), bool(_RUNS.fullmatch(name))
    guessed = not of_gpus and not of_runs and len(sizes) == 1 and not sizes.isdisjoint(GPUS_OF_A_NODE)
    if "gpu" not in known and (of_gpus or guessed):
        return "gpu", guessed
    return "" if "run" in known else "run", False


def _spread(
    rows: Iterator[tuple[int, Row]], rest: Sequence[str], role: str, names: dict[str, str]
) -> Iterator[tuple[int, Row]]:
    for line, row in rows:
        lists = {names[name]: _EACH.findall(row.get(name, "")) for name in names}
        common = {name: row.get(name, "") for name in rest}
        longest = max(map(len, lists.values()), default=0)
        if not row or not longest:
            yield line, row
            continue
        for place in range(longest):
            held = {name: found[place] for name, found in lists.items() if len(found) == longest}
            number = {role: str(place if role == "gpu" else place + 1)} if role else {}
            yield line, common | number | held
