/* The frame of the programs that take: PROGRAM KIND AT_MOST PROCESSES
   Each process takes until it has AT_MOST or is refused; prints how much all have, and the last errno; they hold it on. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kind {
    const char *name;
    long (*take)(void); /* takes once more: how much it got, or nothing and an errno */
};

struct taken {
    long amount;
    int error;
};

static struct taken take_all(long (*take)(void), long at_most) {
    struct taken taken = {0, 0};
    while (taken.amount < at_most) {
        errno = 0;
        long got = take();
        if (!got) {
            taken.error = errno;
            break;
        }
        taken.amount += got;
    }
    return taken;
}

static int hold(const struct kind *kinds, size_t count, int argc, char **argv) {
    long (*take)(void) = NULL;
    for (size_t i = 0; argc > 3 && i < count; i++)
        if (!strcmp(argv[1], kinds[i].name)) take = kinds[i].take;
    if (!take) return 2;
    struct taken all = {0, 0}, one;
    for (long left = atol(argv[3]); left > 0; left--) {
        int ends[2];
        if (pipe(ends)) return 1;
        pid_t pid = fork();
        if (pid == 0) {
            close(ends[0]);
            one = take_all(take, atol(argv[2]));
            if (write(ends[1], &one, sizeof one) != sizeof one) return 1;
            close(ends[1]), close(1), close(2);
            for (;;) pause();
        }
        close(ends[1]);
        if (pid < 0 || read(ends[0], &one, sizeof one) != sizeof one) one = (struct taken){0, errno};
        close(ends[0]);
        all.amount += one.amount;
        if (one.error) all.error = one.error;
    }
    printf("%ld %d\n", all.amount, all.error);
    return 0;
}
