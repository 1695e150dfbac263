"""The lines of `/proc/PID/stat`."""


def stat_fields(text: str) -> list[str]:
    """The fields after a process's name, which may contain any character (proc(5)): its state, its parent, and on."""
    return text.rpartition(")")[2].split()
