"""Reads pickles that hold only plain data. Pure.

An interpreter for the few operations that dictionaries, lists, tuples, texts, bytes and numbers need. Operations that
import, call, build objects or load by name are not implemented: they are refused by name, not filtered. Sizes that a
pickle states are compared with the bytes that are present before anything is allocated.
"""

import pickletools
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

MAX_STEPS: Final = 50_000_000
"""Most operations of one pickle."""

MAX_DEPTH: Final = 64
"""Deepest nesting of containers."""

MAX_INTEGER_BYTES: Final = 9
"""Longest integer: 64 bits and a sign."""

_INT = Struct("<i")
_SHORT = Struct("<H")
_LONG = Struct("<I")
_HUGE = Struct("<Q")
_FLOAT = Struct(">d")
_NAMES: Final = {ord(op.code): op.name for op in pickletools.opcodes}
_KEYS: Final = (str, int, bytes, type(None))


class UnsafePickleError(ValueError):
    """Not a pickle of plain data; the text names the byte."""

    def __init__(self, place: int, text: str) -> None:
        super().__init__(f"byte {place}: {text}")


class _Mark:
    """Where a container's items begin on the stack."""


_MARK: Final = _Mark()


def load_plain_pickle(data: bytes, max_steps: int = MAX_STEPS) -> Any:
    """The value of a pickle. Raises `UnsafePickleError` for anything that is not plain data, or is too much of it."""
    machine = _Machine(data)
    for _ in range(max_steps):
        if machine.step():
            break
    else:
        raise UnsafePickleError(machine.place, f"more than {max_steps} operations")
    value = machine.pop()
    if machine.stack:
        raise UnsafePickleError(machine.place, "values are left over at the end")
    _check_depth(value)
    return value


class _Machine:
    """The stack, the memo, and the position in the bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self) -> bool:
        """Execute one operation; true at the end."""
        if self.place >= len(self.data):
            raise UnsafePickleError(self.place, "the pickle ends too early")
        code = self.data[self.place]
        if code == 0x2E:
            return True
        action = _ACTIONS.get(code)
        if action is None:
            name = _NAMES.get(code, f"0x{code:02x}")
            raise UnsafePickleError(self.place, f"{name} is no operation of plain data; nothing was carried out")
        self.place += 1
        action(self)
        return False

    def number(self, form: Struct) -> Any:
        """A number of fixed width."""
        (value,) = form.unpack(self.take(form.size))
        return value

    def take(self, size: int) -> bytes:
        """The next bytes, which must be present."""
        if size > len(self.data) - self.place:
            raise UnsafePickleError(
                self.place, f"{size} bytes are announced, {len(self.data) - self.place} are there"
            )
        piece = self.data[self.place : self.place + size]
        self.place += size
        return piece

    def text(self, size: int) -> str:
        """The next bytes as text."""
        try:
            return self.take(size).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise UnsafePickleError(self.place, "a text is not UTF-8") from None

    def pop(self) -> Any:
        """The topmost value."""
        if not self.stack or self.stack[-1] is _MARK:
            raise UnsafePickleError(self.place, "a value is missing")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """The topmost value, which must be of this type."""
        if not self.stack or type(self.stack[-1]) is not kind:
            raise UnsafePickleError(self.place, f"a {kind.__name__} was expected")
        return self.stack[-1]

    def items(self) -> list[Any]:
        """Remove the latest mark and everything above it; returns the values."""
        stack = self.stack
        for place in range(len(stack) - 1, -1, -1):
            if stack[place] is _MARK:
                found = stack[place + 1 :]
                del stack[place:]
                return found
        raise UnsafePickleError(self.place, "a mark is missing")

    def push(self, value: Any) -> None:
        """Put a value on top."""
        self.stack.append(value)

    def tuple_of(self, count: int) -> None:
        """Make a tuple of the topmost values."""
        self.push(tuple(reversed([self.pop() for _ in range(count)])))

    def set_items(self, into: dict[Any, Any], items: list[Any]) -> None:
        """Fill a dictionary from keys and values in turn."""
        if len(items) % 2:
            raise UnsafePickleError(self.place, "a key has no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, _KEYS):
                raise UnsafePickleError(self.place, f"a {type(key).__name__} is no key")
            into[key] = value

    def append_all(self) -> None:
        """Add everything above the mark to the list below it."""
        found = self.items()
        self.top(list).extend(found)

    def set_all(self) -> None:
        """Add everything above the mark to the dictionary below it."""
        found = self.items()
        self.set_items(self.top(dict), found)

    def new_dict(self) -> None:
        """A dictionary of everything above the mark."""
        found: dict[Any, Any] = {}
        self.set_items(found, self.items())
        self.push(found)

    def append_one(self) -> None:
        """Add one value to the list below it."""
        value = self.pop()
        self.top(list).append(value)

    def set_one(self) -> None:
        """Add one key and value to the dictionary below them."""
        value, key = self.pop(), self.pop()
        self.set_items(self.top(dict), [key, value])

    def put(self, index: int) -> None:
        """Remember the topmost value under a number."""
        value = self.pop()
        self.push(value)
        self.memo[index] = value

    def get(self, index: int) -> None:
        """Push a remembered value."""
        if index not in self.memo:
            raise UnsafePickleError(self.place, f"nothing is remembered as {index}")
        self.push(self.memo[index])

    def integer(self, size: int) -> None:
        """An integer of the given number of bytes."""
        if size > MAX_INTEGER_BYTES:
            raise UnsafePickleError(self.place, f"an integer of {size} bytes")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def protocol(self) -> None:
        """The protocol's number, which must be known."""
        number = self.take(1)[0]
        if number > 5:
            raise UnsafePickleError(self.place - 1, f"protocol {number} is not known")


def _check_depth(value: Any) -> None:
    """Refuse data that is nested too deeply; checks level by level, every container once."""
    seen: set[int] = set()
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise UnsafePickleError(0, f"more than {MAX_DEPTH} containers inside of each other")
        following: list[Any] = []
        for item in level:
            inner = item.values() if type(item) is dict else item if type(item) in (list, tuple) else ()
            if inner and id(item) not in seen:
                seen.add(id(item))
                following += inner
        level, depth = following, depth + 1


_Action = Callable[[_Machine], None]
_ACTIONS: Final[dict[int, _Action]] = {
    ord(code): action
    for code, action in {
        "\x80": _Machine.protocol,
        "\x95": lambda m: _ignore(m.number(_HUGE)),
        "(": lambda m: m.push(_MARK),
        "0": lambda m: _ignore(m.pop()),
        "1": lambda m: _ignore(m.items()),
        "N": lambda m: m.push(None),
        "\x88": lambda m: m.push(True),
        "\x89": lambda m: m.push(False),
        "J": lambda m: m.push(m.number(_INT)),
        "K": lambda m: m.push(m.take(1)[0]),
        "M": lambda m: m.push(m.number(_SHORT)),
        "\x8a": lambda m: m.integer(m.take(1)[0]),
        "G": lambda m: m.push(m.number(_FLOAT)),
        "X": lambda m: m.push(m.text(m.number(_LONG))),
        "\x8c": lambda m: m.push(m.text(m.take(1)[0])),
        "\x8d": lambda m: m.push(m.text(m.number(_HUGE))),
        "B": lambda m: m.push(m.take(m.number(_LONG))),
        "C": lambda m: m.push(m.take(m.take(1)[0])),
        "\x8e": lambda m: m.push(m.take(m.number(_HUGE))),
        "]": lambda m: m.push([]),
        "}": lambda m: m.push({}),
        ")": lambda m: m.push(()),
        "l": lambda m: m.push(m.items()),
        "t": lambda m: m.push(tuple(m.items())),
        "d": _Machine.new_dict,
        "\x85": lambda m: m.tuple_of(1),
        "\x86": lambda m: m.tuple_of(2),
        "\x87": lambda m: m.tuple_of(3),
        "a": _Machine.append_one,
        "e": _Machine.append_all,
        "s": _Machine.set_one,
        "u": _Machine.set_all,
        "q": lambda m: m.put(m.take(1)[0]),
        "r": lambda m: m.put(m.number(_LONG)),
        "h": lambda m: m.get(m.take(1)[0]),
        "j": lambda m: m.get(m.number(_LONG)),
        "\x94": lambda m: m.put(len(m.memo)),
    }.items()
}


def _ignore(_: Any) -> None:
    """Read a value that is not needed."""
