"""Results in what `dcgmi diag -j` prints: rates, bandwidths and latencies of every GPU. Pure."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ingero_analyze.json_tables import Row

SIGN: Final = re.compile(r'[^"]*"DCGM (?:GPU )?Diagnostic"')
"""How its first line with a name begins."""

GPUS: Final = ("gpu_ids", "gpu_id", "entity_id")
"""Names of the number of a GPU, by version; lists of numbers are those of tests of the whole node."""

_SAYS: Final = re.compile(
    r"(?:GPU \d+[: ]+)*(?P<what>[A-Za-z][A-Za-z ]*?)(?: at approximately)?:?\s+(?P<value>\d+(?:\.\d+)?)"
    r"(?: ?(?P<unit>gigaflops|GB/s|us)\b.*)?"
)
_UNITS: Final = {"gigaflops": "GFLOPS", "GB/s": "GB/s", "us": "us"}
LEVEL: Final = "relative stress level"
"""The only result without a unit; a larger one is better."""


def rows_of_diagnostic(lines: Sequence[str]) -> list[tuple[int, Row]]:
    """A row a GPU and what was measured on it; a test that failed is one without a value."""
    text = "\n".join(lines)
    try:
        whole, _ = json.JSONDecoder().raw_decode(text, text.find("{"))
    except (ValueError, RecursionError):
        return []
    rows = (row for name, result in _results(whole) for row in _rows(name, result))
    return list(enumerate(rows, 1))


def _results(found: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The results of all tests with their names, however deep these are."""
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        if isinstance(each, dict) and isinstance(each.get("results"), list):
            yield from ((str(each.get("name")), one) for one in each["results"] if isinstance(one, dict))
        else:
            yield from _results(each)


def _rows(test: str, result: dict[str, Any]) -> Iterator[Row]:
    gpu = next((str(result[name]) for name in GPUS if name in result), "")
    if not gpu.isdigit() or result.get("entity_group", "GPU") != "GPU":
        return
    if str(result.get("status")).upper().startswith("FAIL"):
        yield {"gpu": gpu, "benchmark": test, "status": "failed"}
        return
    said = result.get("info", "")
    for part in said if isinstance(said, list) else re.split(r", (?=GPU \d)", str(said)):
        measured = _SAYS.fullmatch(str(part).strip())
        if measured and (measured["unit"] or measured["what"] == LEVEL):
            of = {"unit": _UNITS[measured["unit"]]} if measured["unit"] else {"direction": "higher"}
            name = test if measured["unit"] == "gigaflops" else f"{test}, {measured['what']}"
            yield {"gpu": gpu, "benchmark": name, "value": measured["value"], **of}
