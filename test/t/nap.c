/* Makes sleeps of exactly a tenth of a second endless as long as a file exists, so that only a
 * wake-up ends them (lookup.pl). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

int epoll_wait(int fd, struct epoll_event* events, int count, int timeout) {
    static int (*next)(int, struct epoll_event*, int, int);
    const char* path = getenv("IDEM_TEST_NAPS");

    if (!next) *(void**)&next = dlsym(RTLD_NEXT, "epoll_wait");
    if (timeout == 100 && path && access(path, F_OK) == 0) timeout = -1;
    return next(fd, events, count, timeout);
}
