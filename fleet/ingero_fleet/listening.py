"""Where pushes are received beyond this machine, and what a user is told about it."""

from typing import TYPE_CHECKING, Final

from ingero_kit.addresses import is_local_name, is_loopback, parse_endpoint
from ingero_kit.settings import SettingsError

if TYPE_CHECKING:
    from ingero_fleet.settings import FleetConfig

PROTOCOLS: Final = ("http", "grpc")
ALONE: Final = "this machine only; --listen 0.0.0.0 with TLS, or with --insecure, admits others"


def listening_on(config: "FleetConfig", host: str, insecure: bool) -> list[str]:
    """The settings that receive pushes on this address at the ports of `config`.

    Raises `SettingsError` for plain text that others can read, unless `insecure`.
    """
    found = []
    for name in PROTOCOLS:
        listener = getattr(config.receivers.otlp.protocols, name)
        if listener is None:
            continue
        path = f"receivers.otlp.protocols.{name}"
        if listener.tls is None and not insecure and not is_local_name(host):
            raise SettingsError(
                f"{path}: others could read pushes to {host} in plain text: set its tls, or allow it with --insecure"
            )
        address = f"[{host}]" if ":" in host else host
        found.append(f"{path}.endpoint={address}:{parse_endpoint(listener.endpoint)[1]}")
    return found


def how_to_push(config: "FleetConfig", ports: dict[str, int]) -> dict[str, str]:
    """The command that pushes to this Fleet, and who can; empty if it receives no OTLP over HTTP."""
    listener = config.receivers.otlp.protocols.http
    if listener is None:
        return {}
    local = is_loopback(listener.endpoint)
    address = f"{'127.0.0.1' if local else 'HOST'}:{ports.get('otlp/http', parse_endpoint(listener.endpoint)[1])}"
    flags = "" if listener.tls else " --fleet-insecure"
    token = " --fleet-token-file FILE" if listener.auth.bearer_token_file else ""
    return {
        "push": f"ingero-agent fleet-push --fleet-endpoint {address}{flags}{token} --fleet-cluster-id NAME",
        "reached_by": ALONE if local else "other machines too",
    }
