/* For LD_PRELOAD: /proc/PID/cgroup as on a host that has cgroup v2 alone.
 *
 * Slurm's plugin cgroup/v2 refuses to start where /proc/self/cgroup has lines of version 1 beside the one of version 2,
 * as on a host that mounts both. All else is the kernel's: the folders, who is in them, and how a job's are removed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef FILE *opening(const char *, const char *);

static int is_cgroup_file(const char *path) {
    size_t length = strlen(path);
    return length > 13 && strncmp(path, "/proc/", 6) == 0 && strcmp(path + length - 7, "/cgroup") == 0;
}

static int open_unified(const char *path) {
    FILE *file = ((opening *)dlsym(RTLD_NEXT, "fopen"))(path, "r");
    if (file == NULL) return -1;
    int shown = memfd_create("cgroup", MFD_CLOEXEC);
    char line[4096];
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "0::", 3) == 0 && write(shown, line, strlen(line)) < 0) break;
    fclose(file);
    lseek(shown, 0, SEEK_SET);
    return shown;
}

#define OPEN(name)                                                                                    \
    int name(const char *path, int flags, ...) {                                                      \
        va_list arguments;                                                                            \
        va_start(arguments, flags);                                                                   \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;                \
        va_end(arguments);                                                                            \
        if (is_cgroup_file(path)) return open_unified(path);                                          \
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode);         \
    }

#define FOPEN(name)                                                                                   \
    FILE *name(const char *path, const char *mode) {                                                  \
        if (!is_cgroup_file(path)) return ((opening *)dlsym(RTLD_NEXT, #name))(path, mode);           \
        int shown = open_unified(path);                                                               \
        return shown < 0 ? NULL : fdopen(shown, "r");                                                 \
    }

OPEN(open)
OPEN(open64)
FOPEN(fopen)
FOPEN(fopen64)
