"""Archives with the same bytes from the same content: the chart as Helm reads it, and as an OCI artifact."""

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
CHART_CONFIG: Final = "application/vnd.cncf.helm.config.v1+json"
CHART_CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def tar(files: Mapping[str, bytes], epoch: int) -> bytes:
    """A tar of these files, all of one time and owner."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def chart_package(folder: Path, epoch: int) -> bytes:
    """What `helm package` makes of the folder, which writes the time of the build into it."""
    files = {
        f"{folder.name}/{file.relative_to(folder).as_posix()}": file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }
    return gzip.compress(tar(files, epoch), mtime=epoch)


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{sha256(content).hexdigest()}", "size": len(content)}


def chart_image(package: bytes, about: Mapping[str, Any], epoch: int) -> bytes:
    """The package as an OCI layout in a tar; `about` is the content of Chart.yaml, whose version is the tag."""
    config = json.dumps(about, sort_keys=True).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CHART_CONFIG, config),
            "layers": [_descriptor(CHART_CONTENT, package)],
            "annotations": {
                "org.opencontainers.image.title": about["name"],
                "org.opencontainers.image.version": about["version"],
            },
        }
    ).encode()
    tagged = _descriptor(MANIFEST, manifest) | {
        "annotations": {"org.opencontainers.image.ref.name": about["version"]}
    }
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [tagged]}).encode()
    blobs = {f"blobs/sha256/{sha256(content).hexdigest()}": content for content in (config, package, manifest)}
    return tar({"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index, **blobs}, epoch)
