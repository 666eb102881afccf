#include "request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "connection.h"
#include "execute.h"
#include "files.h"
#include "job.h"
#include "process.h"
#include "reap.h"
#include "session.h"

#define PRUNE_MAX 65536
#define ENVIRONMENT_MAX 4096
#define KEPT_MAX (256u << 10)

static uint64_t fingerprint_of(const uint8_t *data, size_t len)
{
    uint64_t hash = 0xcbf29ce484222325u ^ len;
    for (; len >= 8; data += 8, len -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    for (; len; data++, len--)
        hash = (hash ^ *data) * 0x100000001b3u;
    return hash;
}

static int do_ping(struct reader *body, struct buffer *out)
{
    (void)body;
    put_u16(out, PROTOCOL_VERSION);
    return 0;
}

static int do_read(struct reader *body, struct buffer *out)
{
    uint64_t offset = get_u64(body), limit = get_u64(body);
    const char *path = get_string(body);
    if (!reader_done(body))
        return 0;
    size_t at = out->len;
    put_u32(out, 0);
    int error = file_read(path, offset, limit, out);
    if (!error && !out->failed)
        set_u32(out->data + at, (uint32_t)(out->len - at - 4));
    return error;
}

static int do_stat(struct reader *body, struct buffer *out)
{
    const char *path = get_string(body);
    return reader_done(body) ? file_stat(path, out) : 0;
}

static int do_write(struct reader *body, struct buffer *out)
{
    unsigned flags = get_u8(body);
    const char *path = get_string(body);
    struct blob content = get_blob(body);
    return reader_done(body) ? file_write(path, flags, content.data, content.len, out) : 0;
}

static int do_link(struct reader *body, struct buffer *out)
{
    (void)out;
    const char *path = get_string(body);
    const char *target = get_string(body);
    return reader_done(body) ? file_link(path, target) : 0;
}

static int do_kill_all(struct reader *body, struct buffer *out)
{
    (void)out;
    return reader_done(body) ? process_kill_all(reap_children) : 0;
}

static int do_work_in(struct reader *body, struct buffer *out)
{
    (void)out;
    const char *path = get_string(body);
    return reader_done(body) ? process_work_in(path) : 0;
}

static int do_log_in(struct reader *body, struct buffer *out)
{
    (void)out;
    const char **additions = get_strings(body, ENVIRONMENT_MAX);
    int error = reader_done(body) ? process_log_in(additions) : 0;
    free(additions);
    return error;
}

static int do_type(struct reader *body, struct buffer *out)
{
    uint32_t job = get_u32(body);
    struct blob input = get_blob(body);
    return reader_done(body) ? job_type(job, input.data, input.len, out) : 0;
}

static int do_end(struct reader *body, struct buffer *out)
{
    (void)out;
    uint32_t job = get_u32(body);
    return reader_done(body) ? job_end(job) : 0;
}

static int do_cancel(struct reader *body, struct buffer *out)
{
    (void)out;
    struct call *call = call_find(get_u64(body));
    if (reader_done(body) && call && !call->done && call->expire) {
        call->cancelled = true;
        call->expire(call);
    }
    return 0;
}

static int work_remove(void *with, struct buffer *out)
{
    (void)out;
    return file_remove(with);
}

struct walk {
    const char *root;
    const char **prune;
};

static int work_walk(void *with, struct buffer *out)
{
    const struct walk *walk = with;
    return file_walk(walk->root, walk->prune, out);
}

static bool start_remove(struct call *call, struct reader *body)
{
    const char *path = get_string(body);
    if (!reader_done(body))
        return false;
    execute_worker(call, work_remove, (void *)(uintptr_t)path);
    return true;
}

static bool start_walk(struct call *call, struct reader *body)
{
    struct walk walk = {.root = get_string(body)};
    walk.prune = get_strings(body, PRUNE_MAX);
    bool well_formed = reader_done(body);
    if (well_formed)
        execute_worker(call, work_walk, &walk);
    free(walk.prune);
    return well_formed;
}

typedef int immediate(struct reader *body, struct buffer *out);
typedef bool starter(struct call *call, struct reader *body);

static immediate *const reads[] = {[PING] = do_ping, [READ] = do_read, [STAT] = do_stat, [CANCEL] = do_cancel};
static immediate *const changes[] = {[WRITE] = do_write, [LINK] = do_link, [KILL_ALL] = do_kill_all,
                                    [WORK_IN] = do_work_in, [LOG_IN] = do_log_in, [TYPE] = do_type, [END] = do_end};
static starter *const starters[] = {[EXEC] = execute, [SHELL] = session_run, [RESTART] = session_restart,
                                    [REMOVE] = start_remove, [WALK] = start_walk, [START] = session_start_job,
                                    [LISTEN] = job_listen};

#define LOOK_UP(table, op) ((op) < sizeof(table) / sizeof *(table) ? (table)[op] : NULL)

static bool perform(immediate *action, uint64_t id, struct reader *body, struct buffer *answer)
{
    answer_begin(answer, id, 0);
    int error = action(body, answer);
    if (error)
        answer_begin(answer, id, error);
    return reader_done(body);
}

static bool answer_read(immediate *action, struct connection *from, uint64_t id, struct reader *body)
{
    static struct buffer answer; /* reused: to map new pages takes longer than to read a file into them */
    bool well_formed = perform(action, id, body, &answer);
    answer_end(&answer, id);
    if (well_formed)
        connection_send(from, answer.data, answer.len);
    if (answer.failed || answer.cap > KEPT_MAX)
        buffer_free(&answer);
    return well_formed;
}

static bool refuse(struct connection *from, uint64_t id, int error)
{
    struct buffer answer = {0};
    answer_begin(&answer, id, error);
    answer_end(&answer, id);
    connection_send(from, answer.data, answer.len);
    buffer_free(&answer);
    return true;
}

static bool repeat(struct call *call, uint64_t fingerprint, struct connection *from)
{
    if (call->fingerprint != fingerprint)
        return refuse(from, call->id, EBADMSG);
    if (call->done)
        connection_send(from, call->answer.data, call->answer.len);
    else if (!call_add_asker(call, from))
        return refuse(from, call->id, EAGAIN);
    return true;
}

bool request_handle(struct connection *from, const uint8_t *frame, size_t len)
{
    struct reader body = {frame, len, false};
    uint64_t id = get_u64(&body);
    uint8_t op = get_u8(&body);
    if (body.bad)
        return false;
    process_go_home();
    immediate *action = LOOK_UP(reads, op);
    if (action)
        return answer_read(action, from, id, &body);
    uint64_t fingerprint = fingerprint_of(frame + 8, len - 8);
    struct call *call = call_find(id);
    if (call)
        return repeat(call, fingerprint, from);
    if (call_was_evicted(id))
        return refuse(from, id, ESTALE);
    immediate *change = LOOK_UP(changes, op);
    starter *start = LOOK_UP(starters, op);
    if (!change && !start)
        return false;
    call = call_new(id, fingerprint, from);
    if (!call)
        return refuse(from, id, EAGAIN);
    if (start) {
        if (start(call, &body))
            return true;
        call_finish_error(call, EBADMSG);
        return false;
    }
    bool well_formed = perform(change, id, &body, &call->answer);
    if (well_formed)
        call_finish(call);
    else
        call_finish_error(call, EBADMSG);
    return well_formed;
}
