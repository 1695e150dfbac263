"""How the health of a Fleet is told to its pages."""

from typing import Any, Final

Health = tuple[bool, dict[str, Any]]
"""Whether a Fleet is healthy, and facts about it."""

PROBLEM: Final = "problem"
"""The fact that says why a Fleet is not healthy; a healthy one does not have it."""
