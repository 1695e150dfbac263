#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { char bytes[128]; } ncclUniqueId;
struct calls {
  int (*launch)(void *, dim3, dim3, void **, size_t, void *);
  int (*reduce)(const void *, void *, size_t, int, int, void *, void *);
  int (*wait)(void *);
  void *comm;
  double cpu, wall;
  long launches, collectives;
};
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
int plainLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
int cudaStreamSynchronize(void *);
int plainStreamSynchronize(void *);
int ncclCommInitRank(void **, int, ncclUniqueId, int);
int plainInitRank(void **, int, ncclUniqueId, int);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int plainAllReduce(const void *, void *, size_t, int, int, void *, void *);
static double at(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static volatile unsigned sink;
static void turn(struct calls *calls, long launches, long spins, int collective)
{
  dim3 one = {1, 1, 1};
  double cpu = at(CLOCK_THREAD_CPUTIME_ID), wall = at(CLOCK_MONOTONIC);
  for (long i = 0; i < launches; i++) {
    calls->launch(0, one, one, 0, 0, 0);
    for (long j = 0; j < spins; j++) sink += j;
  }
  if (collective) { calls->reduce(0, 0, 1000, 7, 0, calls->comm, 0); calls->wait(0); }
  calls->cpu += at(CLOCK_THREAD_CPUTIME_ID) - cpu;
  calls->wall += at(CLOCK_MONOTONIC) - wall;
  calls->launches += launches;
  calls->collectives += collective;
}
/* A line in: pairs of turns, launches a turn, spins a launch, turns per collective, microseconds a pair (0: no pace).
   A line out: processor and wall seconds of plain and of probed turns, launches and collectives of the latter, and
   the seconds that it all took. */
int main(void)
{
  struct calls plain = {plainLaunchKernel, plainAllReduce, plainStreamSynchronize};
  struct calls probed = {cudaLaunchKernel, ncclAllReduce, cudaStreamSynchronize};
  ncclUniqueId id;
  long pairs, launches, spins, every, pace;
  memset(&id, 7, sizeof id);
  ncclCommInitRank(&probed.comm, 1, id, 0);
  plainInitRank(&plain.comm, 1, id, 0);
  while (scanf("%ld %ld %ld %ld %ld", &pairs, &launches, &spins, &every, &pace) == 5) {
    double begun = at(CLOCK_MONOTONIC);
    plain.cpu = plain.wall = probed.cpu = probed.wall = 0;
    probed.launches = probed.collectives = 0;
    for (long i = 0; i < pairs; i++) {
      int collective = i % every == 0;
      turn(i & 1 ? &plain : &probed, launches, spins, collective);
      turn(i & 1 ? &probed : &plain, launches, spins, collective);
      double until = begun + (i + 1) * pace / 1e6;
      struct timespec end = {(time_t)until, (long)((until - (time_t)until) * 1e9)};
      if (pace) while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, 0) == EINTR) {}
    }
    printf("%.9f %.9f %.9f %.9f %ld %ld %.6f\n", plain.cpu, plain.wall, probed.cpu, probed.wall, probed.launches,
           probed.collectives, at(CLOCK_MONOTONIC) - begun);
    fflush(stdout);
  }
}
