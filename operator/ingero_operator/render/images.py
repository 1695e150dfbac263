"""Which image a component runs, and which ones a resource may ask for. Pure."""

from collections.abc import Iterable
from typing import Final

LOCAL: Final = "localhost"
"""The registry name of images that only `make images` has built. No registry serves this name, so a forgotten setting
fails instead of pulling an image that someone else publishes under the same name."""
IMAGE: Final = "ingero/{component}:{version}"
COMPONENTS: Final = ("fleet", "agent", "sink", "echo")
ANY: Final = "*"


def qualified(image: str) -> bool:
    """Whether an image names its registry itself."""
    host, slash, _ = image.partition("/")
    return bool(slash) and (host == LOCAL or bool(set(".:") & set(host)))


def image_name(template: str, registry: str, component: str, version: str) -> str:
    """Name of an image in a registry; a name that includes its registry is unchanged."""
    name = template.format(component=component, version=version)
    return name if qualified(name) or not registry else f"{registry.rstrip('/')}/{name}"


def repository(image: str) -> str:
    """An image without tag and digest, its registry written out as a container runtime reads it."""
    folder, slash, name = image.split("@", 1)[0].rpartition("/")
    path = f"{folder}{slash}{name.split(':', 1)[0]}"
    host, _, rest = path.partition("/")
    if not rest:
        return f"docker.io/library/{path}"
    if host != LOCAL and not set(".:") & set(host):
        return f"docker.io/{path}"
    return f"docker.io/{rest}" if host == "index.docker.io" else path


def is_allowed(image: str, entries: Iterable[str]) -> bool:
    """Whether an image is in one of these repositories, or below one that ends with a slash."""
    found = repository(image)
    return any(entry == ANY or _holds(entry, found) for entry in entries)


def _holds(entry: str, found: str) -> bool:
    return found.startswith(repository(f"{entry}x")[:-1]) if entry.endswith("/") else found == repository(entry)
