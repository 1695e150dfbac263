/* The entry points of libnvidia-ml.so.1 that the agent calls. They answer from NVML_* environment variables, or from
   lines NAME=VALUE of the file that NVML_FILE names, which may change while the process runs.
   A list such as NVML_REASONS=4,0x40 has one number per GPU; in NVML_LOST=0,1 the second GPU is lost. NVML_HANG=N
   makes every count of GPUs take N seconds. The one process of a GPU is NVML_PIDS, with NVML_PID_GIB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };

static const char *setting(const char *name)
{
    static _Thread_local char line[256];
    const char *path = getenv("NVML_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = strlen(name);
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && line[length] == '=') {
            fclose(file);
            return line + length + 1;
        }
    if (file)
        fclose(file);
    return getenv(name);
}

static unsigned long long number(const char *list, unsigned index, unsigned long long otherwise)
{
    const char *text = setting(list);
    while (text && *text) {
        char *end;
        unsigned long long value = strtoull(text, &end, 0);
        if (!index--)
            return value;
        text = *end == ',' ? end + 1 : "";
    }
    return otherwise;
}

static unsigned at(const void *device) { return (unsigned)(unsigned long)device - 1; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return (int)number("NVML_INIT", 0, OK); }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)number("NVML_COUNT", 0, 1);
    sleep((unsigned)number("NVML_HANG", 0, 0));
    return (int)number("NVML_COUNT_FAILS", 0, OK);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(unsigned long)(index + 1);
    return number("NVML_LOST", index, 0) ? GPU_IS_LOST : OK;
}

int nvmlDeviceGetName(const void *device, char *name, unsigned length)
{
    (void)device;
    snprintf(name, length, "NVIDIA Imaginary 80GB");
    return OK;
}

int nvmlDeviceGetUUID(const void *device, char *uuid, unsigned length)
{
    snprintf(uuid, length, "GPU-%u", at(device));
    return OK;
}

struct memory { unsigned long long total, free, used; };

int nvmlDeviceGetMemoryInfo(const void *device, struct memory *memory)
{
    memory->total = 80ULL << 30;
    memory->used = number("NVML_USED_GIB", at(device), 0) << 30;
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(const void *device, unsigned long long *reasons)
{
    *reasons = number("NVML_REASONS", at(device), 0);
    return number("NVML_UNSUPPORTED", at(device), 0) ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetClockInfo(const void *device, unsigned kind, unsigned *megahertz)
{
    *megahertz = (unsigned)number(kind == 1 ? "NVML_SM_MHZ" : "NVML_MEMORY_MHZ", at(device), 1980);
    return OK;
}

int nvmlDeviceGetMaxClockInfo(const void *device, unsigned kind, unsigned *megahertz)
{
    (void)device, (void)kind;
    *megahertz = 1980;
    return OK;
}

struct violation { unsigned long long reference_ns, held_ns; };

int nvmlDeviceGetViolationStatus(const void *device, unsigned policy, struct violation *violation)
{
    violation->reference_ns = 0;
    violation->held_ns = number(policy ? "NVML_THERMAL_NS" : "NVML_POWER_NS", at(device), 0);
    return number("NVML_NO_VIOLATIONS", at(device), 0) ? NOT_SUPPORTED : OK;
}

struct process { unsigned pid; unsigned long long used; unsigned instance, compute; };

int nvmlDeviceGetComputeRunningProcesses_v3(const void *device, unsigned *count, struct process *processes)
{
    unsigned pid = (unsigned)number("NVML_PIDS", at(device), 0), room = *count;
    *count = pid != 0;
    if (room < *count)
        return INSUFFICIENT_SIZE;
    if (pid)
        *processes = (struct process){pid, number("NVML_PID_GIB", at(device), 0) << 30, ~0u, ~0u};
    return OK;
}

const char *nvmlErrorString(int code) { (void)code; return "an error of the imaginary driver"; }
