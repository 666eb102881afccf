/* The tool server: first process of a sandbox, and the only way in. It runs commands and moves files for the host on
   the other end of a Unix socket, and trusts nothing else that lives beside it. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "call.h"
#include "connection.h"
#include "execute.h"
#include "job.h"
#include "loop.h"
#include "orphans.h"
#include "process.h"
#include "reap.h"
#include "session.h"

void reap_children(void)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        /* Before anybody hears of this end: whoever does may bring about another's, who leaves something too. */
        orphans_of(pid, job_of(pid));
        execute_reaped(pid, status);
        session_reaped(pid, status);
        job_reaped(pid, status);
    }
}

static void child_ready(struct source *source, uint32_t events)
{
    (void)events;
    struct signalfd_siginfo info[16];
    if (read(source->fd, info, sizeof info) > 0)
        reap_children();
}

/* No signal has a handler: sent from inside its namespace, none then reaches a first process. None is ignored that
   whoever started this ignored, as a shell has its background ignore interrupts: programs would inherit that. */
static bool watch_children(void)
{
    static struct source source;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_BLOCK, &child, NULL);
    source = (struct source){signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK), child_ready};
    return source.fd >= 0 && loop_add(&source, EPOLLIN);
}

static void settle_descriptors(unsigned kept)
{
    for (int fd = open("/dev/null", O_RDWR); fd >= 0 && fd < 3; fd = open("/dev/null", O_RDWR))
        ;
    while (fcntl(2, F_GETFD) < 0) /* an image without /dev/null */
        if (memfd_create("none", 0) < 0)
            break;
    syscall(SYS_close_range, 3u + kept, ~0u, 0u);
}

static int fail(const char *what)
{
    fprintf(stderr, "toolserver: %s: %s\n", what, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},
        {"shell", required_argument, NULL, 'b'},
        {"any-peer", no_argument, NULL, 'a'},
        {"inherited", no_argument, NULL, 'i'}, /* descriptor 3 listens */
        {0},
    };
    const char *path = "/.farm-run/sock";
    bool any_peer = false, inherited = false;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 's')
            path = optarg;
        else if (option == 'b')
            session_use_shell(optarg);
        else if (option == 'a')
            any_peer = true;
        else if (option == 'i')
            inherited = true;
        else
            return 2;
    }
    settle_descriptors(inherited);
    process_init();
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (!loop_init() || !watch_children())
        return fail("epoll");
    if (inherited ? !listen_inherited(3) : !listen_at(path, any_peer))
        return fail(inherited ? "the inherited socket" : path);
    for (;;)
        loop_step(call_expire_due());
}
