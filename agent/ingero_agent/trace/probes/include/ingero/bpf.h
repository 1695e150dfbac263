/* What the programs need of the kernel's interface, for two compilers.
 *
 * clang makes the objects that are shipped: libbpf creates their maps, whose sizes it is given, and puts the values of
 * the running kernel into `values`. BCC compiles on the node: sizes and values are definitions, and BCC has its own
 * helpers.
 */
#ifndef INGERO_BPF_H
#define INGERO_BPF_H
#include <uapi/linux/ptrace.h>

#ifdef WITH_BCC

#define MAP(kind, key, value, name, entries) BPF_TABLE(#kind, key, value, name, entries)
#define RING(name, pages) BPF_RINGBUF_OUTPUT(name, pages)
#define PROGRAM(kind)
#define KERNEL(name) VALUE_##name
#define OF_CONTEXT(type, member) ((u64)((type *)ctx)->member)

#else

#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#define PROGRAM(kind) SEC(kind)
#define inline inline __attribute__((always_inline))
#define BPF_ANY 0
#define BPF_NOEXIST 1

/* Numbers of map types and helpers are ABI. */
enum { MAP_hash = 1, MAP_array = 2, MAP_percpu_hash = 5, MAP_percpu_array = 6, MAP_lru_hash = 9, MAP_ringbuf = 27 };
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static u64 (*const bpf_get_current_task)(void) = (void *)35;
static long (*const bpf_probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const bpf_ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static u64 (*const bpf_get_attach_cookie)(void *ctx) = (void *)174;

struct bpf_raw_tracepoint_args { u64 args[4]; };

/* A map's description is its type, as libbpf reads it; 0 entries are set when it is loaded. */
#define MAP(kind_, key_, value_, name, entries_)                                                                      \
  struct {                                                                                                             \
    int (*type)[MAP_##kind_];                                                                                          \
    int (*max_entries)[entries_];                                                                                      \
    typeof(key_) *key;                                                                                                 \
    typeof(value_) *value;                                                                                             \
  } name SEC(".maps")
#define RING(name, bytes)                                                                                              \
  struct {                                                                                                             \
    int (*type)[MAP_ringbuf];                                                                                          \
    int (*max_entries)[bytes];                                                                                         \
  } name SEC(".maps")
#define AGG_ENTRIES 0
#define COLL_ENTRIES 0
#define RING_PAGES 0

char LICENSE[] SEC("license") = "GPL";

/* `prebuilt.py` writes these in this order. */
const volatile struct {
  u32 pid_offset, state_offset, prev_argument, next_argument, state_argument;
  u32 pid_namespace, task_thread_pid, task_leader, pid_level, pid_numbers, upid_size, upid_nr, upid_ns, ns_inum;
} values SEC(".rodata") = {};
#define KERNEL(name) values.name

/* A word that the kernel passes. Not in C: of two of them the compiler makes one read at a computed place, which the
 * kernel refuses.
 */
#define OF_CONTEXT(type, member)                                                                                       \
  ({                                                                                                                   \
    u64 word_;                                                                                                         \
    asm volatile("%0 = *(u64 *)(%1 + %2)" : "=r"(word_) : "r"(ctx), "i"(__builtin_offsetof(type, member)));           \
    word_;                                                                                                             \
  })

#endif
#endif
