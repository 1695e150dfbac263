"""What of the quickstarts is played with the files of a release, and how their output is told."""

import re
from pathlib import Path

import pytest

from scripts.pages import Block, PageFailed, blocks_of, compare, script, transcript
from scripts.release_quickstarts import FOLDER, LEFT, PACKAGES, PAGES, SUITES, environment, parts, played
from scripts.release_requirements import EXTRAS


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_are_installed_from_the_release_first(page: str) -> None:
    installs, rest = parts(page)

    installed = {name for name in EXTRAS if any(f"requirements-{name}.txt" in block.text for block in installs)}
    used = {name for name in EXTRAS if any(f"ingero-{name} " in block.text for block in rest)}
    assert used and used <= installed
    assert "make setup" not in "".join(block.text for block in [*installs, *rest])
    assert "python3 -m venv" in installs[0].text


def test_every_quickstart_that_needs_no_cluster_is_played() -> None:
    assert {*PAGES, "kubernetes"} == {file.stem for file in FOLDER.glob("*.md")}


def test_the_pages_name_the_packages_of_the_root() -> None:
    text = "".join((FOLDER / f"{page}.md").read_text() for page in PAGES)

    assert all(f"`{name}`" in text for name in PACKAGES if name not in ("python3", "python3-venv", "ca-certificates"))


def test_nothing_of_this_machine_reaches_a_root_but_its_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGERO_IMAGES", "1")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")

    found = environment("1.2.3")

    assert set(found) - {"http_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} == {
        "https_proxy", "HOME", "PATH", "LANG", "VERSION", "PIP_CERT",
    }  # fmt: skip


def test_a_page_that_cannot_be_played_is_named_with_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    rows = list(played(tmp_path, "1.2.3", None, "quickstart slurm"))

    assert [row.what for row in rows] == [f"{suite.system}: quickstart slurm" for suite in SUITES]
    assert all(row.skipped and row.problem.startswith("needs ") for row in rows)


def test_what_the_page_for_kubernetes_leaves_is_all_that_it_makes() -> None:
    text = "".join(block.text for block in blocks_of(FOLDER / "kubernetes.md"))
    made = {"ingero-system"} | set(re.findall(r"kind: Namespace\nmetadata:\s*\{?\s*name: ([a-z-]+)", text))

    (removed,) = re.findall(r"kubectl delete namespace ([a-z -]+) --ignore", LEFT)
    assert set(removed.split()) == made
    assert "helm uninstall ingero " in LEFT and "helm install ingero " in text


def test_a_transcript_has_each_command_before_its_output() -> None:
    blocks = [Block("sh", "echo a\necho b\n"), Block("text", "b\n"), Block("sh", "echo c\n")]
    output = "a\nb\n=== 0\nc\n=== 2\n"

    assert transcript(blocks, output) == "$ echo a\n$ echo b\na\nb\n\n$ echo c\nc\n"
    assert script(blocks).count("===") == 2
    compare(blocks, output, "page")


def test_a_transcript_ends_with_what_failed() -> None:
    blocks = [Block("sh", "false\n"), Block("sh", "echo c\n")]

    assert transcript(blocks, "no such file\n") == "$ false\nno such file\n"


def test_other_output_than_the_page_says_is_named() -> None:
    with pytest.raises(PageFailed, match="page: 'ready' is not in"):
        compare([Block("sh", "echo a\n"), Block("text", "ready\n")], "a\n=== 0\n", "page")
