"""How the files of a history were read: for people, and to judge it."""

from dataclasses import dataclass, field
from typing import Final

from ingero_analyze.diagnose.sources import Problems
from ingero_analyze.replay.column_names import LABELS
from ingero_analyze.replay.columns import Columns
from ingero_analyze.replay.subjects import Subjects
from ingero_analyze.table_errors import TableError
from ingero_fleet.recording import MERGEABLE, PARTS

SORTED: Final = "the rows are not in the order of time, and were sorted"
SEVERAL: Final = "of several rows of a node at one time the median counts"
POINTS: Final = (
    "values such as 1.040 beside 987 are read as decimals: write them without points that separate thousands"
)
COARSEST: Final = 0.05
"""Unit of rounded values, relative to their median, below which rounding is no loss that counts."""

COARSE: Final = (
    "values are rounded to a unit that is a twentieth of them or more, so that a loss of that size may be rounding: "
    "write more digits"
)
DAYLESS: Final = (
    "times have no date and fall by a day: where they are times of day, rows of several days are mixed; add a column "
    "with the date"
)
MISNAMED: Final = (
    "times are taken as milliseconds, as the name of their column says, but seem to be seconds since 1970: if they "
    "are, give the column another name, such as 'time'"
)
COARSEST_TIMES: Final = 5.0
"""Seconds to which times may be rounded."""

COARSE_TIMES: Final = (
    "times such as 1.76987E+12 have lost their last digits, so that rows of different times are mixed: write all "
    "digits, as by another format of the cells in a spreadsheet"
)
HOSTLESS: Final = (
    "no column names the host, and most GPUs or ranks have several rows at one time, as those of several hosts have: "
    "add a column 'node'"
)
COUNTER: Final = (
    "the values of nearly all nodes only rise, and are judged as rates; if they are counts, choose their column with "
    "--column counter=COLUMN"
)
DIFFERENT: Final = (
    "most nodes have rows of one time that differ by more than half, of which the median counts; if a column tells "
    "metrics apart, choose it with --column metric=COLUMN"
)
UNNAMED: Final = (
    "most nodes have several rows at one time with different values, of which the median counts, so that a slow one "
    "among them is not seen; if a column tells what each is of, choose it with --column gpu=COLUMN"
)
LOCKSTEP: Final = (
    "nodes have nearly the same value at every time and change together, as in a synchronised job, where a slow rank "
    "slows all: judge what each does by itself, such as its time of computing without waits, or use "
    "`ingero-fleet diagnose`"
)
DIFFERENT_WORK: Final = (
    "most nodes change what they do again and again, alone by more than half or after a silence together with a few "
    "others, as nodes of several jobs do, and nobody among them is accused: add a column 'job_id'"
)
OTHER_WORK: Final = (
    "nodes gain for good, each at a time of its own, as nodes of several jobs do, and nobody among them is accused "
    "who lost no more than that: add a column 'job_id'"
)
GROUPS: Final = (
    "groups of nodes change their load apart from the others, as those of several jobs or models of GPU, and no "
    "column tells which: each group is compared by itself"
)
SHARES: Final = (
    "nodes follow the common load by shares of their own, which were taken off before they were compared: values in "
    "evidence are without them"
)
EQUAL_WORK: Final = (
    "times follow the work in {}, and are judged as if all rows had done the usual work: evidence has those times"
)
NO_WORK: Final = "times do not follow the work in {}, and are judged as they are"
LONG_STEPS: Final = "a row that ends a step of several ticks stands for all of them"
MISSING: Final = "rows are missing at random: a node counts as silent when it misses more than {} ticks in a row"
ZEROS: Final = (
    "{:,} rows are zero, as all nodes are now and then for a short time where a table was filled with zeros: "
    "they count as no reports"
)
FILLED: Final = (
    "{:,} rows repeat the value before them, as where that is filled in for a missing one, and are not rounded: they "
    "count as no reports"
)
PLACEHOLDERS: Final = (
    "{:,} rows have one and the same number that means nothing, now and then and from the beginning, beside usual "
    "values: they count as no reports"
)
STEPS: Final = "times are numbers of steps, and a step counts as a second"
ZONELESS: Final = "times without a zone are taken as UTC"


@dataclass
class Reading:
    """How files were read. `used`: columns by role; `rows`: those used; `first_missing`: the first row without a
    value, which counts as no report; `doubts`: what may make the result meaningless."""

    measure: str = ""
    used: dict[str, list[str]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    rows: int = 0
    missing: int = 0
    first_missing: str = ""
    problems: Problems = field(default_factory=Problems)
    mergeable: tuple[int, ...] = ()
    calendar: bool = False
    foreign_times: bool = False
    """Whether some times are no numbers of seconds, so that results give them as ISO 8601."""
    recorded: bool = False
    steps: bool = False
    """Whether times are numbers of steps, each of which counts as a second."""

    @property
    def labels(self) -> list[str]:
        """The columns that form cohorts."""
        return [name for role in LABELS for name in self.used.get(role, ())]

    @property
    def tells_jobs(self) -> bool:
        """Whether columns tell which nodes work for one job; the label `job` of Prometheus is what scrapes them."""
        scraped = self.used.get("metric") == ["__name__"] and self.used.get("job_id") == ["job"]
        return "workload_type" in self.used or ("job_id" in self.used and not scraped)

    def note(self, text: str) -> None:
        """Remember a sentence once."""
        if text not in self.notes:
            self.notes.append(text)

    def doubt(self, text: str) -> None:
        """Remember a doubt once."""
        if text not in self.doubts:
            self.doubts.append(text)

    def unusable(self) -> TableError | None:
        """Why nothing, or too little, of the rows can be used."""
        problems = self.problems
        if problems.count > self.rows:
            share = f"{problems.count:,} of {problems.count + self.rows:,} rows cannot be used" if self.rows else ""
            return TableError(problems.shown[0], share or "nothing can be used")
        if not self.rows and self.missing:
            return TableError(self.first_missing, "no row has a value")
        return None

    def note_names(self, subjects: Subjects) -> None:
        """Say what is judged by itself besides nodes."""
        if subjects.by_rack:
            self.note(f"nodes are numbers within a rack, so each is judged as {self.used['rack'][0]}/node")
        if subjects.by_gpu:
            self.note(f"each GPU is judged by itself, as node/{self.used['gpu'][0]}")
        if subjects.parts:
            roles = [
                (*PARTS, "cohort")[place - 1] if self.mergeable else "cohort" for place in sorted(subjects.parts)
            ]
            names = "/".join(name for role in roles for name in self.used.get(role, ()))
            self.note(f"where a node has rows of several at one time, each is judged by itself, as node/{names}")
        if subjects.by_file:
            shown = (
                "a cluster" if subjects.files_are_clusters
                else "a host, whose GPUs are judged as file/gpu" if subjects.files_are_hosts
                else "judged by itself, as node/file"
            )  # fmt: skip
            self.note(f"files have the same nodes at the same times with other values, so each file is {shown}")

    def begin(self, file: str, columns: Columns) -> None:
        """Add the columns of a file. Raises `TableError` when its values are of another kind than earlier ones."""
        if self.measure and columns.measure != self.measure:
            raise TableError(
                file, f"the column {columns.measure} cannot be compared with {self.measure} of another file"
            )
        self.measure = columns.measure
        self.recorded |= columns.recorded
        if self.used and self.steps != columns.steps:
            raise TableError(file, "numbers of steps cannot be merged with times of another file")
        if columns.steps:
            self.steps = True
            self.note(STEPS)
        if any(part in columns.roles for part in PARTS):
            self.mergeable = MERGEABLE
        for role, names in columns.roles.items():
            known = self.used.setdefault(role, [])
            known += [name for name in names if name not in known]
        self.ignored += [name for name in columns.ignored if name not in self.ignored]
