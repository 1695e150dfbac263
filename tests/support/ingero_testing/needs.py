"""What some tests need on the machine. Without it they are skipped, with the reason and the command to install it."""

import os
import shutil
from ctypes.util import find_library
from pathlib import Path

import pytest

from ingero_testing.browser import find_browser
from ingero_testing.gpu_job import nvidia_libraries

BCC = Path("/usr/lib/python3/dist-packages/bcc")
BTF = Path("/sys/kernel/btf/vmlinux")

ROOT = os.geteuid() == 0
COMPILER = shutil.which("cc")

CONTROL_PLANE = "needs a control plane: make cluster-assets"
HELM = "needs helm: make helm"
COLLECTOR = "needs an OpenTelemetry Collector: make collector"
NAMESPACES = "needs unshare and the right to use it: apt-get install util-linux; sudo make test"
EBPF = "needs root, BTF, libbpf and a C compiler: apt-get install libbpf1 gcc libc6-dev"
PROMTOOL = "needs promtool: apt-get install prometheus"
C_COMPILER = "needs a C compiler: apt-get install gcc libc6-dev"


def find_helm() -> str | None:
    """Helm of the machine, or the one that `make helm` has built."""
    built = Path(__file__).parents[3] / ".tools/bin/helm"
    return shutil.which("helm") or (str(built) if built.exists() else None)


def find_collector() -> str | None:
    """The Collector that `make collector` has built."""
    built = Path(__file__).parents[3] / ".tools/bin/otelcol"
    return str(built) if built.exists() else None


def can_load_programs() -> bool:
    """Whether eBPF programs can be loaded here, and jobs to trace be compiled."""
    return bool(ROOT and COMPILER and BTF.exists() and find_library("bpf"))


MOUNT = "needs root, to mount a small file system: sudo make test"


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=PROMTOOL)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason=C_COMPILER)
needs_bcc = pytest.mark.skipif(not BCC.exists(), reason="needs BCC: apt-get install python3-bpfcc")
needs_browser = pytest.mark.skipif(
    find_browser() is None, reason="needs Chromium or Chrome: apt-get install chromium"
)
needs_util_linux = pytest.mark.skipif(
    not (shutil.which("setpriv") and shutil.which("unshare")),
    reason="needs setpriv and unshare: apt-get install util-linux",
)
needs_images = pytest.mark.skipif(
    not (os.environ.get("INGERO_IMAGES") and shutil.which("buildah")),
    reason="needs buildah and the images: apt-get install buildah; make images; INGERO_IMAGES=1 make test",
)
needs_nvidia_libraries = pytest.mark.skipif(
    not nvidia_libraries(), reason="needs NVIDIA's CUDA runtime and NCCL: make gpu-libraries"
)
needs_root = pytest.mark.skipif(not ROOT, reason="needs root: sudo make test")
