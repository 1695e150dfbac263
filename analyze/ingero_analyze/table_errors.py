"""What is wrong with a table, and where."""


class TableError(ValueError):
    """A file cannot be read; the text names the place."""

    def __init__(self, file: str, text: str, row: int | None = None, column: str | None = None) -> None:
        super().__init__(f"{place_of(file, row, column)}: {text}")


def place_of(file: str, row: int | None = None, column: str | None = None) -> str:
    """A place in a file, in words."""
    place = file if row is None else f"{file}, row {row}"
    return place if column is None else f"{place}, column {column}"
