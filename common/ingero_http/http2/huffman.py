"""The Huffman code of HPACK strings (RFC 7541, 5.2 and Appendix B). Decoding only: blocks are sent plain. Pure."""

from functools import cache
from typing import Final

BY_LENGTH: Final[dict[int, bytes]] = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf"
    b"\xc5\xe7\xef",
    24: b"\x09\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
    b"\x7f\xdc\xf9",
    30: b"\n\r\x16",
}
"""The bytes by the length of their code in bits. The code is canonical, so the lengths define it; the last code,
thirty ones, is the end of string."""

_END: Final = 256
_PADDING_BITS: Final = 7


class HuffmanError(ValueError):
    """Not a string of this code."""


def codes() -> dict[int, tuple[int, int]]:
    """Every symbol's (code, length in bits); 256 is the end of string."""
    out: dict[int, tuple[int, int]] = {}
    code = length = 0
    for bits, symbols in BY_LENGTH.items():
        for symbol in (*symbols, _END) if bits == 30 else symbols:
            code <<= bits - length
            length = bits
            out[symbol] = (code, bits)
            code += 1
    return out


@cache
def _automaton() -> tuple[list[list[tuple[int, int]]], frozenset[int]]:
    """For each node of the code's tree and each half byte: the next node, and the byte that is complete, or -1.

    -2 stands for the end of string, which a string must not contain. The second part is the nodes where a string may
    end: after at most seven ones of padding.
    """
    children: list[list[int]] = [[0, 0]]
    leaves: dict[tuple[int, int], int] = {}
    for symbol, (code, bits) in codes().items():
        node = 0
        for shift in range(bits - 1, 0, -1):
            bit = code >> shift & 1
            if not children[node][bit]:
                children.append([0, 0])
                children[node][bit] = len(children) - 1
            node = children[node][bit]
        leaves[node, code & 1] = -2 if symbol == _END else symbol
    rows = []
    for start in range(len(children)):
        row = []
        for half in range(16):
            node, done = start, -1
            for shift in (3, 2, 1, 0):
                bit = half >> shift & 1
                done = leaves.get((node, bit), done) if done != -2 else done
                node = children[node][bit]
            row.append((node, done))
        rows.append(row)
    ends, node = [0], 0
    for _ in range(_PADDING_BITS):
        node = children[node][1]
        ends.append(node)
    return rows, frozenset(ends)


def decode(text: bytes) -> bytes:
    """Decode a string.

    Raises `HuffmanError` for an end-of-string code, and for padding that is longer than seven bits or not all ones.
    """
    rows, ends = _automaton()
    out, node = bytearray(), 0
    for byte in text:
        node, first = rows[node][byte >> 4]
        node, second = rows[node][byte & 15]
        if first >= 0:
            out.append(first)
        if second >= 0:
            out.append(second)
        if first == -2 or second == -2:
            raise HuffmanError("an end of string inside a string")
    if node not in ends:
        raise HuffmanError("wrong padding")
    return bytes(out)
