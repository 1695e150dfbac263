/* The few entry points of libnvidia-ml.so.1 that the agent reaches, answering from NVML_* environment variables.
   A list such as NVML_REASONS=4,0x40 has one number a GPU; NVML_LOST=0,1 says which GPUs are lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

static unsigned long long number(const char *list, unsigned index, unsigned long long otherwise)
{
    const char *text = getenv(list);
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

const char *nvmlErrorString(int code) { (void)code; return "an error of the imaginary driver"; }
