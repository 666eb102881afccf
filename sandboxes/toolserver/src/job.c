#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <termios.h>
#include <unistd.h>

#include "execute.h"
#include "loop.h"
#include "orphans.h"
#include "process.h"
#include "reap.h"
#include "session.h"

#define JOBS_MAX 32
#define OUTPUT_END_BYTES 14000
#define STATE_MAX (8 << 20)
#define ROWS 40
#define COLUMNS 120

/* The file has the command, and then the state of the session's shell. An argument means that the directory could not
   be entered from outside (gVisor does not show it). Job control puts each program into its own process group, as on
   any terminal, so that background processes outlive the job's shell. */
static const char SCRIPT[] =
    "IFS= builtin read -r -d '' -u 21 __farm_job; builtin readonly __farm_job; "
    "IFS= builtin read -r -d '' -u 21 __farm_state; builtin exec 21<&-; builtin eval \"$__farm_state\" 2>&-; "
    "builtin test -z \"${1-}\" || builtin cd -- \"$PWD\" 2>&- || builtin true; builtin set --; "
    "__farm_command=; [[ ${__farm_set-} != *x* ]] || __farm_command='{ \\builtin set -x; } 2>&-; '; "
    "builtin unset __farm_state __farm_wake __farm_set __farm_status __farm_end 2>&-; builtin set -m 2>&-; "
    "builtin eval \"$__farm_command$__farm_job\"";

struct job {
    struct job *next;
    uint32_t number;
    pid_t pid; /* 0 before its start and after its end */
    int exit_code;
    uint64_t started, ended, output_at;
    struct stream *out;
    int command;  /* the file that its shell reads at first */
    int input;    /* the writing end of its pipe; -1: it has a terminal */
    int terminal; /* the job's side, held open while it lives: a terminal without open descriptors is lost for good */
    struct call *listener;
    uint64_t limit, quiet;
};

/* All jobs, oldest first. */
static struct job *jobs;

static struct job *find_job(uint32_t number)
{
    struct job *job = jobs;
    while (job && job->number != number)
        job = job->next;
    return job;
}

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void job_free(struct job *job)
{
    close_if_open(&job->command);
    close_if_open(&job->input);
    close_if_open(&job->terminal);
    if (job->out)
        job->out->on_output = NULL;
    stream_release(&job->out);
    free(job);
}

/* Drop the oldest ended job if there are JOBS_MAX. Return false if all are running. */
static bool make_room(void)
{
    size_t count = 0;
    struct job **oldest = NULL;
    for (struct job **link = &jobs; *link; link = &(*link)->next) {
        count++;
        if (!oldest && !(*link)->pid && !(*link)->listener)
            oldest = link;
    }
    if (count < JOBS_MAX)
        return true;
    if (!oldest)
        return false;
    struct job *job = *oldest;
    *oldest = job->next;
    job_free(job);
    return true;
}

static bool write_text(int fd, const char *text)
{
    for (size_t left = strlen(text) + 1; left;) {
        ssize_t n = write(fd, text, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        left -= (size_t)n;
    }
    return true;
}

struct job *job_new(const char *command, int *error)
{
    struct job *job = calloc(1, sizeof *job);
    *error = ENOMEM;
    if (!job)
        return NULL;
    *job = (struct job){.command = memfd_create("job", MFD_CLOEXEC), .input = -1, .terminal = -1};
    if (job->command < 0 || !write_text(job->command, command)) {
        job_free(job);
        return NULL;
    }
    return job;
}

static void finish(struct call *call)
{
    struct job *job = call->job;
    job->listener = NULL;
    if (call->cancelled) { /* keep the output for the next call, because this caller has gone */
        call_finish_error(call, ECANCELED);
        return;
    }
    if (job->input < 0)
        stream_drain_terminal(job->out);
    else
        stream_drain(job->out);
    struct capture *output = &job->out->capture;
    uint64_t until = job->pid ? loop_now() : job->ended;
    put_result(call, job->exit_code, job->pid ? STILL_RUNNING : 0, until - job->started, output, NULL);
    capture_free(output);
    capture_init(output, OUTPUT_END_BYTES, OUTPUT_END_BYTES);
    call_finish(call);
}

static void set_deadline(struct job *job)
{
    job->listener->deadline = job->limit;
    if (job->quiet && job->out->capture.head.len && job->output_at + job->quiet < job->limit)
        job->listener->deadline = job->output_at + job->quiet;
}

static void on_output(void *by)
{
    struct job *job = by;
    job->output_at = loop_now();
    if (job->listener)
        set_deadline(job);
}

/* Switch off output processing, so that line ends stay as written. All else is as on any terminal: input is echoed. */
static void set_up_terminal(int terminal)
{
    struct termios settings;
    struct winsize size = {.ws_row = ROWS, .ws_col = COLUMNS};
    if (!tcgetattr(terminal, &settings)) {
        settings.c_oflag &= ~(tcflag_t)OPOST;
        settings.c_iflag |= IUTF8;
        tcsetattr(terminal, TCSANOW, &settings);
    }
    ioctl(terminal, TIOCSWINSZ, &size);
}

/* Processes inside may replace /dev/ptmx by any file, so the open must not block. */
static bool open_terminal(struct job *job, struct launch *launch)
{
    int unlocked = 0, master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (master < 0)
        return false;
    if (!ioctl(master, TIOCSPTLCK, &unlocked))
        job->terminal = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (job->terminal < 0) {
        close(master);
        return false;
    }
    set_up_terminal(job->terminal);
    job->out = stream_over(master, OUTPUT_END_BYTES, OUTPUT_END_BYTES);
    launch->in = launch->out = launch->err = job->terminal;
    launch->terminal = true;
    return job->out;
}

static bool open_pipes(struct job *job, struct launch *launch)
{
    int in[2];
    close_if_open(&job->terminal);
    launch->terminal = false;
    if (pipe2(in, O_CLOEXEC))
        return false;
    job->input = in[1];
    fcntl(in[1], F_SETFL, O_NONBLOCK);
    launch->in = in[0];
    job->out = stream_open(OUTPUT_END_BYTES, OUTPUT_END_BYTES, &launch->out);
    launch->err = launch->out;
    if (!job->out)
        close(in[0]);
    return job->out;
}

static bool copy_state(struct job *job, int state, off_t offset)
{
    off_t end = state < 0 ? 0 : lseek(state, 0, SEEK_END);
    if (end <= offset || end - offset > STATE_MAX)
        return false;
    char part[16384];
    while (offset < end) {
        size_t room = end - offset < (off_t)sizeof part ? (size_t)(end - offset) : sizeof part;
        ssize_t len = pread(state, part, room, offset);
        if (len <= 0 || write(job->command, part, (size_t)len) != len)
            return false;
        offset += len;
    }
    return write_text(job->command, "");
}

/* Start the job's shell. Return 0 or an errno. */
static int start_shell(struct job *job, int state, off_t offset, pid_t shell)
{
    static const char *const none[] = {NULL};
    const char *argv[] = {session_shell(), "--noprofile", "--norc", "-c", SCRIPT, "bash", NULL, NULL};
    char directory[32], *empty[] = {NULL};
    const int descriptors[] = {-1, job->command, -1};
    struct launch launch = {.argv = argv, .session = descriptors};
    snprintf(directory, sizeof directory, "/proc/%d/cwd", (int)shell);
    launch.cwd = shell ? directory : NULL;
    bool has_state = copy_state(job, state, offset);
    char **env = has_state ? NULL : process_env(none, true);
    launch.env = has_state ? empty : env;
    lseek(job->command, 0, SEEK_SET);
    if (!launch.env || !(open_terminal(job, &launch) || open_pipes(job, &launch))) {
        free(env);
        return launch.env ? EMFILE : ENOMEM;
    }
    pid_t pid = process_start(&launch);
    if (pid < 0 && launch.cwd) {
        launch.cwd = NULL;
        argv[6] = "astray";
        pid = process_start(&launch);
    }
    free(env);
    if (job->input >= 0) {
        close(launch.in);
        close(launch.out);
    }
    close_if_open(&job->command);
    job->pid = pid > 0 ? pid : 0;
    return pid > 0 ? 0 : -pid;
}

void job_start(struct call *call, int state, off_t offset, pid_t shell)
{
    static uint32_t last;
    struct job *job = call->job;
    orphans_watch();
    int error = call->cancelled ? ECANCELED : make_room() ? start_shell(job, state, offset, shell) : EMFILE;
    if (error) {
        job_give_up(call, error);
        return;
    }
    job->number = ++last;
    job->started = loop_now();
    job->out->may_spill = true;
    job->out->on_output = on_output;
    job->out->by = job;
    struct job **end = &jobs;
    while (*end)
        end = &(*end)->next;
    *end = job;
    answer_begin(&call->answer, call->id, 0);
    put_u32(&call->answer, job->number);
    call_finish(call);
}

void job_give_up(struct call *call, int error)
{
    job_free(call->job);
    call->job = NULL;
    call_finish_error(call, error);
}

bool job_listen(struct call *call, struct reader *body)
{
    struct job *job = find_job(get_u32(body));
    uint64_t wait_us = (uint64_t)get_u32(body) * 1000, quiet_us = (uint64_t)get_u32(body) * 1000;
    if (!reader_done(body))
        return false;
    if (!job || job->listener) {
        call_finish_error(call, job ? EBUSY : ESRCH);
        return true;
    }
    call->job = job;
    if (!job->pid || !wait_us) {
        finish(call);
        return true;
    }
    job->listener = call;
    job->limit = call->started + wait_us;
    job->quiet = quiet_us;
    call->expire = finish;
    set_deadline(job);
    return true;
}

int job_type(uint32_t number, const uint8_t *data, size_t len, struct buffer *out)
{
    struct job *job = find_job(number);
    if (!job)
        return ESRCH;
    ssize_t n = job->pid ? write(job->input < 0 ? job->out->source.fd : job->input, data, len) : -1;
    if (n < 0 && (!job->pid || (errno != EAGAIN && errno != EINTR)))
        return EPIPE;
    put_u32(out, n > 0 ? (uint32_t)n : 0);
    return 0;
}

int job_end(uint32_t number)
{
    struct job *job = find_job(number);
    if (!job)
        return ESRCH;
    /* Orphans become children only when their parent is reaped, and one may die before it is stopped: so try twice. */
    for (int round = 0; round < 2; round++) {
        reap_children();
        if (job->pid)
            process_kill_tree(job->pid);
        else
            orphans_kill(number);
    }
    return 0;
}

uint32_t job_of(pid_t pid)
{
    struct job *job = jobs;
    while (job && job->pid != pid)
        job = job->next;
    return job ? job->number : 0;
}

void job_reaped(pid_t pid, int status)
{
    for (struct job *job = jobs; job; job = job->next)
        if (job->pid == pid) {
            job->pid = 0;
            job->exit_code = exit_code_of(status);
            job->ended = loop_now();
            if (job->listener)
                finish(job->listener);
            close_if_open(&job->terminal);
            return;
        }
}
