/* A stand-in for libcuda.so.1: what a client of MPS sees of a GPU of 132 SMs and 80 GiB, asked of the stand-in for the
 * control daemon. A percentage without a daemon is ignored; under static partitioning nobody starts without a partition.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMS 132
#define SMS_PER_CHUNK 8
#define INVALID_RESOURCE_CONFIGURATION 915

static int first_line(const char *name, char *line, int size) {
#ifdef IGNORES_DAEMONS
    return 0;
#endif
    char path[4096];
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "/nowhere", name);
    FILE *file = fopen(path, "r");
    int found = file && fgets(line, size, file);
    if (file) fclose(file);
    return found != 0;
}

static int chunks_of(const char *partition) {
    char path[4096], id[256];
    int chunks;
    snprintf(path, sizeof path, "%s/partitions", getenv("CUDA_MPS_PIPE_DIRECTORY"));
    FILE *file = fopen(path, "r");
    const char *wanted = strchr(partition, '/');
    while (file && wanted && fscanf(file, "%255s %d", id, &chunks) == 2)
        if (!strcmp(id, wanted + 1)) { fclose(file); return chunks; }
    if (file) fclose(file);
    return 0;
}

int cuInit(unsigned flags) {
    char line[1024];
    (void)flags;
    if (getenv("STANDIN_NO_GPU")) return 100;
    if (!first_line("running", line, sizeof line) || !strstr(line, "-S")) return 0;
    const char *partition = getenv("CUDA_MPS_SM_PARTITION");
    return partition && chunks_of(partition) ? 0 : INVALID_RESOURCE_CONFIGURATION;
}

int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    char line[1024];
    const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *partition = getenv("CUDA_MPS_SM_PARTITION");
    (void)attribute, (void)device;
    *value = SMS;
    if (!first_line("running", line, sizeof line) && !first_line("../../running", line, sizeof line)) return 0;
    if (partition) *value = SMS_PER_CHUNK * chunks_of(partition);
    else if (percent) *value = SMS * atoi(percent) / 100;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = 80ull << 30; return 0; }

int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return device; }

int cuCtxSetCurrent(void *context) { (void)context; return 0; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) { return *free_bytes = 79ull << 30, cuDeviceTotalMem_v2(total_bytes, 0); }

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    static size_t taken;
    const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    size_t most = limit && !strncmp(limit, "0=", 2) ? strtoull(limit + 2, 0, 10) << 20 : 79ull << 30;
    if (taken + bytes > most) return 2;
    *address = taken += bytes;
    return 0;
}
