/* Counts and times calls of the CUDA runtime, the CUDA driver and NCCL; follows NCCL communicators.
 *
 * One program serves many functions: the attach cookie says which one was called and where its arguments are.
 *   bits 0-7 function id, 8-15 shape of the arguments, 16-23 slot of the library file, bit 24 the call waits for the GPU
 * Additions are atomic even in per-CPU values: on preemptible kernels two tasks of one CPU may run this at once.
 * Nothing wakes a reader; every failure counts in `lost`.
 * Collectives are rare, so none of this is in a cache when one is called. The cost is the memory that a program
 * touches, its own code included. So loops are not unrolled, and there are few maps.
 */
#include <ingero/bpf.h>

#define REGISTER(name) OF_CONTEXT(struct pt_regs, name)
#if defined(__x86_64__)
#define ARG0 REGISTER(di)
#define ARG1 REGISTER(si)
#define ARG2 REGISTER(dx)
#define ARG3 REGISTER(cx)
#define ARG4 REGISTER(r8)
#define ARG5 REGISTER(r9)
#define ARG6 stack_word(REGISTER(sp) + 8)
#define ARG7 stack_word(REGISTER(sp) + 16)
#define RESULT ((u32)REGISTER(ax))
/* A 128-byte struct by value lies on the stack above the return address and takes no integer register. */
#define UNIQUE_ID_ADDRESS (REGISTER(sp) + 8)
#define RANK_AFTER_ID ((u32)ARG2)
#else
#define ARG0 REGISTER(regs[0])
#define ARG1 REGISTER(regs[1])
#define ARG2 REGISTER(regs[2])
#define ARG3 REGISTER(regs[3])
#define ARG4 REGISTER(regs[4])
#define ARG5 REGISTER(regs[5])
#define ARG6 REGISTER(regs[6])
#define ARG7 REGISTER(regs[7])
#define RESULT ((u32)REGISTER(regs[0]))
/* A struct over 16 bytes by value arrives as a pointer to a copy, which takes a register. */
#define UNIQUE_ID_ADDRESS ARG2
#define RANK_AFTER_ID ((u32)ARG3)
#endif

#define FUNCTION(cookie) ((u32)((cookie) & 0xff))
#define SHAPE(cookie) ((u32)(((cookie) >> 8) & 0xff))
#define SLOT(cookie) ((u32)(((cookie) >> 16) & 0xff))
#define WAITS(cookie) ((u32)(((cookie) >> 24) & 1))

/* Shapes; `table.py` holds the same numbers. */
#define PLAIN 0
#define SIZE_1 1
#define COPY 2
#define COPY_2D 3
#define COPY_PEER 4
#define HANDLE_0 5
#define SET_DEVICE 6
#define COPY_DRIVER 7
#define INIT_RANK 16
#define INIT_SCALABLE 17
#define INIT_ALL 18
#define SPLIT 19
#define DESTROY 20
#define COMM_4 24
#define COMM_5 25
#define COMM_6 26
#define POINT_TO_POINT 27
#define ROOTED 28
#define GROUP_START 32
#define GROUP_END 33

#define NO_WAKEUP 1
#define COPY_KIND_UNKNOWN 5
#define BLOCKED_FLOOR_NS 50000
#define COLD_NS 2000000
#define SLOTS 4
#define MAX_INIT_ALL 16
#define MAX_DEPTH 32
/* Which numbers are sampled is the same on every rank, whatever number of collectives lies between two waits. */
#define SPREAD 2654435761U
#define UNKNOWN_WORK (~0ULL)

/* `lost`: what was not counted, by reason. */
#define LOST_AGG 0
#define LOST_COLL 1
#define LOST_START 2
#define LOST_COMMS 3
#define LOST_RING 4
#define LOST_FAULT 5
#define LOST_STRUCT 6
#define LOST_AMBIGUOUS 7
#define LOST_PENDING 8

struct agg_key { u32 tgid; u16 fn; u16 kind; };
struct coll_key { u32 tgid; u16 fn; u8 dtype; u8 redop; u64 comm; };
/* `last`: the previous call on this processor; `cold`: calls that came so long after it that caches were cold. */
struct agg_value { u64 n, ns, max, bytes, errors, last, cold; u32 log2[32]; };
struct call_key { u32 tid; u32 fn; };
/* `id` and `handle` are of a call that makes a communicator. */
struct call {
  u64 ts;
  union { u64 bytes, id; };
  union { u64 handle, comm; };
  union { u64 seq; struct { u32 rank, nranks; }; };
  u32 kind, shape;
};
struct comm_key { u32 tgid; u32 pad; u64 comm; };
/* Bytes: `own` of this communicator's collectives, `others` of the process's other ones until the latest collective,
 * `base` until the latest one that the process waited for. `waits`: the process's waits until the latest collective. */
struct comm_state {
  u64 id, seq; u32 rank, nranks; s32 device; u8 how, exact, counts, pad;
  u64 own, others, base; u32 waits, pad2;
};
struct pending {
  u64 comm, seq, arrival, count, enqueue_ns, stream, work;
  u32 group_tid; s32 device; u16 fn; u8 dtype, redop; u32 state;
};
/* `grouping`: how many threads of the process are inside a group. `waits`: its waits for collectives; `bytes`: those of
 * all its collectives, sends and receives. */
struct last { struct pending slot[SLOTS]; u32 grouping, waits; u64 bytes; };
struct event {
  u32 type, tgid, tid; u16 fn; u8 dtype, redop;
  u64 id, comm, seq, count, arrival, enqueue_ns, blocked_ns, end;
  u32 rank, nranks; s32 device; u8 how, exact; u16 result;
  u64 work;
};

#define EVENT_COLLECTIVE 1
#define EVENT_INIT 2
#define EVENT_INIT_FAILED 3
#define EVENT_DESTROY 4
#define EVENT_SLOW 5

/* config: 0 sample mask of collectives, 1 a collective blocked this long is always sent (ns), 2 a call this long is
 * sent (ns), 3 nothing is attached at returns: count at entry */
MAP(array, u32, u64, config, 8);
MAP(array, u32, u64, rank_offset, 256);
MAP(percpu_array, u32, u64, lost, 16);
MAP(percpu_hash, struct agg_key, struct agg_value, agg, AGG_ENTRIES);
MAP(percpu_hash, struct coll_key, struct agg_value, coll, COLL_ENTRIES);
MAP(array, u32, struct agg_value, zero_agg, 1);
MAP(array, u32, struct last, zero_last, 1);
MAP(hash, struct call_key, struct call, start, 16384);
MAP(hash, struct comm_key, struct comm_state, comms, 4096);
MAP(hash, u32, u32, group, 4096);
MAP(hash, u32, struct last, last_coll, 1024);
MAP(hash, u32, u32, device, 8192);
RING(events, RING_PAGES);

static inline void lose(u32 reason)
{
  u64 *count = bpf_map_lookup_elem(&lost, &reason);
  if (count)
    __sync_fetch_and_add(count, 1);
}

static inline u64 stack_word(u64 address)
{
  u64 word = 0;
  if (bpf_probe_read_user(&word, sizeof(word), (void *)address))
    lose(LOST_FAULT);
  return word;
}

static inline u32 magnitude(u64 value)
{
  u32 bits = 0;
  if (value >> 32)
    return 31;
  if (value >> 16) { bits += 16; value >>= 16; }
  if (value >> 8) { bits += 8; value >>= 8; }
  if (value >> 4) { bits += 4; value >>= 4; }
  if (value >> 2) { bits += 2; value >>= 2; }
  if (value >> 1) bits += 1;
  return bits;
}

static inline void tally(struct agg_value *value, u64 now)
{
  __sync_fetch_and_add(&value->n, 1);
  if (now - value->last > COLD_NS)
    __sync_fetch_and_add(&value->cold, 1);
  value->last = now;
}

static inline void add(struct agg_value *value, u64 now, u64 ns, u64 bytes, u32 failed)
{
  tally(value, now);
  __sync_fetch_and_add(&value->ns, ns);
  __sync_fetch_and_add(&value->bytes, bytes);
  if (failed)
    __sync_fetch_and_add(&value->errors, 1);
  if (ns > value->max)
    value->max = ns;
  __sync_fetch_and_add(&value->log2[magnitude(ns) & 31], 1);
}

static inline struct agg_value *find_agg(u32 tgid, u32 fn, u32 kind)
{
  struct agg_key key = {.tgid = tgid, .fn = fn, .kind = kind};
  struct agg_value *value = bpf_map_lookup_elem(&agg, &key);
  if (value)
    return value;
  u32 zero = 0;
  struct agg_value *fresh = bpf_map_lookup_elem(&zero_agg, &zero);
  if (!fresh)
    return 0;
  bpf_map_update_elem(&agg, &key, fresh, BPF_NOEXIST);
  value = bpf_map_lookup_elem(&agg, &key);
  if (!value)
    lose(LOST_AGG);
  return value;
}

static inline struct agg_value *find_coll(struct coll_key *key)
{
  struct agg_value *value = bpf_map_lookup_elem(&coll, key);
  if (value)
    return value;
  u32 zero = 0;
  struct agg_value *fresh = bpf_map_lookup_elem(&zero_agg, &zero);
  if (!fresh)
    return 0;
  bpf_map_update_elem(&coll, key, fresh, BPF_NOEXIST);
  value = bpf_map_lookup_elem(&coll, key);
  if (!value)
    lose(LOST_COLL);
  return value;
}

static inline u64 setting(u32 index)
{
  u64 *value = bpf_map_lookup_elem(&config, &index);
  return value ? *value : 0;
}

static inline void send(struct event *event)
{
  if (bpf_ringbuf_output(&events, event, sizeof(*event), NO_WAKEUP))
    lose(LOST_RING);
}

static inline void count_only(struct agg_value *value, u64 bytes)
{
  if (value) {
    tally(value, bpf_ktime_get_ns());
    __sync_fetch_and_add(&value->bytes, bytes);
  }
}

/* The current thread as the agent sees it in /proc: process << 32 | thread; 0 for one that it does not see.
 *
 * In the machine's first PID namespace that is the kernel's own number. An agent in another one (a node that is itself
 * a container) sees another number. `bpf_get_ns_current_pid_tgid` knows only tasks that are directly in that
 * namespace, and a container's tasks are in one below. So the task's own list of numbers is read, one for each
 * namespace from the first one down. The offsets come from the running kernel's BTF.
 */
#ifdef IN_NAMESPACE
static inline u64 numbers_of(u64 task)
{
  u64 mine = 0, ns = 0, leader = 0, of_leader = 0;
  u32 level = 0, inum = 0, tid = 0, tgid = 0;
  bpf_probe_read_kernel(&mine, sizeof(mine), (void *)(task + KERNEL(task_thread_pid)));
  bpf_probe_read_kernel(&level, sizeof(level), (void *)(mine + KERNEL(pid_level)));
#pragma clang loop unroll(disable)
  for (u32 depth = 1; depth <= MAX_DEPTH; depth++) {
    u64 at = KERNEL(pid_numbers) + depth * KERNEL(upid_size);
    if (depth > level)
      return 0;
    bpf_probe_read_kernel(&ns, sizeof(ns), (void *)(mine + at + KERNEL(upid_ns)));
    bpf_probe_read_kernel(&inum, sizeof(inum), (void *)(ns + KERNEL(ns_inum)));
    if (inum != KERNEL(pid_namespace))
      continue;
    bpf_probe_read_kernel(&tid, sizeof(tid), (void *)(mine + at + KERNEL(upid_nr)));
    bpf_probe_read_kernel(&leader, sizeof(leader), (void *)(task + KERNEL(task_leader)));
    if (leader == task)
      return (u64)tid << 32 | tid;
    bpf_probe_read_kernel(&of_leader, sizeof(of_leader), (void *)(leader + KERNEL(task_thread_pid)));
    bpf_probe_read_kernel(&tgid, sizeof(tgid), (void *)(of_leader + at + KERNEL(upid_nr)));
    return (u64)tgid << 32 | tid;
  }
  return 0;
}
#define current_numbers() numbers_of(bpf_get_current_task())
#else
#define current_numbers() bpf_get_current_pid_tgid()
#endif

/* Launches: entry only, a count and nothing else. */
PROGRAM("uprobe")
int launch_enter(struct pt_regs *ctx)
{
  u64 cookie = bpf_get_attach_cookie(ctx), who = current_numbers();
  if (!who)
    return 0;
  struct agg_value *value = find_agg(who >> 32, FUNCTION(cookie), 0);
  if (value)
    tally(value, bpf_ktime_get_ns());
  return 0;
}

PROGRAM("uprobe")
int device_enter(struct pt_regs *ctx)
{
  u64 who = current_numbers();
  u32 tid = who, index = ARG0;
  if (!who)
    return 0;
  bpf_map_update_elem(&device, &tid, &index, BPF_ANY);
  struct agg_value *value = find_agg(who >> 32, FUNCTION(bpf_get_attach_cookie(ctx)), 0);
  if (value)
    tally(value, bpf_ktime_get_ns());
  return 0;
}

PROGRAM("uprobe")
int call_enter(struct pt_regs *ctx)
{
  u64 cookie = bpf_get_attach_cookie(ctx), who = current_numbers();
  u32 shape = SHAPE(cookie);
  struct call_key key = {.tid = who, .fn = FUNCTION(cookie)};
  struct call call = {};
  if (!who)
    return 0;
  call.ts = bpf_ktime_get_ns();
  call.shape = shape;
  if (shape == SIZE_1) {
    call.bytes = ARG1;
  } else if (shape == COPY) {
    call.bytes = ARG2;
    call.kind = ARG3;
  } else if (shape == COPY_DRIVER) {
    call.bytes = ARG2;
    call.kind = COPY_KIND_UNKNOWN;
  } else if (shape == COPY_2D) {
    call.bytes = ARG4 * ARG5;
    call.kind = ARG6;
  } else if (shape == COPY_PEER) {
    call.bytes = ARG4;
    call.kind = 3;
  } else if (shape == HANDLE_0) {
    call.handle = ARG0;
  }
  if (call.kind > COPY_KIND_UNKNOWN)
    call.kind = COPY_KIND_UNKNOWN;
  if (setting(3)) {
    count_only(find_agg(who >> 32, key.fn, call.kind), call.bytes);
    return 0;
  }
  if (bpf_map_update_elem(&start, &key, &call, BPF_ANY))
    lose(LOST_START);
  return 0;
}

static inline u32 waited_for(struct pending *slot, struct call *call, u64 ns)
{
  if (slot->state != 1 || slot->group_tid || slot->arrival > call->ts)
    return 0;
  return ns >= BLOCKED_FLOOR_NS || call->shape != HANDLE_0 || slot->stream == call->handle;
}

/* A wait for the GPU ended. It waited for the collectives that were enqueued before it began. */
static inline void claim(u32 tgid, u32 tid, struct call *call, u64 now)
{
  struct last *last = bpf_map_lookup_elem(&last_coll, &tgid);
  if (!last)
    return;
  u64 ns = now - call->ts;
  u32 qualified = 0, ambiguous = 0;
  s32 seen = -1;
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < SLOTS; i++) {
    struct pending *slot = &last->slot[i];
    if (!waited_for(slot, call, ns))
      continue;
    if (qualified && slot->device != seen)
      ambiguous = 1;
    qualified |= 1 << i;
    seen = slot->device;
  }
  if (ambiguous) {
    lose(LOST_AMBIGUOUS);
    return;
  }
  if (!qualified)
    return;
  __sync_fetch_and_add(&last->waits, 1);
  u64 mask = setting(0), slow = setting(1);
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < SLOTS; i++) {
    struct pending *slot = &last->slot[i];
    if (!(qualified >> i & 1))
      continue;
    slot->state = 2;
    if (((u32)slot->seq * SPREAD >> 16 & mask) && !(slow && ns >= slow))
      continue;
    struct comm_key key = {.tgid = tgid, .comm = slot->comm};
    struct comm_state *comm = bpf_map_lookup_elem(&comms, &key);
    if (!comm)
      continue;
    struct event event = {};
    event.type = EVENT_COLLECTIVE;
    event.tgid = tgid;
    event.tid = tid;
    event.fn = slot->fn;
    event.dtype = slot->dtype;
    event.redop = slot->redop;
    event.id = comm->id;
    event.comm = slot->comm;
    event.seq = slot->seq;
    event.count = slot->count;
    event.arrival = slot->arrival;
    event.enqueue_ns = slot->enqueue_ns;
    event.blocked_ns = ns;
    event.end = now;
    event.rank = comm->rank;
    event.nranks = comm->nranks;
    event.device = comm->device;
    event.how = comm->how;
    event.exact = comm->exact;
    event.work = slot->work;
    send(&event);
  }
}

PROGRAM("uprobe")
int call_return(struct pt_regs *ctx)
{
  u64 cookie = bpf_get_attach_cookie(ctx), who = current_numbers();
  u32 tid = who, tgid = who >> 32;
  struct call_key key = {.tid = tid, .fn = FUNCTION(cookie)};
  struct call *call = bpf_map_lookup_elem(&start, &key);
  if (!call)
    return 0; /* it was called before the probe was attached */
  u64 now = bpf_ktime_get_ns(), ns = now - call->ts;
  u32 failed = RESULT != 0;
  struct agg_value *value = find_agg(tgid, FUNCTION(cookie), call->kind);
  if (value)
    add(value, now, ns, failed ? 0 : call->bytes, failed);
  if (WAITS(cookie))
    claim(tgid, tid, call, now);
  u64 slow = setting(2);
  if (slow && ns >= slow) {
    struct event event = {};
    event.type = EVENT_SLOW;
    event.tgid = tgid;
    event.tid = tid;
    event.fn = FUNCTION(cookie);
    event.count = call->bytes;
    event.arrival = call->ts;
    event.blocked_ns = ns;
    event.end = now;
    event.result = RESULT;
    send(&event);
  }
  bpf_map_delete_elem(&start, &key);
  return 0;
}

/* ---- NCCL: communicators by identity, a number for every collective, arrival and enqueue time. ---- */

/* The communicator's hash as NCCL computes it, so that its logs and ours agree. */
static inline u64 id_hash(u64 address)
{
  char id[128];
  if (bpf_probe_read_user(id, sizeof(id), (void *)address)) {
    lose(LOST_FAULT);
    return 0;
  }
  u64 hash = 5381;
#pragma unroll
  for (int i = 0; i < 128; i++)
    hash = ((hash << 5) + hash) ^ (u64)(s64)id[i];
  return hash;
}

/* Identity from the library's own structure; the offset was found in its machine code, and is checked again here. */
static inline int read_struct(u64 comm, u32 slot, struct comm_state *state)
{
  u64 *offset = bpf_map_lookup_elem(&rank_offset, &slot);
  if (!offset || !*offset)
    return -1;
  struct { u64 hash; u32 rank, nranks; s32 device; u32 pad; } seen = {};
  if (bpf_probe_read_user(&seen, 20, (void *)(comm + *offset - 8))) {
    lose(LOST_FAULT);
    return -1;
  }
  if (seen.nranks == 0 || seen.nranks > 1000000 || seen.rank >= seen.nranks) {
    lose(LOST_STRUCT);
    return -1;
  }
  state->id = seen.hash;
  state->rank = seen.rank;
  state->nranks = seen.nranks;
  state->device = seen.device;
  state->how = 2;
  return 0;
}

static inline void remember(u32 tgid, u32 tid, u64 comm, struct comm_state *state)
{
  struct comm_key key = {.tgid = tgid, .comm = comm};
  u64 now = bpf_ktime_get_ns();
  if (bpf_map_update_elem(&comms, &key, state, BPF_ANY))
    lose(LOST_COMMS);
  struct event event = {};
  event.type = EVENT_INIT;
  event.tgid = tgid;
  event.tid = tid;
  event.id = state->id;
  event.comm = comm;
  event.arrival = now;
  event.end = now;
  event.rank = state->rank;
  event.nranks = state->nranks;
  event.device = state->device;
  event.how = state->how;
  event.exact = state->exact;
  send(&event);
}

PROGRAM("uprobe")
int init_enter(struct pt_regs *ctx)
{
  u64 cookie = bpf_get_attach_cookie(ctx), who = current_numbers();
  u32 shape = SHAPE(cookie);
  struct call_key key = {.tid = who, .fn = FUNCTION(cookie)};
  struct call call = {};
  if (!who)
    return 0;
  call.ts = bpf_ktime_get_ns();
  call.shape = shape;
  u64 address = 0;
  if (setting(3)) {
    count_only(find_agg(who >> 32, key.fn, 0), 0);
    return 0;
  }
  if (shape == INIT_RANK) {
    call.handle = ARG0;
    call.nranks = ARG1;
    call.rank = RANK_AFTER_ID;
    address = UNIQUE_ID_ADDRESS;
  } else if (shape == INIT_SCALABLE) {
    call.handle = ARG0;
    call.nranks = ARG1;
    call.rank = ARG2;
    address = ARG4;
  } else if (shape == INIT_ALL) {
    call.handle = ARG0;
    call.nranks = ARG1;
  } else if (shape == SPLIT) {
    call.handle = ARG3;
  }
  if (address)
    call.id = id_hash(address);
  if (bpf_map_update_elem(&start, &key, &call, BPF_ANY))
    lose(LOST_START);
  return 0;
}

PROGRAM("uprobe")
int init_return(struct pt_regs *ctx)
{
  u64 cookie = bpf_get_attach_cookie(ctx), who = current_numbers();
  u32 tid = who, tgid = who >> 32, slot = SLOT(cookie);
  struct call_key key = {.tid = tid, .fn = FUNCTION(cookie)};
  struct call *call = bpf_map_lookup_elem(&start, &key);
  if (!call)
    return 0;
  u64 now = bpf_ktime_get_ns();
  u32 result = RESULT, failed = result != 0 && result != 7; /* 7: still under way, the communicator exists */
  struct agg_value *value = find_agg(tgid, FUNCTION(cookie), 0);
  if (value)
    add(value, now, now - call->ts, 0, failed);
  struct comm_state state = {};
  state.device = -1;
  u32 *ordinal = bpf_map_lookup_elem(&device, &tid);
  if (ordinal)
    state.device = *ordinal;
  state.exact = 1;
  if (failed) {
    struct event event = {};
    event.type = EVENT_INIT_FAILED;
    event.tgid = tgid;
    event.tid = tid;
    event.fn = FUNCTION(cookie);
    event.id = call->id;
    event.arrival = call->ts;
    event.end = now;
    event.rank = call->rank;
    event.nranks = call->nranks;
    event.result = result;
    send(&event);
  } else {
    u64 comm = call->handle ? stack_word(call->handle) : 0;
    if (comm) {
      if (call->shape == SPLIT) {
        read_struct(comm, slot, &state);
      } else {
        state.id = call->id;
        state.rank = call->rank;
        state.nranks = call->nranks;
        state.how = 1;
      }
      remember(tgid, tid, comm, &state);
    }
  }
  bpf_map_delete_elem(&start, &key);
  return 0;
}

/* One thread creates all members: the rank is the position; the identity is read from the first, for all. */
PROGRAM("uprobe")
int init_all_return(struct pt_regs *ctx)
{
  u64 cookie = bpf_get_attach_cookie(ctx), who = current_numbers();
  u32 tid = who, tgid = who >> 32, slot = SLOT(cookie);
  struct call_key key = {.tid = tid, .fn = FUNCTION(cookie)};
  struct call *call = bpf_map_lookup_elem(&start, &key);
  if (!call)
    return 0;
  u64 handle = call->handle;
  u32 count = call->nranks, failed = RESULT != 0 && RESULT != 7;
  bpf_map_delete_elem(&start, &key);
  struct agg_value *value = find_agg(tgid, FUNCTION(cookie), 0);
  if (value)
    tally(value, bpf_ktime_get_ns());
  if (failed)
    return 0;
  struct comm_state state = {};
  u64 comm = 0;
  bpf_probe_read_user(&comm, sizeof(comm), (void *)handle);
  u64 *offset = bpf_map_lookup_elem(&rank_offset, &slot);
  if (offset && *offset)
    bpf_probe_read_user(&state.id, sizeof(state.id), (void *)(comm + *offset - 8));
  state.how = 1;
  state.device = -1;
  state.exact = 1;
  state.nranks = count;
  if (count > MAX_INIT_ALL)
    lose(LOST_STRUCT);
#pragma clang loop unroll(full)
  for (u32 i = 0; i < MAX_INIT_ALL; i++) {
    comm = 0;
    if (i < count)
      bpf_probe_read_user(&comm, sizeof(comm), (void *)(handle + 8 * i));
    struct comm_key where = {.tgid = tgid, .comm = comm};
    state.rank = i;
    if (comm && bpf_map_update_elem(&comms, &where, &state, BPF_ANY))
      lose(LOST_COMMS);
  }
  return 0;
}

PROGRAM("uprobe")
int destroy_enter(struct pt_regs *ctx)
{
  u64 who = current_numbers();
  u32 tgid = who >> 32;
  if (!who)
    return 0;
  struct comm_key key = {.tgid = tgid, .comm = ARG0};
  struct comm_state *state = bpf_map_lookup_elem(&comms, &key);
  struct agg_value *value = find_agg(tgid, FUNCTION(bpf_get_attach_cookie(ctx)), 0);
  if (value)
    tally(value, bpf_ktime_get_ns());
  if (!state)
    return 0;
  struct event event = {};
  event.type = EVENT_DESTROY;
  event.tgid = tgid;
  event.tid = who;
  event.id = state->id;
  event.comm = ARG0;
  event.seq = state->seq;
  event.end = bpf_ktime_get_ns();
  event.rank = state->rank;
  event.nranks = state->nranks;
  event.device = state->device;
  event.how = state->how;
  event.exact = state->exact;
  send(&event);
  bpf_map_delete_elem(&comms, &key);
  return 0;
}

static inline struct comm_state *find_comm(struct comm_key *key, u32 slot)
{
  struct comm_state *state = bpf_map_lookup_elem(&comms, key);
  if (state)
    return state;
  struct comm_state fresh = {};
  fresh.device = -1;
  read_struct(key->comm, slot, &fresh);
  bpf_map_update_elem(&comms, key, &fresh, BPF_NOEXIST);
  state = bpf_map_lookup_elem(&comms, key);
  if (!state)
    lose(LOST_COMMS);
  return state;
}

static inline struct last *find_last(u32 tgid)
{
  struct last *last = bpf_map_lookup_elem(&last_coll, &tgid);
  if (last)
    return last;
  u32 zero = 0;
  struct last *fresh = bpf_map_lookup_elem(&zero_last, &zero);
  if (!fresh)
    return 0;
  bpf_map_update_elem(&last_coll, &tgid, fresh, BPF_NOEXIST);
  last = bpf_map_lookup_elem(&last_coll, &tgid);
  if (!last)
    lose(LOST_PENDING);
  return last;
}

/* The slot for a communicator's collective: its own, or one without a wait, or the oldest. */
static inline u32 choose(struct last *last, u64 comm)
{
  u32 spare = SLOTS, oldest = 0;
  u64 age = ~0ULL;
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < SLOTS; i++) {
    struct pending *slot = &last->slot[i];
    if (slot->comm == comm)
      return i;
    if (spare == SLOTS && slot->state != 1)
      spare = i;
    if (slot->arrival < age) {
      age = slot->arrival;
      oldest = i;
    }
  }
  if (spare < SLOTS)
    return spare;
  lose(LOST_PENDING);
  return oldest;
}

/* What the process did since its previous collective here that it waited for: the bytes of its other communicators. */
static inline u64 work_since(struct comm_state *state, struct last *last, u64 bytes)
{
  state->own += bytes;
  u64 others = last->bytes - state->own, known = state->counts;
  if (!known || state->waits != last->waits)
    state->base = known ? state->others : others;
  state->counts = 1;
  state->others = others;
  state->waits = last->waits;
  return known ? others - state->base : UNKNOWN_WORK;
}

PROGRAM("uprobe")
int coll_enter(struct pt_regs *ctx)
{
  u64 cookie = bpf_get_attach_cookie(ctx), who = current_numbers();
  u32 shape = SHAPE(cookie), tid = who, tgid = who >> 32;
  struct call_key key = {.tid = tid, .fn = FUNCTION(cookie)};
  struct call call = {};
  u64 stream = 0;
  if (!who)
    return 0;
  u32 dtype = ARG3, redop = 0xff;
  call.ts = bpf_ktime_get_ns();
  call.bytes = ARG2;
  call.shape = shape;
  if (shape == COMM_5) {
    call.comm = ARG5;
    stream = ARG6;
    redop = ARG4;
  } else if (shape == ROOTED) { /* a root where the reduction is */
    call.comm = ARG5;
    stream = ARG6;
  } else if (shape == COMM_4) {
    call.comm = ARG4;
    stream = ARG5;
  } else if (shape == COMM_6) {
    call.comm = ARG6;
    stream = ARG7;
    redop = ARG4;
  } else {
    call.bytes = ARG1;
    dtype = ARG2;
    call.comm = ARG4;
    stream = ARG5;
  }
  if (dtype > 0xff)
    dtype = 0xff;
  if (redop > 0xff)
    redop = 0xff;
  call.kind = dtype | redop << 8;
  u64 bytes = dtype < DATA_TYPES ? call.bytes << (ELEMENT_SHIFTS >> 2 * dtype & 3) : 0;
  if (shape == POINT_TO_POINT) {
    struct last *last = bpf_map_lookup_elem(&last_coll, &tgid);
    if (last)
      __sync_fetch_and_add(&last->bytes, bytes);
  } else if (call.comm) {
    struct comm_key where = {.tgid = tgid, .comm = call.comm};
    struct comm_state *state = find_comm(&where, SLOT(cookie));
    struct last *last = state ? find_last(tgid) : 0;
    if (state)
      call.seq = state->seq += 1; /* NCCL forbids two threads in one communicator */
    if (state && last) {
      __sync_fetch_and_add(&last->bytes, bytes);
      u32 *depth = last->grouping ? bpf_map_lookup_elem(&group, &tid) : 0;
      struct pending *mine = &last->slot[choose(last, call.comm) % SLOTS];
      mine->comm = call.comm;
      mine->seq = call.seq;
      mine->arrival = call.ts;
      mine->count = call.bytes;
      mine->enqueue_ns = 0;
      mine->stream = stream;
      mine->work = work_since(state, last, bytes);
      mine->group_tid = depth && *depth ? tid : 0;
      mine->device = state->device;
      mine->fn = key.fn;
      mine->dtype = dtype;
      mine->redop = redop;
      mine->state = 1;
    }
  }
  if (setting(3)) {
    struct coll_key where = {.tgid = tgid, .fn = key.fn, .dtype = dtype, .redop = redop, .comm = call.comm};
    count_only(find_coll(&where), call.bytes);
    return 0;
  }
  if (bpf_map_update_elem(&start, &key, &call, BPF_ANY))
    lose(LOST_START);
  return 0;
}

PROGRAM("uprobe")
int coll_return(struct pt_regs *ctx)
{
  u64 cookie = bpf_get_attach_cookie(ctx), who = current_numbers();
  u32 tid = who, tgid = who >> 32;
  struct call_key key = {.tid = tid, .fn = FUNCTION(cookie)};
  struct call *call = bpf_map_lookup_elem(&start, &key);
  if (!call)
    return 0;
  u64 now = bpf_ktime_get_ns(), ns = now - call->ts;
  u32 failed = RESULT != 0 && RESULT != 7;
  struct coll_key where = {
      .tgid = tgid, .fn = FUNCTION(cookie), .dtype = call->kind, .redop = call->kind >> 8, .comm = call->comm};
  struct agg_value *value = find_coll(&where);
  if (value)
    add(value, now, ns, call->bytes, failed);
  struct last *last = bpf_map_lookup_elem(&last_coll, &tgid);
  if (last && call->seq) {
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < SLOTS; i++)
      if (last->slot[i].comm == call->comm && last->slot[i].seq == call->seq)
        last->slot[i].enqueue_ns = ns;
  }
  bpf_map_delete_elem(&start, &key);
  return 0;
}

/* Members of a group are launched by the outermost ncclGroupEnd: that is when all of them arrive. */
PROGRAM("uprobe")
int group_enter(struct pt_regs *ctx)
{
  u64 cookie = bpf_get_attach_cookie(ctx), who = current_numbers();
  u32 tid = who, tgid = who >> 32, one = 1;
  if (!who)
    return 0;
  struct agg_value *value = find_agg(tgid, FUNCTION(cookie), 0);
  if (value)
    tally(value, bpf_ktime_get_ns());
  u32 *depth = bpf_map_lookup_elem(&group, &tid);
  if (SHAPE(cookie) == GROUP_START) {
    if (depth) {
      *depth += 1;
      return 0;
    }
    struct last *mine = find_last(tgid);
    if (mine && !bpf_map_update_elem(&group, &tid, &one, BPF_ANY))
      __sync_fetch_and_add(&mine->grouping, 1);
    return 0;
  }
  if (!depth)
    return 0;
  if (*depth > 1) {
    *depth -= 1;
    return 0;
  }
  bpf_map_delete_elem(&group, &tid);
  struct last *last = bpf_map_lookup_elem(&last_coll, &tgid);
  if (!last)
    return 0;
  __sync_fetch_and_add(&last->grouping, -1);
  u64 now = bpf_ktime_get_ns();
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < SLOTS; i++)
    if (last->slot[i].group_tid == tid) {
      last->slot[i].group_tid = 0;
      last->slot[i].arrival = now;
    }
  return 0;
}
