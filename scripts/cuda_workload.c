/* The demo's job of CUDA and NCCL calls at a steady rate: kernels and a copy in every step, a collective and a wait in
 * every fourth.
 *
 * cuda_workload LIBCUDART LIBNCCL STEPS_A_SECOND. It needs no GPU: without one NVIDIA's own libraries fail every call,
 * and a failed call is still counted. SIGUSR1 halves the rate, SIGUSR2 restores it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define LAUNCHES 10
#define EVERY 4

typedef struct { unsigned x, y, z; } dim3;
static volatile sig_atomic_t slow;

static void change(int number) { slow = number == SIGUSR1; }

static void *symbol(void *library, const char *name)
{
  void *found = dlsym(library, name);
  if (!found) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return found;
}

static void *library(const char *path)
{
  void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!found) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return found;
}

int main(int argc, char **argv)
{
  if (argc != 4) {
    fprintf(stderr, "usage: cuda_workload LIBCUDART LIBNCCL STEPS_A_SECOND\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGUSR1, change);
  signal(SIGUSR2, change);
  void *runtime = library(argv[1]), *nccl = library(argv[2]);
  int (*launch)(void *, dim3, dim3, void **, size_t, void *) = symbol(runtime, "cudaLaunchKernel");
  int (*copy)(void *, const void *, size_t, int, void *) = symbol(runtime, "cudaMemcpyAsync");
  int (*synchronize)(void *) = symbol(runtime, "cudaStreamSynchronize");
  int (*reduce)(const void *, void *, size_t, int, int, void *, void *) = symbol(nccl, "ncclAllReduce");
  long step = 1000000000L / atol(argv[3]);
  dim3 one = {1, 1, 1};
  struct timespec due, now;
  clock_gettime(CLOCK_MONOTONIC, &due);
  for (unsigned long number = 0;; number++) {
    for (int i = 0; i < LAUNCHES; i++)
      launch(0, one, one, 0, 0, 0);
    copy(0, 0, 4096, 1, 0);
    if (number % EVERY == 0) {
      reduce(0, 0, 1024, 7, 0, 0, 0);
      synchronize(0);
    }
    due.tv_nsec += slow ? 2 * step : step;
    due.tv_sec += due.tv_nsec / 1000000000L;
    due.tv_nsec %= 1000000000L;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec > due.tv_sec + 1)
      due = now; /* it was stopped for a while: missed steps are skipped */
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, 0))
      ;
  }
}
