"""Says how to install what an optional part needs. No index has a package of this project's name that is ours."""

import re
import shlex

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def pip_command(extra: str) -> str:
    """The command that installs what is missing of an extra; all of it where the metadata does not say what is."""
    from importlib.metadata import PackageNotFoundError, requires  # slow to load, and rarely needed

    try:
        needed = [
            one.partition(";")[0].strip()
            for one in requires("ingero") or []
            if re.search(rf"""extra == ['"]{re.escape(extra)}['"]""", one)
        ]
    except PackageNotFoundError:
        needed = []
    wanted = [one for one in needed if not _installed(one)] or needed or [f".[{extra}]"]
    return shlex.join(["pip", "install", *wanted])


def _installed(requirement: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    name = _NAME.match(requirement)
    try:
        return bool(name and version(name[0]))
    except PackageNotFoundError:
        return False
