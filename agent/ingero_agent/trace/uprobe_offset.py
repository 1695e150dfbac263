"""Where to probe a function: past a landing mark, and whether its first instruction makes a probe dear. Pure.

The kernel replaces the first instruction by a trap. What it knows (a push, a jump, a call, a nop) it does itself;
anything else the processor must run alone, in a place of its own, with a second trap behind: several times the price.
"""

from typing import Final

PEEK_BYTES: Final = 16
_LANDING_MARK: Final = bytes.fromhex("f30f1efa")  # endbr64: does nothing, so that the place behind it is as good


def uprobe_offset(code: bytes, machine: str) -> tuple[int, bool]:
    """(Bytes to skip, whether it is dear) for a function that begins with this code.

    Only x86-64 is told apart; elsewhere the usual first instruction is dear, and measured as such.
    """
    if machine != "x86_64":
        return 0, False
    skip = len(_LANDING_MARK) if code.startswith(_LANDING_MARK) else 0
    return skip, not _emulated(code[skip:])


def _emulated(code: bytes) -> bool:
    first, second = (code + b"\0\0")[:2]
    if first == 0x41:  # a push of r8 to r15
        return 0x50 <= second <= 0x57
    if first == 0x0F:  # a conditional jump
        return 0x80 <= second <= 0x8F
    return 0x50 <= first <= 0x57 or 0x70 <= first <= 0x7F or first in (0x90, 0xE8, 0xE9, 0xEB)
