"""gRPC calls whose messages are plain bytes."""

import grpc


def _unchanged(message: bytes) -> bytes:
    return message


def unary(channel: grpc.Channel, method: str) -> "grpc.UnaryUnaryMultiCallable[bytes, bytes]":
    """A method with one request and one response, both left as they are on the wire."""
    return channel.unary_unary(method, request_serializer=_unchanged, response_deserializer=_unchanged)
