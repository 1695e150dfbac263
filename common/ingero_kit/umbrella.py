"""The `ingero` command: the other commands under one name, and shell completion for all of them."""

from collections.abc import Callable
from typing import Any, Final, NoReturn

import click
from click.shell_completion import get_completion_class

from ingero_kit.extras import pip_command
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


class Umbrella(LazyGroup):
    """A group whose commands may lack their libraries: these say how to install them."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or one that ends with exit status 1 and the way to install it."""
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            text = f"not installed (no module {error.name})"
            accept_all = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
            return click.Command(
                cmd_name,
                callback=_failing(f"ingero {cmd_name}: {text}: {pip_command(cmd_name)}"),
                short_help=text,
                context_settings=accept_all,
            )


def _failing(text: str) -> Callable[..., Any]:
    def callback() -> NoReturn:
        raise click.ClickException(text)

    return callback


@click.group(cls=Umbrella, lazy=PROGRAMS | DEMO, context_settings=CONTEXT)
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
