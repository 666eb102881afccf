#include "call.h"

#include <errno.h>
#include <stdlib.h>

#include "connection.h"
#include "loop.h"

#define RUNNING_MAX 256
#define KEPT_MAX 256
#define KEPT_BYTES_MAX (4u << 20)
#define EVICTED_MAX 4096

/* All calls, oldest first. */
static struct call *first, *last;
static size_t running, kept, kept_bytes;

/* The last evicted ids that callers chose; a repetition of these must run nothing. A ring: the oldest are overwritten.
   */
static uint64_t evicted[EVICTED_MAX];
static size_t evicted_next;

struct call *call_find(uint64_t id)
{
    for (struct call *call = last; call; call = call->previous)
        if (call->id == id)
            return call;
    return NULL;
}

bool call_was_evicted(uint64_t id)
{
    for (size_t i = 0; i < EVICTED_MAX && id & CALLER_ID; i++)
        if (evicted[i] == id)
            return true;
    return false;
}

static void record_eviction(uint64_t id)
{
    if (id & CALLER_ID)
        evicted[evicted_next++ % EVICTED_MAX] = id;
}

struct call *call_of_process(pid_t pid)
{
    for (struct call *call = first; call; call = call->next)
        if (!call->done && call->pid == pid)
            return call;
    return NULL;
}

static void unlink_call(struct call *call)
{
    *(call->previous ? &call->previous->next : &first) = call->next;
    *(call->next ? &call->next->previous : &last) = call->previous;
}

static void append_call(struct call *call)
{
    call->next = NULL;
    call->previous = last;
    *(last ? &last->next : &first) = call;
    last = call;
}

struct call *call_new(uint64_t id, uint64_t fingerprint, struct connection *asker)
{
    struct call *call = running < RUNNING_MAX ? calloc(1, sizeof *call) : NULL;
    if (!call)
        return NULL;
    call->id = id;
    call->fingerprint = fingerprint;
    call->askers[0] = asker;
    call->started = loop_now();
    append_call(call);
    running++;
    return call;
}

bool call_add_asker(struct call *call, struct connection *asker)
{
    for (size_t i = 0; i < ASKERS_MAX; i++)
        if (!call->askers[i] || call->askers[i] == asker) {
            call->askers[i] = asker;
            return true;
        }
    return false;
}

void answer_begin(struct buffer *answer, uint64_t id, int error)
{
    answer->len = 0;
    put_u32(answer, 0);
    put_u64(answer, id);
    put_u8(answer, error != 0);
    if (error)
        put_u32(answer, (uint32_t)error);
}

void answer_end(struct buffer *answer, uint64_t id)
{
    if (answer->failed) {
        buffer_free(answer);
        answer_begin(answer, id, ENOMEM);
    }
    if (!answer->failed)
        set_u32(answer->data, (uint32_t)(answer->len - 4));
}

/* Free the oldest answers until the rest is within the limits. */
static void evict(void)
{
    for (struct call *call = first; call;) {
        if (kept <= KEPT_MAX && kept_bytes <= KEPT_BYTES_MAX)
            return;
        struct call *next = call->next;
        if (call->done) {
            kept--;
            kept_bytes -= call->answer.cap;
            unlink_call(call);
            record_eviction(call->id);
            buffer_free(&call->answer);
            free(call);
        }
        call = next;
    }
}

void call_finish(struct call *call)
{
    stream_release(&call->out);
    stream_release(&call->err);
    call->done = true;
    call->expire = NULL;
    call->pid = 0;
    call->session = NULL;
    call->job = NULL;
    answer_end(&call->answer, call->id);
    for (size_t i = 0; i < ASKERS_MAX; i++) {
        struct connection *asker = call->askers[i];
        call->askers[i] = NULL;
        if (asker)
            connection_send(asker, call->answer.data, call->answer.len);
    }
    running--;
    kept++;
    kept_bytes += call->answer.cap;
    unlink_call(call);
    append_call(call);
    evict();
}

void call_finish_error(struct call *call, int error)
{
    answer_begin(&call->answer, call->id, error);
    call_finish(call);
}

void call_remove_asker(const struct connection *asker)
{
    for (struct call *call = first; call; call = call->next)
        for (size_t i = 0; i < ASKERS_MAX; i++)
            if (call->askers[i] == asker)
                call->askers[i] = NULL;
}

void call_postpone(uint64_t lost)
{
    for (struct call *call = first; call; call = call->next)
        if (!call->done && call->expire) {
            call->deadline += lost;
            call->started += lost;
        }
}

uint64_t call_expire_due(uint64_t now)
{
    uint64_t next = 0;
    for (struct call *call = first; call;) {
        if (!call->done && call->expire && call->deadline <= now) {
            call->expire(call);
            call = first; /* expire may have evicted any other call */
            next = 0;
            continue;
        }
        if (!call->done && call->expire && (!next || call->deadline < next))
            next = call->deadline;
        call = call->next;
    }
    return next;
}
