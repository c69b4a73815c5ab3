/* Counts the changes of the file system below one folder, and makes the n-th of them fail or kills the process before it.
 * Loaded before libc (LD_PRELOAD); `faults_arm` begins to count, `faults_count` says how many there were. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char below[4096];
static long nth = -1;
static int code; /* an errno, or 0: SIGKILL */
static long count;

void faults_arm(const char *folder, long n, int error) {
    strncpy(below, folder, sizeof below - 1);
    count = 0;
    code = error;
    nth = n;
}

long faults_count(void) { return count; }

static int is_below(int folder, const char *path) {
    char base[4096], link[64];
    if (path && path[0] == '/')
        return strncmp(path, below, strlen(below)) == 0;
    if (folder == AT_FDCWD)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t size = readlink(link, base, sizeof base - 1);
    if (size < 0)
        return 0;
    base[size] = 0;
    return strncmp(base, below, strlen(below)) == 0;
}

/* Whether the call is to fail. */
static int hit(int folder, const char *path) {
    if (nth < 0 || !is_below(folder, path))
        return 0;
    if (__atomic_fetch_add(&count, 1, __ATOMIC_SEQ_CST) != nth)
        return 0;
    if (code == 0)
        kill(getpid(), SIGKILL);
    errno = code;
    return 1;
}

#define REAL(name, type, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
#define WRITES (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC)

#define OPEN(name)                                                                   \
    int name(const char *path, int flags, ...) {                                     \
        va_list rest;                                                                \
        va_start(rest, flags);                                                       \
        int mode = va_arg(rest, int);                                                \
        va_end(rest);                                                                \
        if ((flags & WRITES) && hit(AT_FDCWD, path))                                 \
            return -1;                                                               \
        return REAL(name, int, const char *, int, ...)(path, flags, mode);           \
    }
#define OPENAT(name)                                                                 \
    int name(int folder, const char *path, int flags, ...) {                         \
        va_list rest;                                                                \
        va_start(rest, flags);                                                       \
        int mode = va_arg(rest, int);                                                \
        va_end(rest);                                                                \
        if ((flags & WRITES) && hit(folder, path))                                   \
            return -1;                                                               \
        return REAL(name, int, int, const char *, int, ...)(folder, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define CALL(type, name, where, path, parameters, arguments, ...)                    \
    type name parameters {                                                           \
        if (hit(where, path))                                                        \
            return -1;                                                               \
        return REAL(name, type, __VA_ARGS__) arguments;                              \
    }
CALL(ssize_t, write, fd, NULL, (int fd, const void *data, size_t size), (fd, data, size), int, const void *, size_t)
CALL(ssize_t, pwrite, fd, NULL, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), int, const void *, size_t, off_t)
CALL(ssize_t, pwrite64, fd, NULL, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), int, const void *, size_t, off_t)
CALL(int, fsync, fd, NULL, (int fd), (fd), int)
CALL(int, fdatasync, fd, NULL, (int fd), (fd), int)
CALL(int, syncfs, fd, NULL, (int fd), (fd), int)
CALL(int, ftruncate, fd, NULL, (int fd, off_t size), (fd, size), int, off_t)
CALL(int, ftruncate64, fd, NULL, (int fd, off_t size), (fd, size), int, off_t)
CALL(int, fchmod, fd, NULL, (int fd, mode_t mode), (fd, mode), int, mode_t)
CALL(int, rename, AT_FDCWD, to, (const char *from, const char *to), (from, to), const char *, const char *)
CALL(int, renameat, folder, to, (int from_folder, const char *from, int folder, const char *to), (from_folder, from, folder, to), int, const char *, int, const char *)
CALL(int, renameat2, folder, to, (int from_folder, const char *from, int folder, const char *to, unsigned flags), (from_folder, from, folder, to, flags), int, const char *, int, const char *, unsigned)
CALL(int, link, AT_FDCWD, to, (const char *from, const char *to), (from, to), const char *, const char *)
CALL(int, linkat, folder, to, (int from_folder, const char *from, int folder, const char *to, int flags), (from_folder, from, folder, to, flags), int, const char *, int, const char *, int)
CALL(int, unlink, AT_FDCWD, path, (const char *path), (path), const char *)
CALL(int, unlinkat, folder, path, (int folder, const char *path, int flags), (folder, path, flags), int, const char *, int)
CALL(int, rmdir, AT_FDCWD, path, (const char *path), (path), const char *)
CALL(int, mkdir, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode), const char *, mode_t)
CALL(int, mkdirat, folder, path, (int folder, const char *path, mode_t mode), (folder, path, mode), int, const char *, mode_t)
