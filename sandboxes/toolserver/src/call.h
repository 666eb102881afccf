/* A call: one request, from its arrival until its answer is evicted.
   The answers of calls that change something are kept, so that a repeated id runs nothing twice. */
#ifndef CALL_H
#define CALL_H

#include <sys/types.h>

#include "buffer.h"
#include "stream.h"

#define ASKERS_MAX 8
#define CALLER_ID (1ull << 63) /* set in ids that callers chose as idempotency keys, and in no others */

struct connection;

struct call {
    struct call *next, *previous;
    uint64_t id, fingerprint;
    struct connection *askers[ASKERS_MAX];
    bool done;
    struct buffer answer; /* a whole frame, once done */

    /* While it runs: */
    void (*expire)(struct call *call); /* ends it early; NULL for a call that is answered at once */
    pid_t pid;                         /* its own process; 0 for a shell's command */
    bool worker;
    bool cancelled;                    /* expired because its caller has gone */
    uint64_t started, deadline;
    struct stream *out, *err;
    struct session *session;
    struct job *job; /* the job that it listens to or starts */
};

/* Return the running or kept call with this id, or NULL. */
struct call *call_find(uint64_t id);
/* Return true if a call with this id has run, but its answer was evicted. */
bool call_was_evicted(uint64_t id);
struct call *call_of_process(pid_t pid);
/* Return a new call, or NULL without memory or if too many run. */
/* NULL without memory, or when too many run. */
struct call *call_new(uint64_t id, uint64_t fingerprint, struct connection *asker);
/* Add a connection that gets the answer. Return false if there are too many. */
bool call_add_asker(struct call *call, struct connection *asker);
/* Begin an answer frame. A body follows if `error` is 0. */
void answer_begin(struct buffer *answer, uint64_t id, int error);
/* Set the frame's length. If memory ran out, the frame becomes an error. */
void answer_end(struct buffer *answer, uint64_t id);
/* Send `call->answer` to all askers, and keep it. */
void call_finish(struct call *call);
void call_finish_error(struct call *call, int error);
/* Remove a closed connection from all calls. */
void call_remove_asker(const struct connection *asker);
/* Let no deadline count a standstill of so many microseconds. */
void call_postpone(uint64_t lost);

/* Expire the calls whose deadline has passed at `now`. Return the next deadline, or 0. */
uint64_t call_expire_due(uint64_t now);

#endif
