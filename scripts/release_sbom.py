"""An SPDX document for each artifact: its own hash, and what it contains or needs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any, Final, Literal
from uuid import NAMESPACE_URL, uuid5

from license_expression import ExpressionError, get_spdx_licensing
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from scripts.release_requirements import Lock, LockedPackage

ROOT_ID: Final = "SPDXRef-artifact"
UNKNOWN: Final = "NOASSERTION"
Relation = Literal["CONTAINS", "DEPENDS_ON"]
_LICENSING: Final = get_spdx_licensing()


@dataclass(frozen=True)
class Artifact:
    """A file of the release."""

    file: str
    version: str
    digest: str
    purpose: Literal["LIBRARY", "SOURCE", "CONTAINER", "INSTALL"]


@dataclass(frozen=True)
class Part:
    """A package that an artifact contains or needs; any file of it has one of these SHA-256 hashes."""

    name: str
    version: str
    purl: str
    hashes: tuple[str, ...] = ()


def parts_of(packages: Iterable[LockedPackage]) -> list[Part]:
    """Entries of the lock as parts."""
    return [Part(item.name, item.version, f"pkg:pypi/{item.name}@{item.version}", item.hashes) for item in packages]


def image_parts(listing: Mapping[str, Any], lock: Lock) -> list[Part]:
    """What `scripts/sbom.py` has listed inside of an image; the lock adds the hashes of Python packages."""
    parts = []
    for item in listing["components"]:
        entries = lock.get(item["name"], ()) if item["purl"].startswith("pkg:pypi/") else ()
        hashes = [entry.hashes for entry in entries if entry.version == item["version"]]
        parts.append(Part(item["name"], item["version"], item["purl"], hashes[0] if hashes else ()))
    return parts


def _license(part: Part) -> str:
    """What the installed distribution of this name declares, where that is an expression of SPDX."""
    if not part.purl.startswith("pkg:pypi/"):
        return UNKNOWN
    try:
        declared = metadata(part.name)
        text = str(declared["License-Expression"] or declared["License"] or UNKNOWN)
        return text if text == UNKNOWN else str(_LICENSING.parse(text, validate=True))
    except (PackageNotFoundError, KeyError, ExpressionError):
        return UNKNOWN


def _checksums(*digests: str) -> list[dict[str, str]]:
    return [{"algorithm": "SHA256", "checksumValue": digest} for digest in digests]


def _package(part: Part, number: int) -> dict[str, Any]:
    purl = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": part.purl}
    return {
        "SPDXID": f"SPDXRef-{number}-{re.sub(r'[^A-Za-z0-9.-]', '-', part.name)}",
        "name": part.name,
        "versionInfo": part.version,
        "downloadLocation": UNKNOWN,
        "filesAnalyzed": False,
        "licenseDeclared": _license(part),
        "externalRefs": [purl],
        **({"checksums": _checksums(*part.hashes)} if part.hashes else {}),
    }


def sbom(artifact: Artifact, parts: Iterable[Part], relation: Relation, epoch: int) -> dict[str, Any]:
    """The document; `relation` is that of the artifact to its parts. The same arguments give the same document."""
    packages = [_package(part, number) for number, part in enumerate(parts, 1)]
    root = {
        "SPDXID": ROOT_ID,
        "name": "ingero",
        "versionInfo": artifact.version,
        "packageFileName": artifact.file,
        "supplier": "Organization: ingero",
        "downloadLocation": UNKNOWN,
        "filesAnalyzed": False,
        "checksums": _checksums(artifact.digest),
        "licenseDeclared": "Apache-2.0",
        "primaryPackagePurpose": artifact.purpose,
    }
    links = [("SPDXRef-DOCUMENT", "DESCRIBES", ROOT_ID), *((ROOT_ID, relation, item["SPDXID"]) for item in packages)]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": artifact.file,
        "documentNamespace": f"urn:uuid:{uuid5(NAMESPACE_URL, f'ingero/{artifact.file}/{artifact.digest}')}",
        "creationInfo": {
            "created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Organization: ingero", f"Tool: ingero-make-release-{artifact.version}"],
        },
        "packages": [root, *packages],
        "relationships": [
            {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}
            for element, kind, related in links
        ],
    }


def problems(document: dict[str, Any]) -> list[str]:
    """What the validator of SPDX's own library complains about."""
    parsed = JsonLikeDictParser().parse(document)  # type: ignore[no-untyped-call]
    return [item.validation_message for item in validate_full_spdx_document(parsed)]
