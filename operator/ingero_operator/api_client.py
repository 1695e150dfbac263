"""The only room that talks to the API server: a few verbs, one kind of error, every request bounded and counted."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import kopf
import orjson

from ingero_contract.kubernetes import MANAGER
from ingero_operator.kinds import Kind

Manifest = dict[str, Any]

REQUEST_SECONDS: Final = 30.0
CHUNK: Final = 500
TOKEN_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_TYPED: Final = "failed to create typed patch object"
"""How the API server words, as its own failure, that an applied object does not fit its schema."""
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiError(Exception):
    """An answer that is not success. `status` 0: no answer at all."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        """There is no such object, or no such kind."""
        return self.status == 404

    @property
    def transient(self) -> bool:
        """Worth another try without anybody changing anything."""
        return self.status in (0, 409, 429) or (self.status >= 500 and _TYPED not in self.message)


class ApiClient:
    """A connection to the API server."""

    def __init__(self, connection: kopf.ConnectionInfo, namespaces: tuple[str, ...] = ()) -> None:
        self._connection = connection
        self._namespaces = namespaces
        self._session: aiohttp.ClientSession | None = None
        self._token_due = 0.0
        self._token = connection.token
        self.requests: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._connection.as_ssl_context(), limit=32)
        self._session = aiohttp.ClientSession(
            base_url=self._connection.server.rstrip("/") + "/",
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, connect=10),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    def _headers(self) -> dict[str, str]:
        headers = dict(self._connection.as_http_headers())
        if self._token and time.monotonic() > self._token_due:
            self._token_due = time.monotonic() + 60
            if TOKEN_FILE.exists():
                self._token = TOKEN_FILE.read_text().strip()
        if self._token and (self._connection.scheme or "Bearer") == "Bearer":
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
        accept: str = "application/json",
        seconds: float | None = None,
    ) -> Manifest:
        """One request; the decoded answer. Raises `ApiError`."""
        assert self._session is not None
        self.requests["dry run" if query and "dryRun" in query else method] += 1
        headers = {**self._headers(), "Accept": accept}
        data = None
        if body is not None:
            data, headers["Content-Type"] = orjson.dumps(body), content
        timeout = aiohttp.ClientTimeout(total=seconds) if seconds else None
        try:
            async with self._session.request(
                method, path.lstrip("/"), params=query, data=data, headers=headers, timeout=timeout
            ) as response:
                raw = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(
                0, "Unreachable", f"the API server did not answer: {error or type(error).__name__}"
            ) from None
        try:
            tree = orjson.loads(raw) if raw else {}
        except ValueError:
            tree = {"message": raw[:200].decode(errors="replace")}
        if status >= 400:
            raise ApiError(status, str(tree.get("reason") or status), str(tree.get("message") or f"HTTP {status}"))
        return dict(tree)

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """One object, or nothing."""
        try:
            return await self.request("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def every(
        self, kind: Kind, *, selector: str | None = None, metadata_only: bool = False
    ) -> AsyncIterator[Manifest]:
        """Every object of a kind in the namespaces that are looked at, in pieces; the kind is filled in."""
        for namespace in (kind.namespaced and self._namespaces) or (None,):
            async for item in self._pages(kind, namespace, selector, metadata_only):
                yield item

    async def _pages(
        self, kind: Kind, namespace: str | None, selector: str | None, metadata_only: bool
    ) -> AsyncIterator[Manifest]:
        query = {"limit": str(CHUNK), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self.request(
                "GET", kind.path(namespace), query=query, accept=_METADATA if metadata_only else "application/json"
            )
            for item in page.get("items") or []:
                item.setdefault("kind", kind.name)
                yield item
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            query["continue"] = token

    async def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Server-side apply: what we render is ours, what others add stays theirs."""
        metadata = manifest["metadata"]
        return await self.request(
            "PATCH", kind.path(metadata.get("namespace"), metadata["name"]),
            query={"fieldManager": MANAGER, "force": "true"}, body=manifest, content="application/apply-patch+yaml",
        )  # fmt: skip

    async def merge(
        self, kind: Kind, namespace: str | None, name: str, patch: Manifest, sub: str | None = None, *,
        dry_run: bool = False,
    ) -> Manifest:  # fmt: skip
        """JSON merge patch; a dry run is admitted or refused like any other, and not stored."""
        query = {"fieldManager": MANAGER, **({"dryRun": "All"} if dry_run else {})}
        return await self.request(
            "PATCH", kind.path(namespace, name, sub), query=query, body=patch, content="application/merge-patch+json"
        )

    async def patch(self, kind: Kind, namespace: str | None, name: str, steps: list[Manifest]) -> Manifest:
        """JSON patch."""
        return await self.request(
            "PATCH", kind.path(namespace, name), query={"fieldManager": MANAGER}, body=steps,
            content="application/json-patch+json",
        )  # fmt: skip

    async def create(self, kind: Kind, namespace: str | None, manifest: Manifest) -> Manifest:
        """Make an object."""
        return await self.request("POST", kind.path(namespace), query={"fieldManager": MANAGER}, body=manifest)

    async def replace(self, kind: Kind, namespace: str | None, manifest: Manifest, seconds: float) -> Manifest:
        """Replace an object as it was read: its resourceVersion guards it."""
        path = kind.path(namespace, manifest["metadata"]["name"])
        return await self.request("PUT", path, query={"fieldManager": MANAGER}, body=manifest, seconds=seconds)

    async def delete(self, kind: Kind, namespace: str | None, name: str, uid: str) -> None:
        """Delete exactly this object; one that is gone is fine."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self.request("DELETE", kind.path(namespace, name), body=body)
        except ApiError as error:
            if not error.not_found:
                raise

    async def minor_version(self) -> int:
        """Minor version of the API server."""
        response = await self.request("GET", "/version")
        return int("".join(filter(str.isdigit, str(response.get("minor", "0")))) or 0)

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server knows a kind."""
        try:
            found = await self.request("GET", f"/apis/{kind.group}/{kind.version}")
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return any(item.get("name") == kind.plural for item in found.get("resources", []))


def login(**_: Any) -> kopf.ConnectionInfo | None:
    """Credentials: the pod's service account, otherwise the kubeconfig's current context."""
    settings = kopf.OperatorSettings()
    return kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
