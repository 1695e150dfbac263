"""The table of `make bench-ha`, a line at a time."""

missed: list[str] = []
"""Results that had to be zero and are not."""


def row(what: str, ours: str, bar: str, reached: bool | None, *, zero: bool = False) -> None:
    """One line of the table; `zero` marks results that are wrong unless they are as they must be."""
    print(f"| {what} | {ours} | {bar} | {'–' if reached is None else 'yes' if reached else 'NO'} |", flush=True)
    if zero and not reached:
        missed.append(what)


def must_be_zero(what: str, number: int) -> None:
    """One line for a result that is wrong unless it is zero."""
    row(what, f"{number}", "0", number == 0, zero=True)
