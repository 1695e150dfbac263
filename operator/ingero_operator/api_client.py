"""The client of the API server, and the only one: a few verbs, one error type, every request bounded and counted."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import kopf
import orjson

from ingero_contract.kubernetes import MANAGER
from ingero_operator.kinds import Manifest, ResourceKind

REQUEST_SECONDS: Final = 30.0
CHUNK: Final = 500
"""Objects per page of a list."""
RENEW_SECONDS: Final = 5.0
"""Least time between two renewals of the credentials."""
_TYPED: Final = "failed to create typed patch object"
"""The API server's message, with status 500, for an applied object that violates its schema."""
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiError(Exception):
    """A response other than success. `status` 0: no response at all."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        """Whether the object, or its kind, does not exist."""
        return self.status == 404

    @property
    def transient(self) -> bool:
        """Whether a retry may succeed without any change by a user."""
        return self.status in (0, 409, 429) or (self.status >= 500 and _TYPED not in self.message)


class ApiClient:
    """A connection to the API server. `namespaces` are those that `every` lists, all if empty; `renew` brings new
    credentials when the old ones are no longer accepted."""

    def __init__(
        self, connection: kopf.ConnectionInfo, namespaces: tuple[str, ...] = (),
        renew: Callable[[], kopf.ConnectionInfo | None] | None = None,
    ) -> None:  # fmt: skip
        self._connection = connection
        self.namespaces = namespaces
        self._renew = renew
        self._renewing = asyncio.Lock()
        self._renewed = -RENEW_SECONDS
        self._session: aiohttp.ClientSession | None = None
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
        if self._token and (self._connection.scheme or "Bearer") == "Bearer":
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    async def _renew_token(self, refused: str | None) -> bool:
        """Get a new token after a 401, from a file or an exec plugin; whether there is one other than `refused`."""
        if self._renew is None:
            return False
        async with self._renewing:
            if self._token == refused and time.monotonic() - self._renewed >= RENEW_SECONDS:
                connection = await asyncio.to_thread(self._renew)
                self._renewed = time.monotonic()
                self._token = connection.token if connection else None
        return self._token not in (refused, None)

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
        """One request; the decoded response. Raises `ApiError`."""
        token = self._token
        status, tree = await self._send(method, path, query, body, content, accept, seconds)
        if status == 401 and await self._renew_token(token):
            status, tree = await self._send(method, path, query, body, content, accept, seconds)
        if status >= 400:
            raise ApiError(status, str(tree.get("reason") or status), str(tree.get("message") or f"HTTP {status}"))
        return tree

    async def _send(
        self, method: str, path: str, query: dict[str, str] | None, body: Any, content: str, accept: str,
        seconds: float | None,
    ) -> tuple[int, Manifest]:  # fmt: skip
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
            raise _unreachable(error) from None
        return status, _decode(raw)

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Manifest | None:
        """One object, or nothing."""
        try:
            return await self.request("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def every(
        self, kind: ResourceKind, *, selector: str | None = None, metadata_only: bool = False
    ) -> AsyncIterator[Manifest]:
        """Every object of a kind in the watched namespaces, page by page; the kind is filled in."""
        for namespace in (kind.namespaced and self.namespaces) or (None,):
            async for page in self.pages(kind, namespace=namespace, selector=selector, metadata_only=metadata_only):
                for item in page.get("items") or []:
                    item.setdefault("kind", kind.name)
                    yield item

    async def pages(
        self,
        kind: ResourceKind,
        *,
        namespace: str | None = None,
        selector: str | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[Manifest]:
        """A collection, in pages. All pages are of one version, which the metadata of the first page names."""
        query = {"limit": str(CHUNK), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self.request(
                "GET", kind.path(namespace), query=query, accept=_METADATA if metadata_only else "application/json"
            )
            yield page
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            query["continue"] = token

    async def watch(self, kind: ResourceKind, version: str, seconds: int) -> AsyncIterator[bytes]:
        """Events of a cluster-scoped kind after a version, one JSON text each; ends after some seconds.

        Raises `ApiError`, also when the connection is lost.
        """
        assert self._session is not None
        self.requests["watch"] += 1
        query = {
            "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)
        }  # fmt: skip
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=seconds + REQUEST_SECONDS)
        headers = {**self._headers(), "Accept": "application/json"}
        try:
            async with self._session.get(
                kind.path().lstrip("/"), params=query, headers=headers, timeout=timeout
            ) as response:
                if response.status >= 400:
                    tree = _decode(await response.read())
                    raise ApiError(response.status, str(tree.get("reason")), str(tree.get("message")))
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(error) from None

    async def apply(
        self, kind: ResourceKind, manifest: Manifest, sub: str | None = None, *, manager: str = MANAGER
    ) -> Manifest:
        """Server-side apply: the operator owns the fields that it renders; fields that others added stay."""
        metadata = manifest["metadata"]
        return await self.request(
            "PATCH", kind.path(metadata.get("namespace"), metadata["name"], sub),
            query={"fieldManager": manager, "force": "true"}, body=manifest, content="application/apply-patch+yaml",
        )  # fmt: skip

    async def merge(
        self, kind: ResourceKind, namespace: str | None, name: str, patch: Manifest, sub: str | None = None, *,
        dry_run: bool = False,
    ) -> Manifest:  # fmt: skip
        """JSON merge patch; a dry run passes admission like any other patch, and is not stored."""
        query = {"fieldManager": MANAGER, **({"dryRun": "All"} if dry_run else {})}
        return await self.request(
            "PATCH", kind.path(namespace, name, sub), query=query, body=patch, content="application/merge-patch+json"
        )

    async def patch(self, kind: ResourceKind, namespace: str | None, name: str, steps: list[Manifest]) -> Manifest:
        """JSON patch."""
        return await self.request(
            "PATCH", kind.path(namespace, name), query={"fieldManager": MANAGER}, body=steps,
            content="application/json-patch+json",
        )  # fmt: skip

    async def create(self, kind: ResourceKind, namespace: str | None, manifest: Manifest) -> Manifest:
        """Create an object."""
        return await self.request("POST", kind.path(namespace), query={"fieldManager": MANAGER}, body=manifest)

    async def replace(
        self, kind: ResourceKind, namespace: str | None, manifest: Manifest, seconds: float
    ) -> Manifest:
        """Replace an object; its resourceVersion guards against writes since it was read."""
        path = kind.path(namespace, manifest["metadata"]["name"])
        return await self.request("PUT", path, query={"fieldManager": MANAGER}, body=manifest, seconds=seconds)

    async def delete(self, kind: ResourceKind, namespace: str | None, name: str, uid: str) -> None:
        """Delete exactly this object; succeeds if it is already gone."""
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

    async def may_list(self, kind: ResourceKind, namespace: str) -> str:
        """Why this account may not list a kind in a namespace; empty where it may."""
        try:
            await self.request("GET", kind.path(namespace), query={"limit": "1"})
        except ApiError as error:
            if error.status != 403:
                raise
            return error.message
        return ""

    async def serves(self, kind: ResourceKind) -> bool:
        """Whether the API server knows a kind."""
        try:
            found = await self.request("GET", f"/apis/{kind.group}/{kind.version}")
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return any(item.get("name") == kind.plural for item in found.get("resources", []))


def _decode(raw: bytes) -> Manifest:
    try:
        return dict(orjson.loads(raw)) if raw else {}
    except ValueError:
        return {"message": raw[:200].decode(errors="replace")}


def _unreachable(error: Exception) -> ApiError:
    return ApiError(0, "Unreachable", f"the API server did not answer: {error or type(error).__name__}")
