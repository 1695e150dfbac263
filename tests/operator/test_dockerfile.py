"""One Dockerfile for every architecture: what it runs must not name one."""

import re
from pathlib import Path

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"
ARCHITECTURES = r"amd64|x86[_-]64|i386|arm64|aarch64"


def test_no_instruction_names_an_architecture() -> None:
    instructions = [line for line in DOCKERFILE.read_text().splitlines() if line and line[0] != "#"]

    assert [line for line in instructions if re.search(ARCHITECTURES, line)] == []


def test_every_target_ends_unprivileged() -> None:
    stages = re.split(r"(?m)^FROM .* AS ", DOCKERFILE.read_text())[2:]
    users = {stage.split()[0]: re.findall(r"(?m)^USER (.*)$", stage) for stage in stages}

    assert set(users) == {"runtime", "operator", "fleet", "echo", "sink", "agent"}
    assert all(not found or found[-1] == "65532:65532" for found in users.values()) and users["runtime"]
