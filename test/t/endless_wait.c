/* As long as a file exists, a wait of a tenth of a second, or what a signal has left of it, is
 * endless, so that only a wake-up ends it; and reading the time of day takes up to a millisecond,
 * so that other processes act between a look and the wait that follows it (lookup.pl). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int enabled(void) {
    const char* path = getenv("IDEM_TEST_ENDLESS_WAIT");

    return path && access(path, F_OK) == 0;
}

int gettimeofday(struct timeval* restrict tv, void* restrict tz) {
    struct timespec now;

    (void)tz;
    clock_gettime(CLOCK_REALTIME, &now);
    if (enabled()) {
        usleep(now.tv_nsec % 997);
        clock_gettime(CLOCK_REALTIME, &now);
    }
    tv->tv_sec = now.tv_sec;
    tv->tv_usec = now.tv_nsec / 1000;
    return 0;
}

int epoll_wait(int fd, struct epoll_event* events, int count, int timeout) {
    static int (*next)(int, struct epoll_event*, int, int);
    int found;

    if (!next) *(void**)&next = dlsym(RTLD_NEXT, "epoll_wait");
    if (timeout <= 50 || timeout > 100 || !enabled()) return next(fd, events, count, timeout);
    do {
        found = next(fd, events, count, -1);
    } while (found == -1 && errno == EINTR);
    return found;
}
