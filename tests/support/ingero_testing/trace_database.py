"""Questions to the database of a tracer that runs."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def query(database: Path, text: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(text, values).fetchall()
