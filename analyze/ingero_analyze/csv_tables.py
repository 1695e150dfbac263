"""Reads delimited text as rows of text, with titles, quotes, padding and short rows, however it is delimited."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import Any, Final

from ingero_analyze.json_tables import Row
from ingero_analyze.table_errors import TableError

DELIMITERS: Final = ",;\t|"
"""What may delimit columns; blanks, where none of these makes two columns."""

MOST_TITLES: Final = 20
"""Most lines before the header, such as the title of a sheet."""

NO_TABLE: Final = "only comments, and no table"

_RULE: Final = re.compile(r"[\s|+:=-]*[-=]{2}[\s|+:=-]*")
"""A line drawn in a table, as Markdown, psql and MySQL do."""

_FRACTION: Final = re.compile(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?")
"""A number that is no name of a column."""

_SURELY_DECIMAL: Final = re.compile(
    r"\s*[-+]?(?:\d+,(?:\d{1,2}|\d{4,})|\d{4,},\d+|\d{1,3}(?:\.\d{3})+,\d+)(?![\d.,]).*"
)
_SURELY_THOUSANDS: Final = re.compile(r"\s*[-+]?\d{1,3}(?:,\d{3})*(?:,\d{3},\d{3}|\.\d+)(?![\d.,]).*")
_EITHER: Final = re.compile(r"(?<![\d.,])(\d{1,3}),(?=\d{3}(?![\d.,]))")


def read_csv(file: str, text: str, points: bool) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """The columns, and the rows with their line numbers; a row with more values than columns is empty.

    `points`: commas that could separate thousands become points where others of their column are surely decimal ones.
    `TableError` if it is no table.
    """
    lines = io.StringIO(text, newline="")
    skipped, header, delimiter = header_of(text)
    if not header:
        raise TableError(file, NO_TABLE)
    for _ in range(skipped + 1):
        lines.readline()
    drawn = ("" if _RULE.fullmatch(line) else within(line, header, delimiter) for line in chain([header], lines))
    reader = csv.reader(drawn, delimiter=delimiter, skipinitialspace=True)
    try:
        columns = [name.strip() for name in next(reader)]
    except (csv.Error, StopIteration) as error:
        raise TableError(file, f"line {skipped + 1}: {error}") from None
    if len(columns) < 2:
        raise TableError(file, f"line {skipped + 1}: one column, {columns[0][:40]!r}; a unit and a value are needed")
    if len(set(columns)) < len(columns):
        columns = [
            name if columns.index(name) == place else f"{name} {place + 1}" for place, name in enumerate(columns)
        ]
    rows = _rows(file, reader, columns, skipped, delimiter)
    ambiguous = points and (delimiter != "," or '"' in text) and _EITHER.search(text)
    return columns, _decimal(rows, _with_decimal_commas(text, delimiter)) if ambiguous else rows


def with_levels(names: Sequence[str], below: str, delimiter: str) -> tuple[list[str], int]:
    """Names of columns, and how many lines below the first one belong to them: names of two levels in two lines, as
    pandas writes them, are `('one', 'other')`, and a line behind these may name the index alone. Those of consoles of
    CloudWatch and Cloud Monitoring are in one of several lines."""
    try:
        rows = list(islice(csv.reader(io.StringIO(below, newline=""), delimiter=delimiter), MOST_TITLES))
    except csv.Error:
        return list(names), 0
    if names[:1] in (["Label"], ["TimeSeries ID"]):
        return _of_console([list(names), *rows])
    rows = rows[:2]
    lines = [[cell.strip() for cell in row] for row in rows if len(row) == len(names) > 2]
    if len(lines) < 2 or not all(names[1:]) or not all(lines[0][1:]) or any(map(_is_number, lines[0][1:])):
        return list(names), 0
    index = lines[1][0] if not any(lines[1][1:]) else ""
    merged = [index, *map(str, zip(names[1:], lines[0][1:], strict=True))]
    if not (index or names[0] == lines[0][0] == "") or len(set(merged)) < len(merged):
        return list(names), 0
    return merged, 2 if index else 1


def _of_console(lines: Sequence[Sequence[str]]) -> tuple[list[str], int]:
    """Names of columns from the lines above the first time, each of which says something of all series: a name, else
    the first thing in which all differ."""
    above = list(takewhile(lambda cells: not (":" in "".join(cells[:1]) and any(map(_is_number, cells[1:]))), lines))
    differ = [cells for cells in above if len(set(cells[1:])) == len(cells) - 1 == len(lines[0]) - 1]
    named = [cells for cells in differ if cells[0].lower().endswith("name")]
    return ["time", *(named or differ or above)[0][1:]], len(above) - 1


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def open_quote(lines: int) -> str:
    """What is wrong with a row of too many or too few values that takes several lines: it swallows these rows."""
    return f'{lines} lines are one value from here on, because a quotation mark (") is not closed; correct it'


def _swallows(cells: Sequence[str], delimiter: str) -> bool:
    """Whether a value of several lines has rows among them, with as many delimiters as this row; texts have fewer."""
    return any(line.count(delimiter) == len(cells) - 1 for cell in cells for line in cell.split("\n")[1:])


def is_regular(text: str, delimiter: str, names: int) -> bool:
    """Whether lines have one value for every name, with nothing around quotes, and delimiters that count each.

    `text`: the lines below the header. Where one line, or few of them, have too many or too few values, these are
    wrong.
    """
    if (delimiter == " " and "  " in text) or any(map(_RULE.fullmatch, text.splitlines())):
        return False
    if any(f'{delimiter}{blank}"' in text for blank in " \t" if blank != delimiter):
        return False
    try:
        sizes = [len(cells) for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if cells]
    except csv.Error:
        return True
    wrong = sum(size != names for size in sizes)
    return wrong < 2 or 2 * wrong <= len(sizes)


def within(line: str, header: str, delimiter: str) -> str:
    """A line of a table without the edges that its header has, as in `| node | gflops |`."""
    if delimiter != "|":
        return line
    if header.lstrip().startswith("|"):
        line = line.lstrip().removeprefix("|")
    return line.rstrip().removesuffix("|") if header.rstrip().endswith("|") else line


def header_of(text: str) -> tuple[int, str, str]:
    """How many lines are before the header, the header and the delimiter.

    The header has two cells or more; before it are titles, comments, rules and "sep=;" of Excel. A comment above a
    row of numbers is the header if it has as many cells, all different. Where no delimiter makes two cells, and
    where the cells of a line are underlined one by one, blanks do.
    """
    if underlined := _underlined(text):
        return underlined
    first, given, comments, above = None, "", list[tuple[int, str]](), list[tuple[int, str]]()
    for skipped, line in enumerate(io.StringIO(text, newline="")):
        if skipped > MOST_TITLES and first is not None:
            break
        if line.startswith("#"):
            comments.append((skipped, line))
        if not line.strip() or line.startswith("#") or _RULE.fullmatch(line):
            continue
        if line.lower().startswith("sep=") and len(line.strip()) == 5:
            given = line[4]
            continue
        delimiter = given or max(DELIMITERS, key=line.count)
        if sum(map(bool, map(str.strip, line.split(delimiter)))) > 1:
            return *(_commented(comments, line, delimiter) or (skipped, line)), delimiter
        if first is None:
            first, above = (skipped, line), comments
        comments = []
    if first is None:
        return 0, "", ","
    if len(first[1].split()) < 2:
        return *first, max(DELIMITERS, key=first[1].count)
    return *(_commented(above, first[1], None) or (first[0], first[1].strip())), " "


def _commented(comments: Sequence[tuple[int, str]], line: str, delimiter: str | None) -> tuple[int, str] | None:
    """The last of some comments that names the cells of a row of numbers; `delimiter`: `None` for blanks.

    Where the one above it has its cells in the same places, this is the one with the names, and the last has units.
    """
    cells = line.split(delimiter)
    if not (cells[0].strip()[:1].isdecimal() or _fractions(cells)):
        return None
    for place in reversed(range(len(comments))):
        names = [name.strip() for name in comments[place][1].lstrip("# ").split(delimiter)]
        if len(names) == len(cells) == len(set(names)) and not _fractions(names):
            above = comments[max(0, place - 1)]
            number, text = above if _aligned(above[1], comments[place][1]) else comments[place]
            return number, text.lstrip("# ").strip()
    return None


def _aligned(above: str, below: str) -> bool:
    """Whether two lines have as many words, each at the same place as that of the other line."""
    upper, lower = ([word.span() for word in re.finditer(r"[^\s#]+", line)] for line in (above, below))
    return len(upper) == len(lower) and all(
        one[0] < other[1] and other[0] < one[1] for one, other in zip(upper, lower, strict=True)
    )


def _fractions(cells: Sequence[str]) -> bool:
    return any(_FRACTION.fullmatch(cell.strip()) for cell in cells)


def _underlined(text: str) -> tuple[int, str, str] | None:
    """A header in columns of blanks, with a stroke under each of its names, as `header_of` returns it."""
    above = ""
    for number, line in enumerate(islice(io.StringIO(text, newline=""), MOST_TITLES)):
        strokes = line.split()
        drawn = len(strokes) > 1 and all(len(one) > 1 and set(one) <= set("-=") for one in strokes)
        if drawn and len(above.split()) == len(strokes):
            return number - 1, above.strip(), " "
        above = line
    return None


def _with_decimal_commas(text: str, delimiter: str) -> set[int]:
    """Columns in which commas are decimal ones: some surely are, and none surely separates thousands."""
    decimal, thousands = set[int](), set[int]()
    try:
        for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True):
            for place, cell in enumerate(cells):
                if "," in cell:
                    decimal |= {place} if _SURELY_DECIMAL.fullmatch(cell) else set()
                    thousands |= {place} if _SURELY_THOUSANDS.fullmatch(cell) else set()
    except csv.Error:
        pass
    return decimal - thousands


def _decimal(rows: Iterator[tuple[int, Row]], places: set[int]) -> Iterator[tuple[int, Row]]:
    """The rows with points for the decimal commas of some columns, where they could separate thousands."""
    for line, row in rows:
        yield (
            line,
            {
                name: _EITHER.sub(r"\1.", cell, count=1) if place in places else cell
                for place, (name, cell) in enumerate(row.items())
            },
        )


def _rows(file: str, reader: Any, columns: Sequence[str], skipped: int, delimiter: str) -> Iterator[tuple[int, Row]]:
    while True:
        line = skipped + reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise TableError(file, f"line {line}: {error}") from None
        if cells is None:
            return
        lines = skipped + reader.line_num + 1 - line
        if lines > 1 and (len(cells) != len(columns) or _swallows(cells, delimiter)):
            raise TableError(file, f"line {line}: {open_quote(lines)}")
        if not any(map(str.strip, cells)) or cells[0].startswith("#"):
            continue
        if len(cells) > len(columns) and any(map(str.strip, cells[len(columns) :])):
            yield line, {}
            continue
        yield line, dict(zip(columns, map(str.strip, cells), strict=False))
