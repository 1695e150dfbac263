"""Settings of the cost processor."""

from pathlib import Path

from ingero_kit.settings import Settings


class CostConfig(Settings):
    """What stragglers cost."""

    rates_file: Path | None = None
    """Rates by provider and GPU model, YAML; the table that comes with Fleet without it. Read again on SIGHUP."""
    providers_file: Path | None = None
    """Rules that say which nodes run at which provider, YAML. Read again on SIGHUP."""
    nodes_file: Path | None = None
    """What `kubectl get nodes -o json` prints: labels and addresses for the rules. Read again on SIGHUP."""
    default_provider: str = ""
    """Provider of nodes that no rule, agent or `providerID` names, such as `on-premise`."""
