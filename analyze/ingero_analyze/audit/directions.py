"""What words of results say: whether smaller values are better, and whether a test was passed. Pure."""

import re
from functools import lru_cache
from typing import Final

from ingero_analyze.audit.columns import HIGHER, KEPT, ONE, SECONDS, words_of

LOWER: Final = re.compile(
    r"\b(?:time|duration|dur|latency|elapsed|runtime|seconds|ms|us|ns|secs|msec|usec|slowdown|overhead|jitter)\b|"
    rf"\bs(?:ec)?(?:$| (?:per|{ONE})\b)"
)
DIRECTIONS: Final = {
    **dict.fromkeys(("lower", "lower is better", "smaller", "down", "less"), True),
    **dict.fromkeys(("higher", "higher is better", "larger", "up", "more", "greater"), False),
}
"""Words for whether smaller values are better."""

WORSE: Final = re.compile(r"\b(?:errors?|failures?|miss(?:es)?|drops?|dropped|retries|retransmits?) rate\b")
"""Rates that are better the smaller they are."""

FAILED: Final = re.compile(
    r"(?:.* )?(?:fail\w*|errors?|errored|abort\w*|timed? ?out|crash\w*|killed|cancel\w*|invalid|skip\w*|oom|false|"
    r"not run|out of memory)(?: .*)?"
)
"""Words of a status that says that a test was not passed."""

NO_FAILURE: Final = re.compile(r"(?:no|0|without|zero) (?:errors?|failures?)")


@lru_cache(KEPT)
def says_failed(status: str) -> bool:
    """Whether a status says that the test was not passed, so that its value is none."""
    words = words_of(status)
    return bool(FAILED.fullmatch(words)) and not NO_FAILURE.fullmatch(words)


@lru_cache(KEPT)
def lower_is_better(direction: str, unit: str = "", *names: str) -> bool | None:
    """Whether smaller values are better by words in the direction, the unit or the names; None if they do not say."""
    told = words_of(direction)
    if told in ("min", "max"):
        return told == "min"
    if told not in DIRECTIONS and words_of(unit) in SECONDS:
        return True
    for hint in (told, words_of(unit), *map(words_of, names)):
        if hint in DIRECTIONS:
            return DIRECTIONS[hint]
        if not WORSE.search(hint) and HIGHER.search(hint):
            return False
        if WORSE.search(hint) or LOWER.search(hint):
            return True
    return None
