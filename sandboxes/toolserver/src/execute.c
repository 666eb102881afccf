#include "execute.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loop.h"
#include "process.h"

#define ARGUMENTS_MAX 65536
#define WORKER_ANSWER_MAX (65u << 20)
#define WORKER_TIMEOUT_US 100000000u /* less than the host's time-out, so that a slow worker gets an answer */

struct caps get_caps(struct reader *r)
{
    struct caps caps = {.timeout_ms = get_u32(r), .head = 0, .tail = 0};
    caps.head = get_u32(r);
    caps.tail = get_u32(r);
    if (caps.head > CAP_MAX || caps.tail > CAP_MAX)
        r->bad = true;
    return caps;
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

void put_result(struct call *call, int exit_code, unsigned flags, uint64_t took, const struct capture *out,
                const struct capture *err)
{
    static const struct capture nothing;
    struct buffer *answer = &call->answer;
    const char *spill = out ? capture_spill_path(out) : "";
    if (!*spill && err)
        spill = capture_spill_path(err);
    answer_begin(answer, call->id, 0);
    put_u32(answer, (uint32_t)exit_code);
    put_u8(answer, (uint8_t)flags);
    put_u64(answer, took);
    put_blob(answer, spill, strlen(spill));
    put_u8(answer, 0);
    capture_put(out ? out : &nothing, answer);
    capture_put(err ? err : &nothing, answer);
}

void finish_result(struct call *call, int exit_code, unsigned flags, struct stream *out, struct stream *err)
{
    put_result(call, exit_code, flags, loop_now() - call->started, out ? &out->capture : NULL,
               err ? &err->capture : NULL);
    call_finish(call);
}

void finish_not_started(struct call *call, int error, const char *what, unsigned flags)
{
    char text[4400];
    int len = snprintf(text, sizeof text, "toolserver: %.4200s: %s\n", what, strerror(error));
    struct stream message = {.source = {.fd = -1}};
    capture_init(&message.capture, sizeof text, 0);
    capture_add(&message.capture, (uint8_t *)text, (size_t)len, false);
    bool merged = !call->err;
    finish_result(call, error == ENOENT ? 127 : 126, flags, merged ? &message : call->out, merged ? NULL : &message);
    capture_free(&message.capture);
}

static void finish_worker(struct call *call, int status)
{
    const struct buffer *output = &call->out->capture.head;
    uint32_t error = output->len >= 4 ? read_u32(output->data) : EIO;
    if (status || call->out->capture.after_head)
        error = EIO;
    answer_begin(&call->answer, call->id, (int)error);
    if (!error)
        put_bytes(&call->answer, output->data + 4, output->len - 4);
    call_finish(call);
}

void execute_reaped(pid_t pid, int status)
{
    struct call *call = call_of_process(pid);
    if (!call)
        return;
    stream_drain(call->out);
    stream_drain(call->err);
    if (call->worker)
        finish_worker(call, status);
    else
        finish_result(call, exit_code_of(status), 0, call->out, call->err);
}

static void expire(struct call *call)
{
    process_kill_tree(call->pid);
    stream_drain(call->out);
    stream_drain(call->err);
    if (call->worker)
        call_finish_error(call, ETIMEDOUT);
    else
        finish_result(call, 0, TIMED_OUT, call->out, call->err);
}

/* Return a file in memory with the input, so that nothing has to feed a pipe. */
static int make_stdin(struct blob input)
{
    if (!input.len) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null >= 0)
            return null;
    }
    int fd = memfd_create("stdin", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    while (input.len) {
        ssize_t n = write(fd, input.data, input.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            close(fd);
            return -1;
        }
        input.data += n;
        input.len -= (size_t)n;
    }
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static void start(struct call *call, struct launch *launch, bool merge, struct caps caps)
{
    launch->out = launch->err = -1;
    call->out = stream_open(caps.head, caps.tail, &launch->out);
    if (call->out && !merge)
        call->err = stream_open(caps.head, caps.tail, &launch->err);
    pid_t pid = errno ? -errno : -ENOMEM;
    launch->failed_at = "pipe";
    if (launch->in >= 0 && call->out && (merge || call->err)) {
        call->out->may_spill = true;
        if (call->err)
            call->err->may_spill = true;
        else
            launch->err = launch->out;
        pid = process_start(launch);
    }
    close(launch->out);
    if (!merge)
        close(launch->err);
    close(launch->in);
    if (pid < 0) {
        finish_not_started(call, -pid, launch->failed_at, 0);
        return;
    }
    call->pid = pid;
    call->expire = expire;
    call->deadline = call->started + (uint64_t)caps.timeout_ms * 1000;
}

bool execute(struct call *call, struct reader *body)
{
    unsigned flags = get_u8(body);
    struct caps caps = get_caps(body);
    const char *cwd = get_string(body);
    const char **argv = get_strings(body, ARGUMENTS_MAX);
    const char **additions = get_strings(body, ARGUMENTS_MAX);
    struct blob input = get_blob(body);
    bool well_formed = reader_done(body) && argv[0];
    char **env = well_formed ? process_env(additions, flags & EXEC_LOGGED_IN) : NULL;
    if (env) {
        struct launch launch = {.argv = argv, .env = env, .cwd = *cwd ? cwd : NULL, .in = make_stdin(input)};
        start(call, &launch, flags & EXEC_MERGE, caps);
    } else if (well_formed) {
        call_finish_error(call, ENOMEM);
    }
    free(env);
    free(argv);
    free(additions);
    return well_formed;
}

static _Noreturn void worker_main(int out, int (*work)(void *, struct buffer *), void *with)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct buffer answer = {0};
    put_u32(&answer, 0);
    int error = work(with, &answer);
    if (answer.failed)
        error = ENOMEM;
    uint8_t failure[4];
    set_u32(failure, (uint32_t)error);
    const uint8_t *data = error ? failure : answer.data;
    size_t len = error ? sizeof failure : answer.len;
    while (len) {
        ssize_t n = write(out, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            _exit(1);
        data += n;
        len -= (size_t)n;
    }
    _exit(0);
}

void execute_worker(struct call *call, int (*work)(void *with, struct buffer *out), void *with)
{
    int write_end;
    call->out = stream_open(WORKER_ANSWER_MAX, 0, &write_end);
    pid_t pid = call->out ? fork() : -1;
    if (pid == 0)
        worker_main(write_end, work, with);
    if (call->out)
        close(write_end);
    if (pid < 0) { /* without a process the loop has to wait */
        answer_begin(&call->answer, call->id, 0);
        int error = work(with, &call->answer);
        if (error)
            call_finish_error(call, error);
        else
            call_finish(call);
        return;
    }
    call->worker = true;
    call->pid = pid;
    call->expire = expire;
    call->deadline = call->started + WORKER_TIMEOUT_US;
}
