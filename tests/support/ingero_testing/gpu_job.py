"""A job of ranks that needs no GPU: its libraries have the names and signatures of CUDA and NCCL.

Every rank computes (sleeps), calls a collective and waits. The wait is a barrier over all ranks, as in a real
collective. The rank that computes longer is the straggler, and it waits least. Computing is sleeping and, for a
thousandth of the time, using the processor, like a rank whose GPU works.

job RANKS STEPS BASE_US LATE_RANK EXTRA_US [after-init | on-signal [JITTER_US]]; with on-signal the late rank is late
between SIGUSR1 and SIGUSR2. A computation's jitter is uniform. The ranks end with their parent.
"""

import errno
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ingero_agent.trace import kernel
from ingero_contract import headers
from ingero_testing.processes import BIN, Running, next_line, process, wait_until

_LINK_BY_ID = 30
DOWNLOADED = Path(__file__).resolve().parents[3] / ".tools/gpu"
"""Where `make gpu-libraries` puts NVIDIA's wheels; `INGERO_GPU_LIBRARIES` names another folder."""

PUSH_FIRST = ("-fno-omit-frame-pointer", "-fno-shrink-wrap", "-fcf-protection=none")
"""Flags for which functions begin with a push. On a first instruction that the kernel cannot emulate and has to
single-step, a probe costs ten times as much."""

RUNTIME = r"""
#include <pthread.h>
#include <stddef.h>
#ifdef BARRIER  /* a function of the program instead of the threads' barrier */
int BARRIER(void *);
#define pthread_barrier_wait BARRIER
#endif
typedef struct { unsigned x, y, z; } dim3;
#define API __attribute__((noinline, visibility("default")))
API int cudaLaunchKernel(void *f, dim3 g, dim3 b, void **a, size_t s, void *t) { __asm__("nop"); return 0; }
API int twinLaunchKernel(void *f, dim3 g, dim3 b, void **a, size_t s, void *t) { __asm__("nop"); return 0; }
API int cudaMalloc(void **p, size_t n) { __asm__("nop"); return 0; }
API int cudaMemcpyAsync(void *d, const void *s, size_t n, int k, void *t) { __asm__("nop"); return 0; }
API int cudaStreamSynchronize(void *stream) { if (stream) pthread_barrier_wait(stream); return 0; }
"""
COLLECTIVES = r"""
#include <stddef.h>
typedef struct { char bytes[128]; } ncclUniqueId;
struct comm { char before[HASH_AT]; unsigned long hash; int rank, nranks, device; };
#define API __attribute__((noinline, visibility("default")))
API int ncclCommInitRank(struct comm **out, int nranks, ncclUniqueId id, int rank)
{
  static struct comm comms[16];
  static int used;
  struct comm *comm = &comms[used++ % 16];
  unsigned long hash = 5381;
  for (int i = 0; i < 128; i++) hash = ((hash << 5) + hash) ^ id.bytes[i];
  comm->hash = hash; comm->rank = rank; comm->nranks = nranks; comm->device = rank;
  *out = comm;
  return 0;
}
API int ncclAllReduce(const void *s, void *r, size_t n, int type, int op, struct comm *comm, void *stream)
{ __asm__("nop"); return 0; }
API int ncclBroadcast(const void *s, void *r, size_t n, int type, int root, struct comm *comm, void *stream)
{ __asm__("nop"); return 0; }
API int ncclAlltoAll(const void *s, void *r, size_t n, int type, struct comm *comm, void *stream)
{ __asm__("nop"); return 0; }
API int ncclSend(const void *s, size_t n, int type, int peer, struct comm *comm, void *stream)
{ __asm__("nop"); return 0; }
API int ncclCommUserRank(const struct comm *comm, int *rank) { *rank = comm->rank; return 0; }
API int ncclCommCount(const struct comm *comm, int *count) { *count = comm->nranks; return 0; }
API int ncclCommCuDevice(const struct comm *comm, int *device) { *device = comm->device; return 0; }
API int ncclCommDestroy(struct comm *comm) { __asm__("nop"); return 0; }
API int ncclGroupStart(void) { __asm__("nop"); return 0; }
API int ncclGroupEnd(void) { __asm__("nop"); return 0; }
"""
JOB = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
typedef struct { char bytes[128]; } ncclUniqueId;
int ncclCommInitRank(void **, int, ncclUniqueId, int);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclCommDestroy(void *);
int cudaStreamSynchronize(void *);
static struct { pthread_barrier_t begin, step; volatile sig_atomic_t hurt; } *shared;
static void hurt(int number) { shared->hurt = number == SIGUSR1; }
static void line(void) {
  char one;
  ssize_t got;
  while ((got = read(0, &one, 1)) < 0 || (got == 1 && one != '\n')) {}
}
static long used(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}
static void compute(int microseconds) {
  long until = used() + microseconds / 1000;
  while (used() < until) {}
  usleep(microseconds - microseconds / 1000);
}
int main(int argc, char **argv) {
  pid_t seed = getpid();
  int ranks = atoi(argv[1]), steps = atoi(argv[2]), base = atoi(argv[3]), late = atoi(argv[4]);
  int extra = atoi(argv[5]), jitter = argc > 7 ? atoi(argv[7]) : 0;
  int after_init = argc > 6 && !strcmp(argv[6], "after-init");
  shared = mmap(0, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  shared->hurt = argc <= 6 || strcmp(argv[6], "on-signal");
  pthread_barrierattr_t kind;
  pthread_barrierattr_init(&kind);
  pthread_barrierattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->begin, &kind, ranks + 1);
  pthread_barrier_init(&shared->step, &kind, ranks);
  if (!after_init) line();
  for (int rank = 0; rank < ranks; rank++)
    if (!fork()) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      ncclUniqueId id;
      unsigned random = rank + 1;
      void *comm;
      for (int i = 0; i < 128; i++) id.bytes[i] = (char)(i * 37 + 200);
      memcpy(id.bytes, &seed, 4);
      ncclCommInitRank(&comm, ranks, id, rank);
      pthread_barrier_wait(&shared->begin);
      pthread_barrier_wait(&shared->begin);
      for (int step = 0; step < steps; step++) {
        int noise = jitter ? rand_r(&random) % (2 * jitter + 1) - jitter : 0;
        compute(base + noise + (rank == late && shared->hurt ? extra : 0));
        ncclAllReduce(0, 0, 1000, 7, 0, comm, &shared->step);
        cudaStreamSynchronize(&shared->step);
      }
      pthread_barrier_wait(&shared->begin);
      ncclCommDestroy(comm);
      _exit(0);
    }
  signal(SIGUSR1, hurt);
  signal(SIGUSR2, hurt);
  pthread_barrier_wait(&shared->begin);
  if (after_init) { printf("ready\n"); fflush(stdout); line(); }
  pthread_barrier_wait(&shared->begin);
  pthread_barrier_wait(&shared->begin);
  printf("done\n");
  fflush(stdout);
  line();
}
"""


def nvidia_libraries() -> tuple[Path, Path] | None:
    """NVIDIA's own CUDA runtime and NCCL: downloaded, or installed with PyTorch.

    Without a GPU their calls fail cleanly.
    """
    for folder in (os.environ.get("INGERO_GPU_LIBRARIES") or DOWNLOADED, *sys.path):
        nvidia = Path(folder) / "nvidia"
        runtimes, nccl = sorted(nvidia.glob("cu*/lib/libcudart.so.1[0-9]")), nvidia / "nccl/lib/libnccl.so.2"
        if runtimes and nccl.exists():
            return runtimes[-1], nccl
    return None


def identity(pid: int) -> bytes:
    """The unique id that the job of this process makes, so that jobs of parallel tests share no communicator."""
    return pid.to_bytes(4, "little") + bytes((i * 37 + 200) % 256 for i in range(4, 128))


def communicator_hash(identity: bytes) -> str:
    """The hash of a communicator in NCCL's logs, computed with signed characters, as on x86."""
    value = 5381
    for byte in identity:
        value = (((value << 5) + value) & (2**64 - 1)) ^ ((byte - 256 if byte > 127 else byte) & (2**64 - 1))
    return f"{value:016x}"


def compile_c(folder: Path, name: str, source: str, *flags: str) -> Path:
    """Compile a program or, with the flag `-shared`, a library; probes on it cost as little as on NVIDIA's."""
    file = folder / f"{name}.c"
    file.write_text(source)
    output = folder / name
    command = ["cc", "-O1", *PUSH_FIRST, "-o", str(output), str(file), *flags]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return output


def build_job(folder: Path, *, hash_at: int = 9168, change: Mapping[str, str] | None = None) -> Path:
    """Build the job and its two libraries. `hash_at`: offset of the hash in a communicator's structure.

    `change`: texts of the job's source and what replaces them.
    """
    source = JOB
    for old, new in (change or {}).items():
        assert old in source
        source = source.replace(old, new)
    shared = ("-shared", "-fPIC")
    runtime = compile_c(folder, "libcudart.so.12", RUNTIME, *shared, "-pthread")
    nccl = compile_c(folder, "libnccl.so.2", COLLECTIVES, *shared, f"-DHASH_AT={hash_at}")
    return compile_c(folder, "job", source, str(runtime), str(nccl), "-pthread")


NODE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Command prefix: a new PID namespace with its own /proc, as on a node that is itself a container."""


def inside(node: Running) -> tuple[str, ...]:
    """Command prefix: run the command in the PID namespace of the process that was started with `NODE`."""
    (first,) = children(node.process.pid)
    return ("nsenter", f"--pid=/proc/{first}/ns/pid", f"--mount=/proc/{first}/ns/mnt")


def numbers(pid: int) -> list[int]:
    """Ids of a process, from the caller's PID namespace down to its own."""
    text = Path(f"/proc/{pid}/status").read_text()
    return [int(word) for word in re.findall(r"^NSpid:(.*)$", text, re.MULTILINE)[0].split()]


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    return [one for child in children(pid) for one in (child, *descendants(child))]


@contextmanager
def tracing(folder: Path, *flags: str, period: str = "0.2", before: Sequence[str] = ()) -> Iterator[Running]:
    """The trace agent with `folder/trace.db`, ready to count; without a cost limit that another test could use up.

    `before`: prefix of its command.
    """
    log = folder / "trace.log"
    command = [*before, str(BIN / "python"), "-m", "ingero_agent", "trace", "--db", str(folder / "trace.db")]
    with process(log, *command, "--period", period, "--budget", "1", *flags) as running:
        wait_until(lambda: b"started" in log.read_bytes() or running.process.poll() is not None, "the tracer", 90)
        assert running.process.poll() is None, running.words()
        try:
            yield running
        finally:
            for one in children(running.process.pid) if before else ():
                os.kill(one, signal.SIGTERM)  # the prefix command does not pass the signal on


def attachments(agent: Running, library: Path) -> int:
    """How often the agent has attached to a file; other processes of the machine may use others."""
    lines = [line for line in agent.words().splitlines() if '"event": "attached"' in line]
    return sum(f'"inode": {library.stat().st_ino},' in line for line in lines)


def attached(agent: Running, *libraries: Path) -> bool:
    """Whether the agent has attached to these files."""
    return all(attachments(agent, library) for library in libraries)


def links_of(pid: int) -> list[int]:
    """Ids of the kernel links of a process, which attach its programs to functions."""
    found = []
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(OSError):
            number = re.search(r"^link_id:\s+(\d+)", file.read_text(), re.MULTILINE)
            if number:
                found.append(int(number.group(1)))
    return found


def link_lives(identity: int) -> bool:
    """Whether the kernel still has a link."""
    try:
        os.close(kernel.bpf(_LINK_BY_ID, struct.pack("=IIII", identity, 0, 0, 0)))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    return True


def listening_port(running: Running) -> int:
    """The port of its Prometheus page."""
    found = re.search(r'"address": "127\.0\.0\.1:(\d+)"', running.words())
    assert found, running.words()
    return int(found.group(1))


@contextmanager
def receiver(status: int = 200, verdict: str = "") -> Iterator[tuple[int, list[bytes]]]:
    """An HTTP server that keeps the bodies of POST requests; yields its port and the bodies.

    `verdict`: the line of Fleet's verdict that its answers have.
    """
    bodies: list[bytes] = []

    class StoreHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.send_header("content-length", "0")
            if verdict:
                self.send_header(headers.VERDICT, verdict)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), StoreHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def job(program: Path, *arguments: object, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """A started job that waits for a line on its standard input before every part."""
    command = [*before, str(program), *map(str, arguments)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate(timeout=60)


def go(started: subprocess.Popen[bytes]) -> None:
    """Let the job go on."""
    assert started.stdin
    started.stdin.write(b"\n")
    started.stdin.flush()


def said(started: subprocess.Popen[bytes]) -> str:
    """The next line that it writes."""
    return next_line(started)


def now_ns() -> int:
    """Time of day."""
    return time.time_ns()
