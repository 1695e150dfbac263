/* One rank of a synchronised job in a pod: computes, calls a collective, waits for all ranks. No GPU is needed: its
 * libraries have the names and signatures of CUDA and NCCL, and the wait is a barrier over TCP at rank 0.
 *
 * Environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as launchers of distributed jobs set them.
 * pod_job STEP_US EXTRA_US STARTUP_SECONDS: between SIGUSR1 and SIGUSR2 a step takes EXTRA_US longer. STARTUP_SECONDS
 * pass between loading the libraries and the first communicator, as in a job that loads a model. After SIGHUP to rank 0
 * no rank calls a collective or waits for another, and a late rank takes twice as long for a step. */
#define _GNU_SOURCE
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 64, JITTER_PERCENT = 2, LAUNCHES = 10 };
typedef struct { unsigned x, y, z; } dim3;
typedef struct { char bytes[128]; } ncclUniqueId;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
int cudaStreamSynchronize(void *);
int ncclCommInitRank(void **, int, ncclUniqueId, int);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);

static int rank, ranks, peers[MOST_RANKS];
static volatile sig_atomic_t late, uncoupling, uncoupled;

static void on_signal(int number) {
  if (number == SIGTERM) _exit(0);
  if (number == SIGHUP) uncoupling = 1;
  else late = number == SIGUSR1;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void transfer(int peer, void *bytes, size_t size, int sending) {
  for (size_t done = 0; done < size;) {
    ssize_t moved = sending ? send(peer, (char *)bytes + done, size - done, MSG_NOSIGNAL)
                            : recv(peer, (char *)bytes + done, size - done, 0);
    if (moved <= 0) fail("another rank is gone");
    done += moved;
  }
}

/* What a wait for the GPU waits at: rank 0 hears from every rank, then answers every rank whether there is a next one. */
int job_barrier(void *unused) {
  char last = uncoupling;
  (void)unused;
  if (rank) {
    transfer(peers[0], &last, 1, 1);
    transfer(peers[0], &last, 1, 0);
    uncoupled = last;
    return 0;
  }
  char arrived;
  for (int i = 1; i < ranks; i++) transfer(peers[i], &arrived, 1, 0);
  for (int i = 1; i < ranks; i++) transfer(peers[i], &last, 1, 1);
  uncoupled = last;
  return 0;
}

static void quick(int peer) {
  int yes = 1;
  setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

static void accept_all(const char *port) {
  int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(listener, (struct sockaddr *)&here, sizeof(here)) || listen(listener, MOST_RANKS)) fail("listen");
  for (int i = 1; i < ranks; i++) {
    peers[i] = accept(listener, 0, 0);
    if (peers[i] < 0) fail("accept");
    quick(peers[i]);
  }
}

static void connect_to(const char *address, const char *port) {
  struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
  for (;; usleep(200000)) {
    if (getaddrinfo(address, port, &wanted, &found)) continue;
    peers[0] = socket(AF_INET, SOCK_STREAM, 0);
    int refused = connect(peers[0], found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (!refused) break;
    close(peers[0]);
  }
  quick(peers[0]);
}

static const char *variable(const char *name) {
  const char *value = getenv(name);
  if (value) return value;
  fprintf(stderr, "pod_job: %s is not set\n", name);
  exit(2);
}

/* The sleep is in a function of its own: the C library keeps no frame pointers, so a stack misses the caller of one of
 * its functions. */
static __attribute__((noinline)) void rest(int microseconds) {
  if (microseconds) usleep(microseconds);
  __asm__ volatile("");
}

__attribute__((noinline)) void compute(int microseconds) {
  rest(microseconds);
  __asm__ volatile("");
}

/* What makes a rank late. */
__attribute__((noinline)) void load_batch(int microseconds) {
  rest(microseconds);
  __asm__ volatile("");
}

int main(int argc, char **argv) {
  if (argc != 4) return fprintf(stderr, "usage: pod_job STEP_US EXTRA_US STARTUP_SECONDS\n"), 2;
  int step = atoi(argv[1]), extra = atoi(argv[2]);
  rank = atoi(variable("RANK"));
  ranks = atoi(variable("WORLD_SIZE"));
  if (rank < 0 || ranks < 2 || ranks > MOST_RANKS || rank >= ranks) return fprintf(stderr, "pod_job: RANK or WORLD_SIZE\n"), 2;
  signal(SIGUSR1, on_signal);
  signal(SIGUSR2, on_signal);
  signal(SIGHUP, on_signal);
  signal(SIGTERM, on_signal);
  if (rank) connect_to(variable("MASTER_ADDR"), variable("MASTER_PORT"));
  else accept_all(variable("MASTER_PORT"));
  sleep(atoi(argv[3]));
  ncclUniqueId id;
  if (!rank && getrandom(&id, sizeof(id), 0) != sizeof(id)) fail("getrandom");
  for (int i = 1; !rank && i < ranks; i++) transfer(peers[i], &id, sizeof(id), 1);
  if (rank) transfer(peers[0], &id, sizeof(id), 0);
  void *comm;
  ncclCommInitRank(&comm, ranks, id, rank);
  printf("rank %d of %d computes\n", rank, ranks);
  fflush(stdout);
  for (unsigned random = rank + 1;;) {
    int jitter = step * JITTER_PERCENT / 100;
    load_batch(!late ? 0 : uncoupled ? step : extra);
    compute(step + (jitter ? rand_r(&random) % (2 * jitter) - jitter : 0));
    for (int i = 0; i < LAUNCHES; i++) cudaLaunchKernel(0, (dim3){1, 1, 1}, (dim3){1, 1, 1}, 0, 0, 0);
    if (uncoupled) continue;
    ncclAllReduce(0, 0, 1000, 7, 0, comm, &comm);
    cudaStreamSynchronize(&comm);
    if (uncoupled) {
      printf("rank %d works alone\n", rank);
      fflush(stdout);
    }
  }
}
