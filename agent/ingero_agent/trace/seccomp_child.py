"""The test process of `seccomp.py`: calls a probed function with a seccomp filter such as a container has.

`seccomp_child.py DESCRIPTOR CALLS`: maps the code, reports that it is ready, waits for a line, installs a filter that
refuses newer system calls, calls the function, and ends with 0. A kernel whose return probes need such a system call
kills it.
"""

import ctypes
import os
import struct
import sys

NEWER = 335
"""System calls from this number on are refused: filters of containers may not know them."""

NO_NEW_PRIVILEGES, SET_FILTER, FILTER_MODE = 38, 22, 2
LOAD_NUMBER, JUMP_FROM, RETURN, REFUSE, ALLOW = 0x20, 0x35, 0x06, 0x00050001, 0x7FFF0000


def main() -> None:
    """Run the test."""
    descriptor, calls = int(sys.argv[1]), int(sys.argv[2])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    function = ctypes.CFUNCTYPE(None)(libc.mmap(None, 4096, 5, 2, descriptor, 0))
    rules = b"".join(
        struct.pack("=HBBI", *rule)
        for rule in ((LOAD_NUMBER, 0, 0, 0), (JUMP_FROM, 0, 1, NEWER), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW))
    )
    program = ctypes.create_string_buffer(rules, len(rules))
    header = struct.pack("=HxxxxxxQ", len(rules) // 8, ctypes.addressof(program))
    os.write(1, b"ready\n")
    os.read(0, 1)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    holder = ctypes.create_string_buffer(header, len(header))
    filtered = libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    filtered = filtered and libc.prctl(SET_FILTER, FILTER_MODE, ctypes.addressof(holder), 0, 0) == 0
    for _ in range(calls):
        function()
    os._exit(0 if filtered else 3)


if __name__ == "__main__":
    main()
