/* Preloaded into a server: makes the clock jump, the disk full and the memory short while a page of
 * shared memory says so. The page is the file that IDEM_TEST_FAULTS names; the test writes to it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* In the order in which Shim.pm writes them. */
struct Faults {
    int64_t clock;        /* microseconds from the monotonic clock to the time of day */
    int64_t disk;         /* 1: the files of tables are on a full disk, 2: the WAL is */
    int64_t memory;       /* the process that runs out of memory */
    int64_t one_in;       /* one in so many allocations fails */
    int64_t failed_write; /* how many writes failed */
    int64_t failed_alloc; /* how many allocations failed */
};

static struct Faults none;
static struct Faults* faults = &none;
static __thread uint64_t state;

__attribute__((constructor)) static void open_page(void) {
    const char* path = getenv("IDEM_TEST_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void* page;

    if (fd < 0) return;
    page = mmap(NULL, sizeof(struct Faults), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) faults = page;
}

/* The clock ---------------------------------------------------------------------------------- */

/* The checker measures by the monotonic clock, and so do the servers: their time of day moves only
 * as the test says, even if something else sets the machine's clock during the test. */
int gettimeofday(struct timeval* restrict tv, void* restrict tz) {
    int64_t clock = __atomic_load_n(&faults->clock, __ATOMIC_RELAXED);
    struct timespec now;
    int64_t time;

    (void)tz;
    clock_gettime(clock ? CLOCK_MONOTONIC : CLOCK_REALTIME, &now);
    time = now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000 + clock;
    tv->tv_sec = time / 1000000;
    tv->tv_usec = time % 1000000;
    return 0;
}

/* The disk ----------------------------------------------------------------------------------- */

/* A full disk has no room for a file to grow. The WAL's files are full-sized from the beginning, so
 * all writes to them fail. */
static int is_full(int fd, off_t end) {
    int64_t disk = __atomic_load_n(&faults->disk, __ATOMIC_RELAXED);
    char link[32], path[4096];
    struct stat file;
    ssize_t length;

    if (disk == 0) return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof(path) - 1);
    if (length < 0) return 0;
    path[length] = '\0';
    if (disk == 2 ? !strstr(path, "/pg_wal/") : !strstr(path, "/base/")) return 0;
    if (disk == 1 && end >= 0 && (fstat(fd, &file) != 0 || end <= file.st_size)) return 0;
    __atomic_add_fetch(&faults->failed_write, 1, __ATOMIC_RELAXED);
    return 1;
}

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))
#define FAIL_IF_FULL(fd, end)   \
    if (is_full((fd), (end))) { \
        errno = ENOSPC;         \
        return -1;              \
    }

ssize_t write(int fd, const void* data, size_t size) {
    static ssize_t (*real)(int, const void*, size_t);
    if (!real) real = REAL("write", ssize_t(*)(int, const void*, size_t));
    FAIL_IF_FULL(fd, -1)
    return real(fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
    static ssize_t (*real)(int, const void*, size_t, off_t);
    if (!real) real = REAL("pwrite", ssize_t(*)(int, const void*, size_t, off_t));
    FAIL_IF_FULL(fd, offset + (off_t)size)
    return real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
    return pwrite(fd, data, size, offset);
}

ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t offset) {
    static ssize_t (*real)(int, const struct iovec*, int, off_t);
    off_t end = offset;
    if (!real) real = REAL("pwritev", ssize_t(*)(int, const struct iovec*, int, off_t));
    for (int i = 0; i < count; i++) end += (off_t)parts[i].iov_len;
    FAIL_IF_FULL(fd, end)
    return real(fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec* parts, int count, off64_t offset) {
    return pwritev(fd, parts, count, offset);
}

int posix_fallocate(int fd, off_t offset, off_t size) {
    static int (*real)(int, off_t, off_t);
    if (!real) real = REAL("posix_fallocate", int (*)(int, off_t, off_t));
    if (is_full(fd, offset + size)) return ENOSPC;
    return real(fd, offset, size);
}

int posix_fallocate64(int fd, off64_t offset, off64_t size) {
    return posix_fallocate(fd, offset, size);
}

/* The memory --------------------------------------------------------------------------------- */

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);

static int is_short(void) {
    int64_t process = __atomic_load_n(&faults->memory, __ATOMIC_RELAXED);

    if (process == 0 || process != getpid()) return 0;
    if (state == 0) state = (uint64_t)process * UINT64_C(2685821657736338717) | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    if (faults->one_in <= 0 || state % (uint64_t)faults->one_in != 0) return 0;
    __atomic_add_fetch(&faults->failed_alloc, 1, __ATOMIC_RELAXED);
    errno = ENOMEM;
    return 1;
}

void* malloc(size_t size) {
    return is_short() ? NULL : __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
    return is_short() ? NULL : __libc_calloc(count, size);
}

void* realloc(void* old, size_t size) {
    return is_short() ? NULL : __libc_realloc(old, size);
}
