/* Makes what a program asks of its machine repeatable: random numbers depend on a seed, and clocks show what the
 * program itself has written. Loaded with LD_PRELOAD into each process that runs a simulation (sim/src/machine.rs).
 *
 * The page is two numbers, the wall clock and the monotonic clock in nanoseconds, in an anonymous file that the
 * program writes by the name in PAGE_VARIABLE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SEED_VARIABLE "TOMBOLO_SIM_SEED"
#define PAGE_VARIABLE "TOMBOLO_SIM_CLOCKS"
#define NANOS_PER_SECOND 1000000000LL

struct page {
    int64_t wall;
    int64_t monotonic;
};

/* What clocks show before the program has written: 2026-01-01, and a day after the machine's start. */
static const struct page BEGINNING = {1767225600LL * NANOS_PER_SECOND, 86400LL * NANOS_PER_SECOND};

static const struct page *page = &BEGINNING;
static uint64_t seed;

static void fail(const char *what) {
    fprintf(stderr, "cannot simulate a machine: %s: %s\n", what, strerror(errno));
    _exit(70);
}

/* Some hash functions mix in addresses. Where the system does not allow fixed ones, runs are repeatable as long as
 * nobody depends on the order of such a map. */
static void fix_addresses(char **arguments) {
    int persona = personality(0xffffffff);
    if (persona == -1 || (persona & ADDR_NO_RANDOMIZE) || personality(persona | ADDR_NO_RANDOMIZE) == -1) {
        return;
    }
    if (personality(0xffffffff) & ADDR_NO_RANDOMIZE) {
        execv("/proc/self/exe", arguments);
        fail("start with fixed addresses");
    }
}

__attribute__((constructor)) static void begin(int count, char **arguments) {
    (void)count;
    const char *text = getenv(SEED_VARIABLE);
    if (text == NULL) {
        errno = EINVAL;
        fail(SEED_VARIABLE);
    }
    seed = strtoull(text, NULL, 10);
    fix_addresses(arguments);
    int file = memfd_create("clocks", MFD_CLOEXEC);
    if (file == -1 || write(file, &BEGINNING, sizeof BEGINNING) != sizeof BEGINNING) {
        fail("create the clocks");
    }
    void *shared = mmap(NULL, sizeof BEGINNING, PROT_READ, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) {
        fail("map the clocks");
    }
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    if (setenv(PAGE_VARIABLE, name, 1) == -1) {
        fail("name the clocks");
    }
    page = shared;
}

/* Each thread has numbers of its own (splitmix64), so that they do not depend on the order of threads, except that of
 * their first calls. */
static uint64_t next_number(void) {
    static uint64_t threads;
    static __thread uint64_t state;
    static __thread int started;
    if (!started) {
        started = 1;
        state = seed ^ (__atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST) * 0xd1342543de82ef95ULL);
    }
    uint64_t number = state += 0x9e3779b97f4a7c15ULL;
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9ULL;
    number = (number ^ (number >> 27)) * 0x94d049bb133111ebULL;
    return number ^ (number >> 31);
}

static void fill(void *buffer, size_t length) {
    for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
        uint64_t number = next_number();
        size_t left = length - at;
        memcpy((char *)buffer + at, &number, left < sizeof number ? left : sizeof number);
    }
}

ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
    (void)flags;
    fill(buffer, length);
    return (ssize_t)length;
}

int getentropy(void *buffer, size_t length) {
    fill(buffer, length);
    return 0;
}

/* Some libraries make the call without its function. */
long syscall(long number, ...) {
    static long (*real)(long, ...);
    long a[6];
    __builtin_va_list arguments;
    __builtin_va_start(arguments, number);
    for (int i = 0; i < 6; i++) {
        a[i] = __builtin_va_arg(arguments, long);
    }
    __builtin_va_end(arguments);
    if (number == SYS_getrandom) {
        return getrandom((void *)a[0], (size_t)a[1], (unsigned)a[2]);
    }
    if (real == NULL) {
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static int64_t nanos_of(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI ? page->wall
                                                                                            : page->monotonic;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID) {
        return (int)syscall(SYS_clock_gettime, (long)clock, (long)time);
    }
    int64_t nanos = nanos_of(clock);
    time->tv_sec = nanos / NANOS_PER_SECOND;
    time->tv_nsec = nanos % NANOS_PER_SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    time->tv_sec = page->wall / NANOS_PER_SECOND;
    time->tv_usec = page->wall % NANOS_PER_SECOND / 1000;
    return 0;
}

time_t time(time_t *place) {
    time_t now = page->wall / NANOS_PER_SECOND;
    if (place != NULL) {
        *place = now;
    }
    return now;
}
