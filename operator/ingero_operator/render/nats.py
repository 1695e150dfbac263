"""Settings of a client of NATS, and the files that its pod has for it."""

from ingero_operator.api.base import SecretKey
from ingero_operator.api.nats import NatsAccess
from ingero_operator.kinds import Manifest

FOLDER = "/etc/ingero"


def access(name: str, nats: NatsAccess) -> Manifest:
    """Credentials and TLS as settings. `name` begins the names of the folders with the files."""
    out: Manifest = {}
    if nats.credentials_secret:
        out["credentials_file"] = f"{FOLDER}/{name}-credentials/{nats.credentials_secret.key}"
    if nats.tls:
        tls: Manifest = {}
        if nats.tls.ca_secret:
            tls["ca_file"] = f"{FOLDER}/{name}-authority/ca.crt"
        if nats.tls.client_secret:
            tls |= {"cert_file": f"{FOLDER}/{name}-client/tls.crt", "key_file": f"{FOLDER}/{name}-client/tls.key"}
        out["tls"] = tls
    return out


def secrets(name: str, nats: NatsAccess | None) -> list[tuple[str, SecretKey | str, str]]:
    """Name of the volume, Secret (with a key, or whole) and folder of all these files."""
    if nats is None:
        return []
    authority, client = (nats.tls.ca_secret, nats.tls.client_secret) if nats.tls else (None, None)
    wanted = {
        "credentials": nats.credentials_secret,
        "authority": SecretKey(name=authority, key="ca.crt") if authority else None,
        "client": client,
    }
    return [(f"{name}-{part}", secret, f"{FOLDER}/{name}-{part}") for part, secret in wanted.items() if secret]
