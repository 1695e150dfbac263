"""Adds the node's provider to exported metrics. Pure.

Only the resource block, which names the node, is replaced by one with the provider. Replacements are cached by the
block's bytes; the metrics themselves are never decoded.
"""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ingero_contract import attributes
from ingero_contract.identifiers import NodeKey, node_key
from ingero_fleet.cost.providers import ProviderMap
from ingero_kit.gpu_rates import ALIASES
from ingero_kit.otlp_wire import UnsupportedLayout, iter_fields, write_varint

MAX_REMEMBERED: Final = 65_536
"""Blocks in the cache; it is cleared when full."""

_FIRST_FIELD: Final = b"\x0a"
"""Key of field 1 with a length: the resource blocks of a request, and the resource of a block."""


class ProviderTag:
    """Adds providers. A rule counts first, then what the sender named, then what else is known about the node."""

    def __init__(self, providers: ProviderMap, reported: Callable[[NodeKey], str]) -> None:
        """`reported` is the provider that a node's health report named, empty when it named none."""
        self._providers = providers
        self._reported = reported
        self._known: dict[tuple[str, bytes], bytes] = {}
        self._unknown: dict[tuple[str, bytes], NodeKey] = {}

    def __call__(self, body: bytes, cluster: str) -> bytes:
        """Return a protobuf metrics request with providers; `cluster` overrides the payload's.

        A request whose fields are not in the usual order of encoders is returned unchanged.
        """
        parts: list[bytes] = []
        try:
            for block in iter_fields(body, 0, len(body)):
                resource = next(iter_fields(body, block.start, block.end), None)
                if block.number != 1 or resource is None or resource.number != 1:
                    return body
                named = self._named(body[resource.start : resource.end], cluster)
                parts.append(_wrap(_wrap(named) + body[resource.end : block.end]))
        except (IndexError, UnsupportedLayout):
            return body
        return b"".join(parts)

    def _named(self, resource: bytes, cluster: str) -> bytes:
        key = cluster, resource
        if key in self._known:
            return self._known[key]
        if key in self._unknown and not self._reported(self._unknown[key]):
            return resource
        try:
            message = Resource.FromString(resource)
        except DecodeError:
            return resource
        texts = {pair.key: pair.value.string_value for pair in message.attributes}
        node = node_key(cluster or texts.get(attributes.CLUSTER_ID, ""), texts.get(attributes.NODE_ID, ""))
        named = texts.get(attributes.PROVIDER, "")
        provider = self._providers.find(node, named or self._reported(node)) if node[1] else named
        provider = ALIASES.get(provider, provider)
        if not provider:
            # Its health report may still arrive.
            if len(self._unknown) >= MAX_REMEMBERED:
                self._unknown.clear()
            self._unknown[key] = node
            return resource
        tagged = resource if provider == named else _with_provider(message, provider)
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[key] = tagged
        return tagged


def _with_provider(message: Resource, provider: str) -> bytes:
    others = [pair for pair in message.attributes if pair.key != attributes.PROVIDER]
    del message.attributes[:]
    message.attributes.extend(others)
    message.attributes.append(KeyValue(key=attributes.PROVIDER, value=AnyValue(string_value=provider)))
    return message.SerializeToString()


def _wrap(content: bytes) -> bytes:
    """Field 1 with this content."""
    return _FIRST_FIELD + write_varint(len(content)) + content
