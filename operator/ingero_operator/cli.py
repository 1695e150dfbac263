"""The `ingero-operator` command."""

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ingero")
def main() -> None:
    """Reconciles FleetCluster and EchoStore into the running components."""
