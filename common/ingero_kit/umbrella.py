"""The `ingero` command: the other commands under one name, and shell completion for all of them."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from ingero_kit.flags import CONTEXT, LazyGroup

PROGRAMS: Final = {
    "agent": "ingero_agent.cli:main",
    "analyze": "ingero_analyze.cli:main",
    "echo": "ingero_echo.cli:main",
    "fleet": "ingero_fleet.cli:main",
    "operator": "ingero_operator.cli:main",
    "sink": "ingero_sink.cli:main",
}
"""Each is also a program of its own, `ingero-fleet` and so on, and an extra of the package."""
DEMO: Final = {"demo": "ingero_analyze.demo:command"}


@click.group(cls=LazyGroup, lazy=PROGRAMS | DEMO, context_settings=CONTEXT)
@click.version_option(package_name="ingero")
def main() -> None:
    """Names the straggler of a GPU cluster: which node and which rank, why, and what it costs.

    Every command is also a program of its own: ingero fleet serve is ingero-fleet serve.

    \b
    ingero demo
    ingero fleet serve --config fleet.yaml
    ingero analyze replay history.csv
    source <(ingero completion bash)
    """


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of all commands for a shell.

    \b
    source <(ingero completion bash)                                     # now, or in ~/.bashrc
    ingero completion zsh > "${fpath[1]}/_ingero"
    ingero completion fish > ~/.config/fish/completions/ingero.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"{shell} is not supported")
    for name in ("ingero", *(f"ingero-{part}" for part in PROGRAMS)):
        variable = f"_{name}_COMPLETE".replace("-", "_").upper()
        click.echo(kind(main, {}, name, variable).source())
