"""What the demos in real pods read: pages of metrics, the example with NATS, and the folder of a running cluster."""

import subprocess
from pathlib import Path

import pytest

from scripts.demo_pods_ha import example
from scripts.lab import LabFailed, laboratory
from scripts.pod_faults import total
from scripts.pod_lab import IMAGES, SOURCES, Nodes, nodes, origin_of_images


def test_a_counter_is_summed_over_its_labels_and_not_confused_with_another() -> None:
    page = '# TYPE pushes_total counter\npushes_total 5.0\npushes_total{reason="a b"} 2.0\npushes_total_more 9\n'

    assert total(page, "pushes_total") == 7
    assert total(page, "failures_total") == 0


def test_the_example_has_one_image_for_the_server_of_the_wheel() -> None:
    (stateful,) = [item for item in example() if item["kind"] == "StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]

    assert container["image"].rpartition(":")[0] == "docker.io/library/nats" and "command" not in container


def test_a_folder_without_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGERO_LAB", str(tmp_path))

    with laboratory("test") as lab, pytest.raises(LabFailed, match=f"no {tmp_path}/kubeconfig"), nodes(lab):
        pass


@pytest.mark.parametrize(
    ("script", "words"), [("echo no space left >&2; exit 1", "no space left"), ("exit 3", "nothing")]
)
def test_images_that_are_not_loaded_are_said_with_the_reason(tmp_path: Path, script: str, words: str) -> None:
    cluster = Nodes(tmp_path, ("/bin/sh", "-c", script))

    with pytest.raises(LabFailed, match=f"/bin/sh did not load one, two; it printed: {words}"):
        cluster.load("one", "two")


def test_a_cluster_whose_loader_is_not_known_has_its_images() -> None:
    Nodes(Path("kubeconfig")).load("one")


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *settings, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, str]:
    """A repository, and its commit."""
    for name in SOURCES:
        (tmp_path / name).write_text("one")
    (tmp_path / "docs").write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path, git(tmp_path, "rev-parse", "HEAD")


def origin(folder: Path, *revisions: str) -> list[str]:
    return origin_of_images(dict(zip(IMAGES, revisions, strict=False)), folder)


def test_the_images_of_a_demo_are_said_to_be_like_the_tree_or_not(tree: tuple[Path, str]) -> None:
    folder, commit = tree
    (folder / "docs").write_text("no image has it")
    assert origin(folder, commit) == [
        f"{IMAGES[0].rpartition('/')[2]}: of commit {commit[:12]}, like the working tree"
    ]

    (folder / "fleet").write_text("two")
    git(folder, "commit", "-qam", "second")
    (folder / "agent").write_text("two")
    assert "and 2 files of the working tree differ from it: make images" in origin(folder, commit)[0]


def test_images_whose_sources_are_not_known_are_said_to_be_in_doubt(tree: tuple[Path, str]) -> None:
    folder, commit = tree

    unknown, changed, silent = (origin(folder, one)[0] for one in ("f" * 40, f"{commit}-changed", ""))

    assert "ffffffffffff, which this repository does not know" in unknown
    assert f"{commit[:12]} with changes, so they may differ" in changed
    assert "do not say of which commit" in silent


def test_images_of_two_commits_are_two_sentences(tree: tuple[Path, str]) -> None:
    folder, commit = tree

    assert [line.partition(":")[0] for line in origin(folder, commit, "f" * 40)] == ["operator", "fleet"]
