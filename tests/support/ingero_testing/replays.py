"""The output of `replay`, also in both forms, of histories that are judged only once for them."""

import json
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner, Result

from ingero_analyze.replay import judge
from ingero_analyze.replay.result import Replay
from ingero_fleet.cli import main


def replayed(*arguments: str) -> dict[str, Any]:
    """What `replay` prints as JSON."""
    answer = CliRunner().invoke(main, ["replay", *arguments, "--json"])
    assert answer.exit_code == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def shown_twice(*arguments: str) -> tuple[dict[str, Any], Result]:
    """What `replay` prints as JSON, and its result without `--json` on a terminal of 400 columns.

    Both runs read the command line; the second one shows what the first one found.
    """
    done: list[Replay] = []
    judged = judge.replay

    def once(*given: Any, **options: Any) -> Replay:
        done.append(done[0] if done else judged(*given, **options))
        return done[-1]

    with patch.object(judge, "replay", once):
        found = replayed(*arguments)
        table = CliRunner().invoke(main, ["replay", *arguments], terminal_width=400)
    return found, table
