"""Finds the offset at which to probe a function, and whether its first instruction makes the probe expensive. Pure.

A uprobe replaces one instruction by a trap. The kernel emulates some instructions (push, jump, call, nop). Any other
one is single-stepped out of line, with a second trap behind it, which costs several times as much.
"""

from typing import Final

PEEK_BYTES: Final = 16
_LANDING_MARK: Final = bytes.fromhex("f30f1efa")  # endbr64 does nothing, so a probe behind it sees the same call


def uprobe_offset(code: bytes, machine: str) -> tuple[int, bool]:
    """(Bytes to skip, whether the probe is single-stepped) for a function that begins with this code.

    Only x86-64 is inspected. On other machines the usual first instruction is single-stepped, and calibration
    measures it as such.
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
