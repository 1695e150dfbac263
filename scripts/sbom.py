"""Prints the contents of an image as CycloneDX JSON: Python distributions and Debian packages.

`make images` runs it with the image's own interpreter, so that it lists what is actually installed.
"""

import json
import sys
from importlib.metadata import distributions
from pathlib import Path


def python_components() -> list[dict[str, str]]:
    """Installed Python distributions."""
    found = {(item.metadata["Name"].lower().replace("_", "-"), item.version) for item in distributions()}
    return [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in sorted(found)
    ]


def debian_components(status: Path = Path("/var/lib/dpkg/status")) -> list[dict[str, str]]:
    """Installed Debian packages."""
    if not status.exists():
        return []
    found = []
    for block in status.read_text(errors="replace").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status") == "install ok installed":
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{name}@{version}?arch={fields.get('Architecture', '')}"
            found.append({"type": "library", "name": name, "version": version, "purl": purl})
    return sorted(found, key=lambda item: item["name"])


def main() -> None:
    """Print the document."""
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": sys.argv[1] if len(sys.argv) > 1 else "ingero"}},
        "components": [*python_components(), *debian_components()],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
