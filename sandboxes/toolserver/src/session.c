#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "execute.h"
#include "job.h"
#include "loop.h"
#include "process.h"

#define SESSIONS_MAX 32
#define NAME_LENGTH 64
#define STATUS_LENGTH 16
#define BETWEEN_MAX 65536
#define TELL_TIMEOUT_US 10000000u
#define TRAPS_MAX 32768 /* the wake word must fit into its pipe */

/* The shell's endless loop: write the status of the last command, wait for the wake word, read the next command from
   its file, and evaluate it with the private descriptors closed. The loop's condition writes the status, so that a
   command's own `continue` or `break` comes by there, and `set -e` does not end the shell.
   - A command's settings must not show the loop: output is closed meanwhile, tracing is off, and traps of ERR and
     DEBUG, which would also fire for the loop's commands, are written to the file and removed. The wake word restores
     them, in a prefix on the command's first line (on its own line if `set -v` prints lines).
   - A command gets the status of the previous one in `$?`, unless `set -e` would end the shell for that.
   - The wake word "tell" asks for the shell's state, which is added to the file, options last because they take effect
     at once when it is evaluated.
   - If `builtin` is a function, or a required builtin is disabled, the word cannot be read: the shell reports it and
     ends. Keywords such as [[ and assignments cannot be hidden. */
static const char SCRIPT[] =
    "while [[ 1 ]]; do while { __farm_status=$? __farm_set=$- __farm_wake=-; [[ $- != *x* ]] || builtin set +x; "
    "builtin trap -p ERR DEBUG >&21; builtin trap - ERR DEBUG; "
    "builtin printf '%s\\n' \"$__farm_status\" >&22 && "
    "{ TMOUT= IFS= builtin read -r -d '' -u 20 __farm_wake || builtin exit; }; "
    "IFS= builtin read -r -d '' -u 21 __farm_command; "
    "[[ $__farm_wake != tell ]] || { { builtin declare -p; builtin declare -f; builtin alias -p; builtin shopt -p; "
    "builtin set +o; } >&21; __farm_wake=; }; "
    "[[ ! $__farm_wake && $__farm_set != *x* ]] || { builtin set +v; __farm_end='; '; "
    "[[ $__farm_set != *v* ]] || __farm_end=$'\\n'; "
    "__farm_command=\"{ \\\\builtin set -${__farm_set//[^xv]/}; ${__farm_wake:+\\\\builtin ${__farm_wake%$'\\n'}; }} "
    "2>&-$__farm_end$__farm_command\"; }; [[ 1 ]]; } >&- 2>&-; do "
    "[[ $__farm_wake != - || ${__farm_lost:?a function, or enable -n, hides builtins that this shell needs} ]]; "
    "[[ $__farm_status = 0 || $__farm_set = *e* ]] || (builtin exit \"$__farm_status\"); "
    "builtin eval \"$__farm_command\" 20<&- 21<&- 22>&-; done; done";

static const char NO_COMMAND[] = "";

struct session {
    struct source status; /* must be first: the source of a status event is cast to its session */
    struct session *next;
    char name[NAME_LENGTH];
    pid_t pid;
    int wake, command;
    struct stream *out;
    struct call *call;    /* the running command */
    bool started;         /* the first status only says that the shell is ready */
    bool state_asked;     /* the last wake word was "tell", which restored no traps */
    char line[STATUS_LENGTH];
    size_t line_len;
    off_t command_len;    /* after it in the file: the traps that the shell wrote */
    char *traps;          /* to restore with the next command, or NULL */
};

static struct session *sessions;
static const char *shell_path = "/.farm/bin/bash";

void session_use_shell(const char *path) { shell_path = path; }
const char *session_shell(void) { return shell_path; }

static struct session *find(const char *name)
{
    struct session *session = sessions;
    while (session && strcmp(session->name, name) != 0)
        session = session->next;
    return session;
}

/* Free a session whose shell has ended or was killed, and answer its running command. */
static void lose(struct session *session, int exit_code, unsigned flags)
{
    struct session **link = &sessions;
    while (*link != session)
        link = &(*link)->next;
    *link = session->next;
    stream_drain(session->out);
    struct call *call = session->call;
    if (call && call->job)
        job_start(call, -1, 0, 0);
    else if (call)
        finish_result(call, exit_code, flags | SHELL_LOST, session->out, NULL);
    loop_close(&session->status);
    close(session->wake);
    close(session->command);
    stream_release(&session->out);
    free(session->traps);
    free(session);
}

static void finish_command(struct session *session, int exit_code)
{
    struct call *call = session->call;
    session->call = NULL;
    if (call->job) {
        job_start(call, session->command, sizeof NO_COMMAND, session->pid);
        return;
    }
    stream_drain(session->out);
    session->out->may_spill = false;
    finish_result(call, exit_code, 0, session->out, NULL);
    capture_free(&session->out->capture);
    capture_init(&session->out->capture, BETWEEN_MAX, 0);
}

/* Start the output of a command with what background processes wrote since the last one. */
static void begin_output(struct session *session, struct caps caps)
{
    struct capture *capture = &session->out->capture, before = *capture;
    capture_init(capture, caps.head, caps.tail);
    session->out->may_spill = true;
    capture_add(capture, before.head.data, before.head.len, true);
    capture_free(&before);
}

/* Handle a line of the status descriptor. A command that writes there harms only its own session. */
static void status_line(struct session *session)
{
    session->line[session->line_len] = 0;
    session->line_len = 0;
    int exit_code = atoi(session->line) & 0xff;
    if (!session->started)
        session->started = true;
    else if (session->call)
        finish_command(session, exit_code);
}

static void read_status(struct session *session)
{
    char text[64];
    ssize_t n = read(session->status.fd, text, sizeof text);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        loop_close(&session->status); /* the end is handled when the shell is reaped */
    for (ssize_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            status_line(session);
        else if (session->line_len < STATUS_LENGTH - 1)
            session->line[session->line_len++] = text[i];
    }
}

static void status_ready(struct source *source, uint32_t events)
{
    (void)events;
    read_status((struct session *)source);
}

void session_reaped(pid_t pid, int status)
{
    for (struct session *session = sessions; session; session = session->next)
        if (session->pid == pid) {
            if (session->status.fd >= 0)
                read_status(session);
            lose(session, exit_code_of(status), 0);
            return;
        }
}

bool session_is(pid_t pid)
{
    struct session *session = sessions;
    while (session && session->pid != pid)
        session = session->next;
    return session;
}

static void expire(struct call *call)
{
    process_kill_tree(call->session->pid);
    lose(call->session, 0, TIMED_OUT);
}

struct shell_ends {
    int in, out, session[3];
};

static bool open_shell_ends(struct session *session, struct shell_ends *shell_ends)
{
    int wake[2] = {-1, -1}, status[2] = {-1, -1};
    session->out = stream_open(BETWEEN_MAX, 0, &shell_ends->out);
    session->command = memfd_create("command", MFD_CLOEXEC);
    shell_ends->in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (shell_ends->in < 0)
        shell_ends->in = memfd_create("stdin", MFD_CLOEXEC);
    bool wake_open = !pipe2(wake, O_CLOEXEC), status_open = !pipe2(status, O_CLOEXEC);
    session->wake = wake[1];
    session->status = (struct source){status[0], status_ready};
    shell_ends->session[0] = wake[0];
    shell_ends->session[1] = session->command;
    shell_ends->session[2] = status[1];
    if (!session->out || session->command < 0 || shell_ends->in < 0 || !wake_open || !status_open)
        return false;
    fcntl(status[0], F_SETFL, O_NONBLOCK);
    fcntl(wake[1], F_SETFL, O_NONBLOCK);
    return loop_add(&session->status, EPOLLIN);
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* Start a shell. Return NULL and an errno if that fails. */
static struct session *start(const char *name, int *error)
{
    static const char *const none[] = {NULL};
    const char *const argv[] = {shell_path, "--noprofile", "--norc", "-c", SCRIPT, "bash", NULL};
    struct shell_ends shell_ends = {-1, -1, {-1, -1, -1}};
    struct session *session = calloc(1, sizeof *session);
    char **env = process_env(none, true);
    *error = ENOMEM;
    if (!session || !env) {
        free(session);
        free(env);
        return NULL;
    }
    pid_t pid = -EMFILE;
    if (open_shell_ends(session, &shell_ends)) {
        struct launch launch = {.argv = argv, .env = env, .in = shell_ends.in, .out = shell_ends.out, .err = shell_ends.out,
                                .session = shell_ends.session};
        pid = process_start(&launch);
    }
    free(env);
    close_if_open(shell_ends.in);
    close_if_open(shell_ends.out);
    close_if_open(shell_ends.session[0]);
    close_if_open(shell_ends.session[2]);
    snprintf(session->name, sizeof session->name, "%s", name);
    session->pid = pid;
    session->next = sessions;
    sessions = session;
    if (pid > 0)
        return session;
    *error = -pid;
    session->pid = 0;
    lose(session, 0, 0);
    return NULL;
}

/* Read the traps that the shell wrote since the last command; too long ones are dropped. */
static void read_traps(struct session *session)
{
    struct stat file;
    free(session->traps);
    session->traps = NULL;
    if (fstat(session->command, &file) || file.st_size <= session->command_len)
        return;
    size_t len = (size_t)(file.st_size - session->command_len);
    char *text = len < TRAPS_MAX ? calloc(len + 1, 1) : NULL;
    if (text && pread(session->command, text, len, session->command_len) == (ssize_t)len)
        session->traps = text;
    else
        free(text);
}

static bool send_command(struct session *session, const char *command, const char *wake)
{
    size_t len = strlen(command) + 1; /* with the zero byte, at which the shell stops to read */
    if (ftruncate(session->command, 0) || lseek(session->command, 0, SEEK_SET) < 0)
        return false;
    session->command_len = (off_t)len;
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(session->command, command + at, len - at, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    size_t word = strlen(wake) + 1;
    return write(session->wake, wake, word) == (ssize_t)word;
}

bool session_run(struct call *call, struct reader *body)
{
    struct caps caps = get_caps(body);
    const char *name = get_string(body);
    const char *command = get_string(body);
    if (!reader_done(body) || strlen(name) >= NAME_LENGTH)
        return false;
    struct session *session = find(name);
    if (session && session->call) {
        call_finish_error(call, EBUSY);
        return true;
    }
    size_t count = 0;
    for (struct session *other = sessions; other; other = other->next)
        count++;
    bool has_room = count < SESSIONS_MAX;
    int error = EMFILE;
    if (!session && has_room)
        session = start(name, &error);
    if (!session) {
        finish_not_started(call, error, has_room ? shell_path : "too many shell sessions", SHELL_LOST);
        return true;
    }
    session->call = call;
    call->session = session;
    call->expire = expire;
    call->deadline = call->started + (uint64_t)caps.timeout_ms * 1000;
    begin_output(session, caps);
    if (!session->state_asked)
        read_traps(session);
    session->state_asked = false;
    if (!send_command(session, command, session->traps ? session->traps : "")) {
        process_kill_tree(session->pid);
        lose(session, 126, 0);
    }
    return true;
}

bool session_start_job(struct call *call, struct reader *body)
{
    const char *name = get_string(body);
    const char *command = get_string(body);
    if (!reader_done(body) || strlen(name) >= NAME_LENGTH)
        return false;
    struct session *session = find(name);
    int error = EBUSY;
    if (!session || !session->call)
        call->job = job_new(command, &error);
    if (!call->job) {
        call_finish_error(call, error);
        return true;
    }
    if (!session) {
        job_start(call, -1, 0, 0);
        return true;
    }
    session->call = call;
    call->session = session;
    call->expire = expire;
    call->deadline = call->started + TELL_TIMEOUT_US;
    if (!session->state_asked)
        read_traps(session);
    session->state_asked = true;
    if (!send_command(session, NO_COMMAND, "tell")) {
        process_kill_tree(session->pid);
        lose(session, 126, 0);
    }
    return true;
}

bool session_restart(struct call *call, struct reader *body)
{
    const char *name = get_string(body);
    if (!reader_done(body))
        return false;
    struct session *session = find(name);
    if (session) {
        process_kill_tree(session->pid);
        lose(session, 137, 0);
    }
    answer_begin(&call->answer, call->id, 0);
    call_finish(call);
    return true;
}
