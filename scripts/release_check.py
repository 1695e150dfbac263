"""Verifies and installs a release by the commands of docs/release.md in a fresh folder, and prints a transcript.

What `make release` made is copied; the fenced commands of the parts for users run there, in their order. A comment
above a fence says on which releases it runs, which program it needs, and whether it runs for each program or image.
Then the quickstarts are played in fresh roots.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from scripts import steps
from scripts.release import (
    IMAGES,
    PACKAGES,
    ROOT,
    SUMS,
    file_digest,
    make,
    package_name,
    project_version,
)
from scripts.release_images import ARCHITECTURES, architecture, image_name, no_start
from scripts.release_quickstarts import fresh_storage, played
from scripts.release_requirements import EXTRAS

PARTS: Final = ("Verify what you downloaded", "Install what you downloaded")
BY_WORKFLOW: Final = "signed by the workflow"
BY_KEY: Final = "signed with a key"
_FENCE: Final = re.compile(r"(?:<!-- release-check: (.*?) -->\n)?```sh\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Commands of the page, and the conditions of its comment."""

    part: str
    commands: str
    conditions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The first command, shortened."""
        return self.commands.splitlines()[0].rstrip(" \\")[:60]

    @property
    def needs(self) -> str | None:
        """The program without which it cannot run."""
        return next((item.removeprefix("needs ") for item in self.conditions if item.startswith("needs ")), None)


@dataclass(frozen=True)
class Row:
    """One line of the table at the end."""

    what: str
    result: str
    seconds: float = 0.0


def blocks(page: str) -> list[Block]:
    """The commands of the parts for users, in the order of the page."""
    found = []
    for part in PARTS:
        text = re.split(r"^## ", page, flags=re.MULTILINE)
        (body,) = (section for section in text if section.startswith(f"{part}\n"))
        for conditions, commands in _FENCE.findall(body):
            found.append(Block(part, commands, tuple(conditions.split("; ")) if conditions else ()))
    return found


def repetitions(block: Block, folder: Path, version: str) -> list[dict[str, str]]:
    """The variables of each run of a block: one run, or one for each program or file that the folder has."""
    if "for each PROGRAM" in block.conditions:
        return [{"PROGRAM": name} for name in EXTRAS]
    if "for each IMAGE" in block.conditions:
        return [
            {"IMAGE": name, "ARCH": each}
            for each in ARCHITECTURES
            for name in IMAGES
            if (folder / image_name(name, version, each)).exists()
        ]
    if "for each PACKAGE" in block.conditions:
        return [{"PACKAGE": name} for name in PACKAGES if (folder / package_name(name, version)).exists()]
    return [{}]


def skipped(block: Block, by_key: bool, path: str) -> str | None:
    """Why a block does not run for this release on this machine."""
    if (BY_WORKFLOW if by_key else BY_KEY) in block.conditions:
        return f"not {BY_WORKFLOW if by_key else BY_KEY}"
    if block.needs and not shutil.which(block.needs, path=path):
        return f"needs {block.needs}"
    return None


def _execute(block: Block, folder: Path, variables: Mapping[str, str], path: str, named: str) -> Row:
    click.echo(f"\n{named}$ {block.commands.rstrip()}")
    began = time.monotonic()
    done = steps.command(
        ["bash", "-euo", "pipefail", "-c", block.commands], folder, os.environ | {"PATH": path, **variables},
        errors=subprocess.STDOUT,
    )  # fmt: skip
    click.echo(done.stdout.rstrip())
    result = "ok" if done.returncode == 0 else f"FAILED: exit status {done.returncode}"
    return Row(f"{named}{block.title}", result, time.monotonic() - began)


def executed(page: str, folder: Path, version: str, only: str = "") -> Iterator[Row]:
    """The result of each command of the page in this folder, or of those that contain a text."""
    tools = [str(ROOT / ".tools/bin"), str(ROOT / ".venv/bin")]
    path = os.pathsep.join([os.environ["PATH"], *tools])
    about = {"VERSION": version, "ARCH": architecture(), "REPOSITORY": os.environ.get("GITHUB_REPOSITORY", "")}
    about |= fresh_storage(folder.parent)
    by_key = (folder / "release.pub").exists()
    for block in (block for block in blocks(page) if only in block.commands):
        if reason := skipped(block, by_key, path):
            yield Row(block.title, f"skipped: {reason}")
            continue
        runs = repetitions(block, folder, version)
        if not runs:
            yield Row(block.title, "skipped: this release has no such file")
        for chosen in runs:
            named = f"{' '.join(chosen.values())}: " if chosen else ""
            if missing := no_start(chosen.get("ARCH", architecture())):
                yield Row(f"{named}{block.title}", f"skipped: needs {missing}")
            else:
                yield _execute(block, folder, about | chosen, path, named)


def quickstarts(release: Path, version: str, keyring: Path | None, only: str) -> Iterator[Row]:
    """The result of each quickstart in fresh roots; its commands and their output are printed."""
    for page in played(release, version, keyring, only):
        click.echo(f"\n{page.what}\n{page.transcript.rstrip()}")
        prefix = "skipped: " if page.skipped else "FAILED: "
        yield Row(page.what, f"{prefix}{page.problem}" if page.problem else "ok", page.seconds)


def origin(release: Path) -> tuple[str, str]:
    """Version and commit of a release by its provenance."""
    (file,) = release.glob("ingero-*.provenance.json")
    definition = json.loads(file.read_text())["predicate"]["buildDefinition"]
    (source,) = definition["resolvedDependencies"]
    return definition["externalParameters"]["version"], source["digest"]["gitCommit"]


def compared(release: Path, version: str, commit: str) -> Iterator[Row]:
    """Whether a second build gives the same bytes of everything but signature, SBOMs and images."""
    with tempfile.TemporaryDirectory(prefix="ingero-release-again-") as folder:
        again = Path(folder) / "again"
        make(again, version, images=False, commit=commit)
        names = sorted(file.name for file in again.iterdir() if not file.name.startswith((SUMS, "release.pub")))
        for name in names:
            if name.endswith((".spdx.json", ".provenance.json")):
                continue
            equal = (release / name).exists() and file_digest(release / name) == file_digest(again / name)
            yield Row(f"{name} built again", "the same bytes" if equal else "FAILED: other bytes")


def _print(rows: list[Row], release: Path) -> None:
    click.echo("\n| what | result | seconds |\n| --- | --- | --- |")
    for row in rows:
        click.echo(f"| `{row.what}` | {row.result} | {row.seconds:.1f} |")
    click.echo("\n| file | MB | SHA-256 |\n| --- | --- | --- |")
    for file in sorted(release.iterdir()):
        if not file.name.endswith(".spdx.json"):
            click.echo(f"| {file.name} | {file.stat().st_size / 1e6:.2f} | {file_digest(file)[:16]} |")


@click.command()
@click.option("--release", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another folder.")
@click.option(
    "--only", default="", help="Only the commands and quickstarts that contain this text, such as helm or slurm."
)
@click.option("--strict", is_flag=True, help="What is skipped for a missing program is a failure.")
@click.option("--again/--no-again", default=True, help="Build a second time and compare.")
@click.option(
    "--keyring", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Ubuntu's archive keys."
)
def main(release: Path | None, only: str, strict: bool, again: bool, keyring: Path | None) -> None:
    """Verify and install a release as its users do; exit status 1 if anything fails."""
    release = release or ROOT / f"dist/release-{project_version()}"
    if not (release / SUMS).exists():
        raise click.ClickException(f"{release} has no {SUMS}: make release")
    version, commit = origin(release)
    steps.end_by_signals()
    with tempfile.TemporaryDirectory(prefix="ingero-release-check-") as folder:
        fresh = Path(folder) / "download"
        shutil.copytree(release, fresh)
        rows = list(executed((ROOT / "docs/release.md").read_text(), fresh, version, only))
        rows += quickstarts(release, version, keyring, only)
    if again:
        rows += compared(release, version, commit)
    _print(rows, release)
    bad = ("FAILED", "skipped: needs") if strict else ("FAILED",)
    wrong = [row for row in rows if row.result.startswith(bad)]
    if wrong:
        raise click.ClickException(f"{len(wrong)} of {len(rows)} rows are not as they must be")


if __name__ == "__main__":
    main()
