"""Objects that a spec refers to: what is missing is named with its path."""

import asyncio
from typing import Any, cast

from ingero_operator.api.nats import NatsAccess
from ingero_operator.api_client import ApiClient
from ingero_operator.errors import ReconcileError
from ingero_operator.referenced import ReferencedObjects


class Secrets:
    """An API server that has Secrets."""

    def __init__(self, data: dict[str, dict[str, str]]) -> None:
        self._data = data

    async def get(self, kind: object, namespace: str, name: str) -> dict[str, Any] | None:
        return {"metadata": {}, "data": self._data[name]} if name in self._data else None


def absent(secrets: dict[str, dict[str, str]]) -> list[str]:
    referenced = ReferencedObjects(cast(ApiClient, Secrets(secrets)), lambda: 0.0, 60.0, lambda: 1)
    access = NatsAccess.model_validate(
        {"credentialsSecret": {"name": "seed", "key": "nk"}, "tls": {"caSecret": "ca", "clientSecret": "me"}}
    )
    errors: list[ReconcileError] = []
    asyncio.run(referenced.nats("ml", access, "spec.source.nats", errors))
    assert {error.reason for error in errors} <= {"SecretMissing"}
    return [error.message.partition(":")[0] for error in errors]


def test_each_missing_secret_of_a_client_of_nats_is_named() -> None:
    complete = {"seed": {"nk": "U1U="}, "ca": {"ca.crt": "eA=="}, "me": {"tls.crt": "eA==", "tls.key": "eA=="}}

    assert absent(complete) == []
    assert absent({**complete, "ca": {}}) == ["spec.source.nats.tls.caSecret"]
    assert absent({"me": complete["me"]}) == ["spec.source.nats.credentialsSecret", "spec.source.nats.tls.caSecret"]
    assert absent(complete | {"me": complete["me"] | {"tls.key": ""}}) == ["spec.source.nats.tls.clientSecret"]
    assert absent(complete | {"me": {}}) == 2 * ["spec.source.nats.tls.clientSecret"]


def test_a_client_without_secrets_needs_none() -> None:
    errors: list[ReconcileError] = []
    referenced = ReferencedObjects(cast(ApiClient, Secrets({})), lambda: 0.0, 60.0, lambda: 1)
    asyncio.run(referenced.nats("ml", NatsAccess(), "spec.fleet.forward.nats", errors))
    asyncio.run(referenced.nats("ml", None, "spec.fleet.forward.nats", errors))
    assert errors == []
