"""gRPC calls whose messages are plain bytes."""

import grpc
import grpc.aio


def _unchanged(message: bytes) -> bytes:
    return message


def unary(channel: grpc.Channel, method: str) -> "grpc.UnaryUnaryMultiCallable[bytes, bytes]":
    """A method with one request and one response, both in wire format."""
    return channel.unary_unary(method, request_serializer=_unchanged, response_deserializer=_unchanged)


def stream_unary(channel: grpc.Channel, method: str) -> "grpc.StreamUnaryMultiCallable[bytes, bytes]":
    """A method with many requests and one response."""
    return channel.stream_unary(method, request_serializer=_unchanged, response_deserializer=_unchanged)


def unary_later(channel: grpc.aio.Channel, method: str) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]":
    """Like `unary`, to be awaited."""
    return channel.unary_unary(method, request_serializer=_unchanged, response_deserializer=_unchanged)
