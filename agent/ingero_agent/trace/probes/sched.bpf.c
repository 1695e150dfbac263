/* Time in which threads of traced processes wait for a processor, by their real state.
 *
 * At a switch the current task is the one that leaves. A thread that leaves while it could run waits from then on. A
 * thread that sleeps waits from its wake-up on; the time before is sleep, or disk wait if uninterruptible. Sleep is not
 * counted. Compiled behind calls.bpf.c; the offsets of the running kernel come from its BTF. Threads that are
 * away are kept by the kernel's own number; processes, and who pushed them off, by the number that the agent sees.
 */
#define STATE_SLEEPS 0x7f
#define STATE_DISK 0x02
#define STATE_DEAD 0xb0

struct away { u64 since, woken; u32 tgid, runnable, disk, pad; };
MAP(hash, u32, u32, tracked, 1024);
MAP(hash, u32, struct away, off, 16384);
/* When a thread of a process was last pushed off by a task; the least recent may be forgotten. */
struct pushed_key { u32 tgid, by; };
MAP(lru_hash, struct pushed_key, u64, pushed, 4096);

static inline void account(u32 tgid, u32 fn, u64 ns)
{
  struct agg_value *value = find_agg(tgid, fn, 0);
  if (value)
    add(value, 0, ns, 0, 0);
}

#define ARGUMENT(number) OF_CONTEXT(struct bpf_raw_tracepoint_args, args[number])

/* A program must not read a fourth argument where the kernel passes three. The verifier knows the number, and leaves out
 * what is not reached.
 */
static inline u64 argument(struct bpf_raw_tracepoint_args *ctx, u32 number)
{
  return number == 1 ? ARGUMENT(1) : number == 2 ? ARGUMENT(2) : number == 3 ? ARGUMENT(3) : 0;
}

PROGRAM("raw_tp")
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
  u64 now = bpf_ktime_get_ns();
  u32 next = 0, tid = bpf_get_current_pid_tgid(), tgid = tid ? current_numbers() >> 32 : 0;
  bpf_probe_read_kernel(&next, sizeof(next), (void *)(argument(ctx, KERNEL(next_argument)) + KERNEL(pid_offset)));
  struct away *back = bpf_map_lookup_elem(&off, &next);
  if (back) {
    u64 wanted = back->runnable ? back->since : back->woken;
    if (back->disk)
      account(back->tgid, DISK_WAIT, (wanted ? wanted : now) - back->since);
    if (wanted)
      account(back->tgid, SCHED_SWITCH, now - wanted);
    bpf_map_delete_elem(&off, &next);
  }
  if (!tgid || !bpf_map_lookup_elem(&tracked, &tgid))
    return 0;
  u32 preempted = ARGUMENT(0) & 1, state = argument(ctx, KERNEL(state_argument));
  if (!KERNEL(state_argument))
    bpf_probe_read_kernel(&state, sizeof(state), (void *)(argument(ctx, KERNEL(prev_argument)) + KERNEL(state_offset)));
  if (!preempted && (state & STATE_DEAD))
    return 0;
  struct away fresh = {.since = now, .tgid = tgid};
  fresh.runnable = preempted || !(state & STATE_SLEEPS);
  fresh.disk = !fresh.runnable && (state & STATE_DISK);
  if (fresh.runnable && next) {
#ifdef IN_NAMESPACE
    struct pushed_key who = {.tgid = tgid, .by = numbers_of(argument(ctx, KERNEL(next_argument)))};
#else
    struct pushed_key who = {.tgid = tgid, .by = next};
#endif
    bpf_map_update_elem(&pushed, &who, &now, BPF_ANY);
  }
  if (bpf_map_update_elem(&off, &tid, &fresh, BPF_ANY))
    lose(LOST_START);
  return 0;
}

PROGRAM("raw_tp")
int on_wakeup(struct bpf_raw_tracepoint_args *ctx)
{
  u32 tid = 0;
  bpf_probe_read_kernel(&tid, sizeof(tid), (void *)(ARGUMENT(0) + KERNEL(pid_offset)));
  struct away *away = bpf_map_lookup_elem(&off, &tid);
  if (away && !away->runnable && !away->woken)
    away->woken = bpf_ktime_get_ns();
  return 0;
}
