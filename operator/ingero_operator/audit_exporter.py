"""Exports taint events to the Fleet of a FleetCluster, which forwards them to Echo or another collector.

The node, its Events and the status have the facts of a record that is lost.
"""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import aiohttp

from ingero_contract import routes
from ingero_kit.otlp_client import DeliveryFailure, Disposition, http_failure
from ingero_operator.retrying_exporter import Refused, RetryingExporter, TryAgain
from ingero_operator.untrusted_http import NoResponse, explain, open_session, ssl_context_for

SEND_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class OtlpTarget:
    """A Fleet's OTLP/HTTP receiver."""

    url: str
    token: str | None = None
    authority: str | None = None
    """PEM of the CA that signed its certificate."""


class AuditExporter(RetryingExporter):
    """Exports taint events as OTLP log records."""

    def export(self, target: OtlpTarget, request: dict[str, Any]) -> None:
        """Send an export request for logs in the background."""
        self.start("taint event", partial(_send, target, json.dumps(request).encode()))


async def _send(target: OtlpTarget, body: bytes) -> None:
    """Send a request once; the body of the answer is not read."""
    headers = {"Content-Type": "application/json"}
    if target.token:
        headers["Authorization"] = f"Bearer {target.token}"
    try:
        context = ssl_context_for(target.authority)
        async with (
            open_session(SEND_SECONDS, 1) as session,
            session.post(
                target.url + routes.OTLP_LOGS, data=body, headers=headers, ssl=context, allow_redirects=False
            ) as response,
        ):
            failed = http_failure(response.status)
    except (aiohttp.ClientError, OSError, ValueError, NoResponse) as error:
        raise TryAgain(str(error) if isinstance(error, NoResponse) else explain(error)) from error
    if failed is None:
        return
    if failed[0] is DeliveryFailure.REFUSED and failed[1] is not Disposition.RETRY:
        raise Refused(f"Fleet refuses the record: HTTP {response.status}")
    raise TryAgain(f"Fleet answers {response.status}")
