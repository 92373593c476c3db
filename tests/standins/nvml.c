/* Stands in for libnvidia-ml.so.1: the real pynvml asks it, and it answers from the file that NVML_STANDIN names.
 * The file has a line per fact: "utilization 40", "energy 5000", "sm 30", "dram 20", "process 1234 3000000000".
 * "slice 3" says that this GPU's instance 3 is a slice whose UUID begins with MIG-; its own lines are "slice.sm 50" and
 * so on, for a slice has no utilization, samples or energy of its own.
 * What the file does not say, this GPU does not have: NVML_ERROR_NOT_SUPPORTED.
 * Who asks for the processes leaves a line in the file of the same name with ".looks" behind it, where there is one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { UNSIGNED_INT = 1, BUSY = 1, SM_UTIL = 2 };
#define SLICE ((void *)100) /* the handle of the slice; its GPU has 1 */

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long time_us; union { double d; unsigned u; unsigned long long ull; } value; } Sample;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned id; int outcome; double value; char *names[3]; } Metric;
typedef struct { unsigned version, count; void *first, *last; Metric metrics[477]; } Metrics;

/* Return 1 and the numbers of the (skip + 1)th line that begins with word, 0 where there is none. */
static int fact(const char *word, int skip, unsigned long long *one, unsigned long long *two) {
    char line[256], name[64];
    FILE *file = fopen(getenv("NVML_STANDIN") ? getenv("NVML_STANDIN") : "/dev/null", "r");
    int seen = 0;
    *one = *two = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%63s %llu %llu", name, one, two) >= 2 && !strcmp(name, word) && seen++ == skip) {
            fclose(file);
            return 1;
        }
    if (file) fclose(file);
    return 0;
}

/* Tell whoever waits for it that somebody has looked. */
static void tell_of_look(void) {
    char path[4096];
    FILE *file = NULL;
    snprintf(path, sizeof path, "%s.looks", getenv("NVML_STANDIN") ? getenv("NVML_STANDIN") : "/dev/null");
    if (!access(path, W_OK)) file = fopen(path, "a");
    if (file) fputs("look\n", file), fclose(file);
}

static unsigned long long one, two;

const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Error"; }
int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return index < 2 ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)1;
    if (!strcmp(uuid, "MIG-11111111-2222-3333-4444-555555555555") && fact("slice", 0, &one, &two)) {
        *device = SLICE;
        return SUCCESS;
    }
    return strcmp(uuid, "GPU-11111111-2222-3333-4444-555555555555") ? NOT_FOUND : SUCCESS;
}
int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is_slice) {
    *is_slice = device == SLICE;
    return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **device) {
    *device = (void *)1;
    return slice == SLICE ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(void *slice, unsigned *id) {
    if (slice != SLICE || !fact("slice", 0, &one, &two)) return NOT_SUPPORTED;
    *id = (unsigned)one;
    return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    snprintf(name, length, device == SLICE ? "NVIDIA H100 80GB HBM3 MIG 1g.10gb" : "Tesla V100-SXM2-16GB");
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
    if (device == SLICE || !fact("utilization", 0, &one, &two)) return NOT_SUPPORTED;
    rates->gpu = (unsigned)one;
    return SUCCESS;
}
int nvmlDeviceGetSamples(void *device, int kind, unsigned long long since, int *type, unsigned *count, Sample *samples) {
    if (device == SLICE || !fact("sample", 0, &one, &two)) return NOT_SUPPORTED;
    *type = UNSIGNED_INT;
    for (*count = 0; fact("sample", (int)*count, &one, &two); ++*count)
        if (samples) samples[*count].time_us = one, samples[*count].value.u = (unsigned)two;
    return SUCCESS;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    return device != SLICE && fact("energy", 0, millijoules, &two) ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
    unsigned room = *count;
    tell_of_look();
    for (*count = 0; fact("process", (int)*count, &one, &two); ++*count)
        if (processes && *count < room) processes[*count] = (Process){.pid = (unsigned)one, .used = two ? two : ~0ULL};
    return *count > room || (!processes && *count) ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlGpmQueryDeviceSupport(void *device, Support *support) {
    if (device == SLICE) return NOT_SUPPORTED; /* a question about the GPU */
    support->supported = (unsigned)(fact("sm", 0, &one, &two) || fact("slice.sm", 0, &one, &two));
    return SUCCESS;
}
int nvmlGpmSampleAlloc(void **sample) {
    *sample = calloc(1, 1);
    return SUCCESS;
}
int nvmlGpmSampleGet(void *device, void *sample) { return device == SLICE ? NOT_SUPPORTED : SUCCESS; }
int nvmlGpmMigSampleGet(void *device, unsigned instance, void *sample) {
    if (device == SLICE || !fact("slice", 0, &one, &two) || one != instance) return NOT_FOUND;
    *(char *)sample = 1;
    return SUCCESS;
}
int nvmlGpmSampleFree(void *sample) {
    free(sample);
    return SUCCESS;
}
int nvmlGpmMetricsGet(Metrics *asked) {
    for (unsigned place = 0; place < asked->count; ++place) {
        Metric *metric = &asked->metrics[place];
        char name[32];
        snprintf(name, sizeof name, "%s%s", *(char *)asked->first ? "slice." : "",
                 metric->id == BUSY ? "busy" : metric->id == SM_UTIL ? "sm" : "dram");
        metric->outcome = fact(name, 0, &one, &two) ? SUCCESS : NOT_SUPPORTED;
        metric->value = (double)one;
    }
    return SUCCESS;
}
