"""The documents keep up with the code."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

from ingero_contract import echo, routes

ROOT = Path(__file__).parents[2]
PREFIXES = (
    "ingero_fleet_",
    "ingero_sink_",
    "ingero_node_",
    "ingero_echo_",
    "ingero_trace_",
    "ingero_ringbuf_",
    "gpu_",
)
PAGES = (
    "fleet/ingero_fleet/collectors.py",
    "agent/ingero_sink/collector.py",
    "agent/ingero_agent/trace/collector.py",
    "echo/ingero_echo/collector.py",
)


def test_generated_documents_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.generate", "--check"], cwd=ROOT, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


def test_every_metric_of_a_page_is_documented() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    kept = (ROOT / "fleet/ingero_fleet").glob("*/*.py")
    sources = [*(ROOT / page for page in PAGES), *(file for file in kept if file.stem in ("collector", "tracker"))]
    names = {
        name
        for source in sources
        for name in re.findall(r'"((?:ingero|gpu)_[a-z_]+)"', source.read_text())
        if name.startswith(PREFIXES)
    }

    assert names
    assert sorted(name for name in names if name not in text) == []


def test_every_make_target_in_the_documents_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    wanted = {name for page in documents for name in re.findall(r"\bmake ([a-z][a-z0-9-]*)", page.read_text())}

    assert {target for target in wanted if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()


def test_every_path_of_an_api_in_the_documents_is_one_of_the_contract() -> None:
    served = {path for module in (echo, routes) for path in vars(module).values() if isinstance(path, str)}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    written = {
        path for page in pages for path in re.findall(r"/api/v\d+/[a-z]+(?:/[a-z]+)*(?:\.json|/)?", page.read_text())
    }

    assert written > {echo.SQL, routes.FLEET_WHY}
    assert written - served == set()


def test_the_repository_names_no_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        return
    forbidden = re.compile(r"/work/|/root/|files\.pythonhosted")
    offenders = [
        name
        for name in listed.stdout.split()
        if name != "tests/common/test_docs.py" and forbidden.search((ROOT / name).read_text(errors="replace"))
    ]

    assert offenders == []


def test_the_navigation_of_the_site_lists_every_document_once() -> None:
    found: list[str] = []

    def collect(item: object) -> None:
        if isinstance(item, str):
            found.append(item)
        else:
            for part in item.values() if isinstance(item, dict) else item:  # type: ignore[attr-defined]
                collect(part)

    collect(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])

    assert sorted(found) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_the_site_is_built_without_a_broken_link() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict", "-f", "mkdocs.yml"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert (ROOT / ".tools/site/quickstart/one-host/index.html").exists()
