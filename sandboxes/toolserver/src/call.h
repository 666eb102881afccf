/* A call: one request from its arrival until its answer is forgotten.
   The answers of calls that change something are remembered, so that a repeated id runs nothing twice. */
#ifndef CALL_H
#define CALL_H

#include <sys/types.h>

#include "buffer.h"
#include "stream.h"

#define ASKERS_MAX 8
#define CHOSEN_ID (1ull << 63) /* set in ids by which calls may be repeated, and in no others */

struct connection;

struct call {
    struct call *next, *previous;
    uint64_t id, fingerprint;
    struct connection *askers[ASKERS_MAX];
    bool done;
    struct buffer answer; /* a whole frame, once done */

    /* While it runs: */
    void (*expire)(struct call *call); /* ends it before its time; NULL for one answered at once */
    pid_t pid;                         /* its own process; 0 for a shell's */
    bool worker;
    bool cancelled;                    /* whoever asked has gone away: expired for that */
    uint64_t started, deadline;
    struct stream *out, *err;
    struct session *session;
    struct job *job; /* the one that is listened to, or about to start */
};

/* The call of this id that runs or is remembered, or NULL. */
struct call *call_find(uint64_t id);
/* Whether a call of this id has run whose answer is remembered no more. */
bool call_forgotten(uint64_t id);
struct call *call_of_process(pid_t pid);
/* NULL without memory, or when too many run. */
struct call *call_new(uint64_t id, uint64_t fingerprint, struct connection *asker);
/* False when it has too many askers already. */
bool call_ask(struct call *call, struct connection *asker);
/* Begins the answer frame; `error` 0 means that a body follows. */
void answer_begin(struct buffer *answer, uint64_t id, int error);
/* Sets the frame's length; when memory ran out the frame is an error's instead. */
void answer_end(struct buffer *answer, uint64_t id);
/* Sends `call->answer` to all who asked, and remembers it. */
void call_finish(struct call *call);
void call_finish_error(struct call *call, int error);
/* The connection is no more. */
void call_forget_asker(const struct connection *asker);
/* The next deadline, or 0; calls that are past theirs are expired first. */
uint64_t call_expire_due(void);

#endif
