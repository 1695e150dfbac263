"""The questions that Echo can answer, one table; both front ends, the command line and the docs are made from it."""

from typing import Final

from ingero_echo.answers import history, nodes, work
from ingero_echo.answers.table import Answer

ANSWERS: Final[dict[str, Answer]] = {
    answer.tool: answer for answer in (*nodes.ANSWERS, *history.ANSWERS, *work.ANSWERS)
}
"""By full tool name, in the order in which they are listed."""
