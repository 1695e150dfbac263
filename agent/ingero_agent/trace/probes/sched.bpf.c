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
BPF_TABLE("hash", u32, u32, tracked, 1024);
BPF_TABLE("hash", u32, struct away, off, 16384);
/* When a thread of a process was last pushed off by a task; the least recent may be forgotten. */
struct pushed_key { u32 tgid, by; };
BPF_TABLE("lru_hash", struct pushed_key, u64, pushed, 4096);

static inline void account(u32 tgid, u32 fn, u64 ns)
{
  struct agg_value *value = find_agg(tgid, fn, 0);
  if (value)
    add(value, 0, ns, 0, 0);
}

int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
  u64 now = bpf_ktime_get_ns();
  u32 next = 0, tid = bpf_get_current_pid_tgid(), tgid = tid ? current_numbers() >> 32 : 0;
  bpf_probe_read_kernel(&next, sizeof(next), (void *)(ctx->args[NEXT_ARGUMENT] + PID_OFFSET));
  struct away *back = off.lookup(&next);
  if (back) {
    u64 wanted = back->runnable ? back->since : back->woken;
    if (back->disk)
      account(back->tgid, DISK_WAIT, (wanted ? wanted : now) - back->since);
    if (wanted)
      account(back->tgid, SCHED_SWITCH, now - wanted);
    off.delete(&next);
  }
  if (!tgid || !tracked.lookup(&tgid))
    return 0;
#ifdef STATE_ARGUMENT
  u32 state = ctx->args[STATE_ARGUMENT];
#else
  u32 state = 0;
  bpf_probe_read_kernel(&state, sizeof(state), (void *)(ctx->args[PREV_ARGUMENT] + STATE_OFFSET));
#endif
  u32 preempted = ctx->args[0] & 1;
  if (!preempted && (state & STATE_DEAD))
    return 0;
  struct away fresh = {.since = now, .tgid = tgid};
  fresh.runnable = preempted || !(state & STATE_SLEEPS);
  fresh.disk = !fresh.runnable && (state & STATE_DISK);
  if (fresh.runnable && next) {
#ifdef PID_NAMESPACE
    struct pushed_key who = {.tgid = tgid, .by = numbers_of(ctx->args[NEXT_ARGUMENT])};
#else
    struct pushed_key who = {.tgid = tgid, .by = next};
#endif
    pushed.update(&who, &now);
  }
  if (off.update(&tid, &fresh))
    lose(LOST_START);
  return 0;
}

int on_wakeup(struct bpf_raw_tracepoint_args *ctx)
{
  u32 tid = 0;
  bpf_probe_read_kernel(&tid, sizeof(tid), (void *)(ctx->args[0] + PID_OFFSET));
  struct away *away = off.lookup(&tid);
  if (away && !away->runnable && !away->woken)
    away->woken = bpf_ktime_get_ns();
  return 0;
}
