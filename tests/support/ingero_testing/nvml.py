"""A test double of the driver library, so that the real nvidia-ml-py runs on machines without a GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ingero_testing.needs import C_COMPILER

SOURCE = Path(__file__).with_name("nvml.c")


def build_nvml(folder: Path) -> Path:
    """Compile it; returns the folder for LD_LIBRARY_PATH. Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip(C_COMPILER)
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return folder
