"""The questions that Echo can answer, one table; both front ends, the command line and the docs are made from it."""

from typing import Final

from ingero_echo.questions import history, nodes, work
from ingero_echo.questions.base import Question

QUESTIONS: Final[dict[str, Question]] = {
    question.tool: question for question in (*nodes.QUESTIONS, *history.QUESTIONS, *work.QUESTIONS)
}
"""By full tool name, in the order in which they are listed."""
