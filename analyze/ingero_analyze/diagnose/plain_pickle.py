"""Reads pickles that hold only plain data. Pure.

The standard library's unpickler in Python, with only those operations that dictionaries, lists, tuples, texts, bytes
and numbers need. Operations that import, call, build objects or load by name are refused by name, not filtered. A
pickle that states a size cannot make it allocate more than the bytes that are present.
"""

import io
import pickle
import pickletools
import struct
from collections.abc import Callable
from typing import Any, Final

MAX_STEPS: Final = 50_000_000
"""Most operations of one pickle."""

MAX_DEPTH: Final = 64
"""Deepest nesting of containers."""

MAX_INTEGER_BITS: Final = 64

_NAMES: Final = {ord(op.code): op.name for op in pickletools.opcodes}
_PLAIN: Final = frozenset((
    "PROTO", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",
    "INT", "LONG", "FLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "PUT", "GET",
))  # fmt: skip
_OPERATIONS: Final[dict[int, Callable[[Any], object]]] = {
    **{code: pickle._Unpickler.dispatch[code] for code, name in _NAMES.items() if name in _PLAIN},
    ord(pickle.FRAME): lambda machine: machine.read(8),
}
_SET_ITEM: Final = ord(pickle.SETITEM)
_FILLS: Final = frozenset((_SET_ITEM, ord(pickle.SETITEMS), ord(pickle.DICT)))
"""Operations that fill a dictionary."""

_KEYS: Final = (str, int, bytes, type(None))
_INVALID: Final = (
    pickle.UnpicklingError, struct.error, LookupError, AttributeError, TypeError, ValueError, OverflowError,
)  # fmt: skip
"""Errors of the unpickler for operations without the operands that they need."""


class UnsafePickleError(Exception):
    """Not a pickle of plain data; the text names the byte."""

    def __init__(self, place: int, text: str) -> None:
        super().__init__(f"byte {place}: {text}")


class _PlainUnpickler(pickle._Unpickler):
    stack: list[Any]

    def __init__(self, data: bytes, max_steps: int) -> None:
        self.bytes = io.BytesIO(data)
        super().__init__(self.bytes)
        self.dispatch: Any = self  # type: ignore[misc]
        self._max_steps = self._steps_left = max_steps

    def __getitem__(self, code: int) -> Callable[[Any], object]:
        """The operation with this code, if it is one of plain data."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise UnsafePickleError(self.bytes.tell(), f"more than {self._max_steps} operations")
        operation = _OPERATIONS.get(code)
        if operation is None:
            name = _NAMES.get(code, f"0x{code:02x}")
            text = f"{name} is no operation of plain data; nothing was carried out"
            raise UnsafePickleError(self.bytes.tell() - 1, text)
        if code in _FILLS:
            for key in self.stack[-2:-1] if code == _SET_ITEM else self.stack[::2]:
                if not isinstance(key, _KEYS):
                    raise UnsafePickleError(self.bytes.tell(), f"a {type(key).__name__} is no key")
        return operation


def load_plain_pickle(data: bytes, max_steps: int = MAX_STEPS) -> Any:
    """The value of a pickle. Raises `UnsafePickleError` for anything that is not plain data, or is too much of it."""
    machine = _PlainUnpickler(data, max_steps)
    try:
        value = machine.load()
    except EOFError:
        raise UnsafePickleError(len(data), "the pickle ends too early") from None
    except _INVALID as error:
        raise UnsafePickleError(machine.bytes.tell(), f"no valid pickle: {error}") from None
    if machine.stack or getattr(machine, "metastack", None):
        raise UnsafePickleError(machine.bytes.tell(), "values are left over at the end")
    _check(value)
    return value


def _check(value: Any) -> None:
    """Refuse data that is nested too deeply, and wide integers; checks level by level, every container once."""
    seen: set[int] = set()
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise UnsafePickleError(0, f"more than {MAX_DEPTH} containers inside of each other")
        following: list[Any] = []
        for item in level:
            if type(item) is int and item.bit_length() > MAX_INTEGER_BITS:
                raise UnsafePickleError(0, f"an integer of more than {MAX_INTEGER_BITS} bits")
            inner = item.values() if type(item) is dict else item if type(item) in (list, tuple) else ()
            if inner and id(item) not in seen:
                seen.add(id(item))
                following += inner
        level, depth = following, depth + 1
