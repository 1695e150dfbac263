"""The `ingero-analyze` command. `ingero-fleet` offers the same commands."""

from typing import Final

import click

from ingero_kit.flags import CONTEXT, LazyGroup

COMMANDS: Final = {
    "audit": "ingero_analyze.audit.command:command",
    "bench": "ingero_analyze.loadgen.command:bench",
    "diagnose": "ingero_analyze.diagnose.command:command",
    "replay": "ingero_analyze.replay.command:command",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings=CONTEXT)
@click.version_option(package_name="ingero")
def main() -> None:
    """Judges recorded histories and timelines, and loads OTLP receivers."""
