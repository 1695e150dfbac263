"""Reads dcgm-exporter's page: which GPUs are throttled, and why. All but `fetch` is pure.

A GPU that is slow inside a collective blocks as long as its peers, so waits cannot name it; its clocks and its
throttle reasons can.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx

from ingero_analyze.diagnose.sources import Claims, Problems, SourceError, read_content

CLAIMS: Final = Claims(
    can=(
        "that a GPU is throttled at the moment of the scrape, and by what: power, temperature, hardware, software",
        "that a busy GPU runs at a lower clock than its like, and that it reported an XID error",
    ),
    cannot=(
        "which rank is late: a throttled GPU may delay no other rank",
        "anything about moments other than the scrape; totals since boot are shown, not judged",
    ),
)

MAX_PAGE: Final = 64 << 20
MAX_LINE: Final = 1 << 16
MAX_GPUS: Final = 100_000
FETCH_SECONDS: Final = 10.0
NOT_MEASURED: Final = 1e15
"""DCGM's values for what it could not measure are larger than this."""

SLOW_CLOCK: Final = 0.85
"""Share of the median clock of its model below which a busy GPU is listed."""

BUSY: Final = 50.0
FEWEST: Final = 3
SHOWN: Final = 64

REASONS: Final = {
    0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost", 0x20: "sw_thermal", 0x40: "hw_thermal",
    0x80: "hw_power_brake",
}  # fmt: skip
"""Bits of the clock event reasons that throttle a GPU; idle and set clocks do not."""

POWER_LIMIT: Final = 0x4

_NAME: Final = re.compile(r"[A-Za-z_:][\w:]*")
_LINE: Final = re.compile(r"([A-Za-z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_REASON_FIELDS: Final = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_WANTED: Final = frozenset(
    {*_REASON_FIELDS, "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS"}
)
_VIOLATIONS: Final = re.compile(r"DCGM_FI_DEV_([A-Z_]+)_VIOLATION$")


@dataclass
class DcgmSample:
    """One GPU's page. `host` and `model` are empty where they are not given; violations are seconds since boot."""

    host: str
    gpu: str
    model: str = ""
    pod: str = ""
    values: dict[str, float] = field(default_factory=dict)
    violations: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ThrottledGpu:
    """A GPU with a problem."""

    gpu: DcgmSample
    why: tuple[str, ...]
    clock_share: float | None

    def answer(self, ranks: list[str]) -> dict[str, Any]:
        """As the command prints it."""
        return {
            "node": self.gpu.host or None, "gpu": self.gpu.gpu, "model": self.gpu.model or None,
            "pod": self.gpu.pod or None, "why": list(self.why), "ranks": ranks,
            "clock_over_median": None if self.clock_share is None else round(self.clock_share, 4),
            "throttled_seconds_since_boot": {name: round(value, 3) for name, value in self.gpu.violations.items()},
        }  # fmt: skip


def fetch(source: str) -> str:
    """The text of a file or of an http(s) address. Raises `SourceError` with a message."""
    if source.lower().startswith(("http://", "https://")):
        body = b""
        try:
            with (
                httpx.Client(timeout=FETCH_SECONDS, follow_redirects=False) as client,
                client.stream("GET", source) as got,
            ):
                if got.status_code != 200:
                    raise SourceError(f"HTTP {got.status_code}")
                for part in got.iter_bytes():
                    body += part
                    if len(body) > MAX_PAGE:
                        raise SourceError(f"larger than {MAX_PAGE} bytes")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceError(str(error) or type(error).__name__) from None
        except UnicodeError:
            raise SourceError("no host can have this name") from None
    else:
        body = read_content(Path(source))
        if len(body) > MAX_PAGE:
            raise SourceError(f"larger than {MAX_PAGE} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"byte {error.start}: not UTF-8") from None


def read_metrics(sources: Iterable[str], problems: Problems) -> list[DcgmSample]:
    """GPUs of all pages; what cannot be used is listed in `problems`; everything else is used."""
    found: dict[tuple[str, str], DcgmSample] = {}
    for source in sources:
        try:
            page = fetch(source)
        except SourceError as error:
            problems.add(source, str(error))
            continue
        before = len(found)
        parse(page, source, found, problems)
        if len(found) == before:
            problems.add(source, "no GPU is described: there are no DCGM_FI_DEV_ lines with a gpu label that are new")
    return list(found.values())


def parse(page: str, source: str, into: dict[tuple[str, str], DcgmSample], problems: Problems) -> None:
    """Read a page of Prometheus text, line by line."""
    for place, line in enumerate(page.split("\n"), 1):
        named = _NAME.match(line)
        name = named[0] if named else ""
        violation = _VIOLATIONS.match(name)
        if line.startswith("#") or (name not in _WANTED and not violation):
            continue
        try:
            labels, value = _sample(line)
        except SourceError as error:
            problems.add(source, f"line {place}: {error}")
            continue
        number = labels.get("gpu") or labels.get("UUID") or labels.get("uuid") or ""
        if not number:
            problems.add(source, f"line {place}: no gpu label")
            continue
        if labels.get("GPU_I_ID"):
            number += f"/{labels['GPU_I_ID']}"
        host = labels.get("Hostname") or labels.get("hostname") or labels.get("node") or ""
        key = (host or source, number)
        gpu = into.get(key)
        if gpu is None:
            if len(into) >= MAX_GPUS:
                problems.add(source, f"line {place}: more than {MAX_GPUS} GPUs")
                continue
            gpu = into[key] = DcgmSample(host, number, labels.get("modelName", ""), labels.get("pod", ""))
        if not 0 <= value < NOT_MEASURED:
            continue
        if violation:
            gpu.violations[violation[1].lower()] = value / 1e9
        else:
            gpu.values[name] = value


def _sample(line: str) -> tuple[dict[str, str], float]:
    if len(line) > MAX_LINE:
        raise SourceError(f"longer than {MAX_LINE} characters")
    found = _LINE.fullmatch(line.strip())
    if not found:
        raise SourceError("no sample: name{labels} value was expected")
    labels: dict[str, str] = {}
    rest, at = found[2] or "", 0
    while at < len(rest):
        label = _LABEL.match(rest, at)
        if not label:
            raise SourceError("the labels cannot be read")
        labels[label[1]] = "".join(letter for letter in label[2][:253] if letter.isprintable())
        at = label.end()
    try:
        value = float(found[3])
    except ValueError:
        raise SourceError(f"{found[3][:40]!r} is not a number") from None
    return labels, value


def throttled_gpus(gpus: list[DcgmSample]) -> list[ThrottledGpu]:
    """GPUs that are throttled, run slower than others of their model, or reported an error.

    A power limit that half of them have reached is their load, and not listed.
    """
    clocks: defaultdict[str, list[float]] = defaultdict(list)
    for gpu in gpus:
        if _busy(gpu) and "DCGM_FI_DEV_SM_CLOCK" in gpu.values:
            clocks[gpu.model].append(gpu.values["DCGM_FI_DEV_SM_CLOCK"])
    reasons = [next((int(gpu.values[name]) for name in _REASON_FIELDS if name in gpu.values), 0) for gpu in gpus]
    limited = sum(bool(bits & POWER_LIMIT) for bits in reasons)
    usual = POWER_LIMIT if len(gpus) >= FEWEST and 2 * limited >= len(gpus) else 0
    found = []
    for gpu, bits in zip(gpus, reasons, strict=True):
        why = [name for bit, name in REASONS.items() if bits & ~usual & bit]
        share = None
        clock = gpu.values.get("DCGM_FI_DEV_SM_CLOCK")
        if clock is not None and _busy(gpu) and len(clocks[gpu.model]) >= FEWEST:
            middle = median(clocks[gpu.model])
            share = clock / middle if middle > 0 else None
            if share is not None and share < SLOW_CLOCK:
                why.append(f"clock {clock:g} MHz where its like run at {middle:g}")
        xid = int(gpu.values.get("DCGM_FI_DEV_XID_ERRORS", 0))
        if xid:
            why.append(f"xid {xid}")
        if why:
            found.append(ThrottledGpu(gpu, tuple(why), share))
    return found


def _busy(gpu: DcgmSample) -> bool:
    """Whether the GPU is busy; an idle GPU may run slowly. Unknown counts as busy."""
    return gpu.values.get("DCGM_FI_DEV_GPU_UTIL", 100.0) >= BUSY


def answer(gpus: list[DcgmSample], hosts: Mapping[str, str], kind: str, ranks: Iterable[Any]) -> dict[str, Any]:
    """The pages' findings in addition to a verdict, with the ranks that run on each node where that is known."""
    on_host: defaultdict[str, list[str]] = defaultdict(list)
    for rank, host in hosts.items():
        on_host[host].append(rank)
    throttled = throttled_gpus(gpus)
    named = {hosts[str(rank)] for rank in ranks if str(rank) in hosts}
    return {
        "gpus": len(gpus),
        "nodes": len({gpu.host for gpu in gpus}),
        "throttled_count": len(throttled),
        "throttled": [item.answer(on_host.get(item.gpu.host, [])[:SHOWN]) for item in throttled[:SHOWN]],
        "reading": _reading(kind, named, {item.gpu.host for item in throttled}),
    }


def _reading(kind: str, named: set[str], throttled: set[str]) -> str:
    """One sentence on what the GPUs add to the verdict."""
    if not throttled:
        return "No GPU reports that it is throttled."
    if kind == "node":
        both = sorted(named & throttled)
        if both:
            return f"A GPU of {', '.join(both)} is throttled: a cause of what the verdict says."
        if named:
            return "GPUs are throttled, none of them on the named node: they are not the cause of its delay."
        return "GPUs are throttled; which ranks run on their nodes is not known."
    if kind in ("none", "stuck"):
        return "Waits name no rank, and GPUs are throttled: a GPU that is slow inside of collectives has this effect."
    return "GPUs are throttled."
