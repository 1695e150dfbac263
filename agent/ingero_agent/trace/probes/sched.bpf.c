/* Time that threads of traced processes spend off the CPU, split by why: runnable (starved) or waiting.
 *
 * Structure offsets come from the kernel's BTF by -D. The tgid filter holds process ids, the state is kept by thread.
 */
#include <uapi/linux/ptrace.h>
#include <linux/sched.h>

struct off { u64 out, woken; u32 tgid, runnable; };
struct stall { u64 starved_n, starved_ns, starved_max, waited_n, waited_ns; u32 log2[32]; };

BPF_TABLE("hash", u32, u32, tracked, 1024);
BPF_TABLE("hash", u32, struct off, off, 16384);
BPF_TABLE("percpu_hash", u32, struct stall, stalls, STALL_ENTRIES);
BPF_TABLE("array", u32, struct stall, zero_stall, 1);
BPF_TABLE("percpu_array", u32, u64, sched_lost, 4);
BPF_TABLE("percpu_array", u32, u64, switches, 1);

static inline void lose(u32 reason)
{
  u64 *count = sched_lost.lookup(&reason);
  if (count)
    __sync_fetch_and_add(count, 1);
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

static inline struct stall *find_stall(u32 tgid)
{
  struct stall *value = stalls.lookup(&tgid);
  if (value)
    return value;
  u32 zero = 0;
  struct stall *fresh = zero_stall.lookup(&zero);
  if (!fresh)
    return 0;
  stalls.insert(&tgid, fresh);
  value = stalls.lookup(&tgid);
  if (!value)
    lose(1);
  return value;
}

static inline u32 task_field(u64 task, u32 offset)
{
  u32 value = 0;
  bpf_probe_read_kernel(&value, sizeof(value), (void *)(task + offset));
  return value;
}

int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
  u64 now = bpf_ktime_get_ns();
  u64 id = bpf_get_current_pid_tgid(), preempt = ctx->args[0], next = ctx->args[2];
  u32 prev_tgid = id >> 32, prev_tid = id, zero = 0;
  u64 *seen = switches.lookup(&zero);
  if (seen)
    __sync_fetch_and_add(seen, 1);
  if (tracked.lookup(&prev_tgid)) {
#if STATE_ARGUMENT >= 0
    u64 state = ctx->args[STATE_ARGUMENT];
#else
    u64 state = task_field(ctx->args[1], STATE_OFFSET);
#endif
    struct off left = {.out = now, .tgid = prev_tgid, .runnable = preempt || !(state & 0x7f)};
    if (off.update(&prev_tid, &left))
      lose(0);
  }
  u32 next_tid = task_field(next, PID_OFFSET);
  struct off *back = off.lookup(&next_tid);
  if (!back)
    return 0;
  struct stall *value = find_stall(back->tgid);
  if (value) {
    u64 starved = 0;
    if (back->runnable) {
      starved = now - back->out;
    } else if (back->woken > back->out) {
      starved = now - back->woken;
      __sync_fetch_and_add(&value->waited_n, 1);
      __sync_fetch_and_add(&value->waited_ns, back->woken - back->out);
    } else {
      __sync_fetch_and_add(&value->waited_n, 1);
      __sync_fetch_and_add(&value->waited_ns, now - back->out);
    }
    if (starved) {
      __sync_fetch_and_add(&value->starved_n, 1);
      __sync_fetch_and_add(&value->starved_ns, starved);
      if (starved > value->starved_max)
        value->starved_max = starved;
      __sync_fetch_and_add(&value->log2[magnitude(starved) & 31], 1);
    }
  }
  off.delete(&next_tid);
  return 0;
}

int on_wakeup(struct bpf_raw_tracepoint_args *ctx)
{
  u64 task = ctx->args[0];
  u32 tgid = task_field(task, TGID_OFFSET);
  if (!tracked.lookup(&tgid))
    return 0;
  u32 tid = task_field(task, PID_OFFSET);
  struct off *left = off.lookup(&tid);
  if (left)
    left->woken = bpf_ktime_get_ns();
  return 0;
}
