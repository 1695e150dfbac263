"""The table of Echo's questions, from which both front ends, the command line and the docs are built."""

from typing import Final

from ingero_echo.questions import history, lemons, nodes, work
from ingero_echo.questions.base import Question

QUESTIONS: Final[dict[str, Question]] = {
    question.tool: question for question in (*nodes.QUESTIONS, *lemons.QUESTIONS, *history.QUESTIONS, *work.QUESTIONS)
}
"""By full tool name, in the order in which they are listed."""
