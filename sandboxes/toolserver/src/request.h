/* The requests and their answers. sandboxes/toolserver/protocol.py is the other side of this protocol.

   Frame, in both directions: u32 length of the rest, u64 id, u8 (op of a request, 0 or 1 of an answer), body.
   An answer with 1 is a refusal: its body is a u32 errno. Integers are little-endian. A blob is a u32 length and its
   bytes. A string is a blob without zero bytes, followed by one. A list is a u32 count and its strings.

   op          body                                                          answer
   PING        -                                                             u16 protocol version
   EXEC        u8 flags (1 merged, 2 with LOG_IN's variables),               RESULT
               u32 timeout ms, u32 head cap, u32 tail cap, string cwd,
               list argv, list env, blob stdin
   SHELL       u32 timeout ms, u32 head cap, u32 tail cap,                   RESULT
               string session, string command
   RESTART     string session                                                -
   READ        u64 offset, u64 limit, string path                            blob
   WRITE       u8 flags (1 executable, 2 not, 4 make parents, 8 only if no    u8 whether there was a file
               file exists), string path, blob content
   LINK        string path, string target                                    -
   REMOVE      string path                                                   -
   STAT        string path                                                   STAT
   WALK        string root, list prune                                       STAT, blob path; repeated
   KILL_ALL    -                                                             -
   CANCEL      u64 id                                                        -; that call ends as at its time-out
   WORK_IN     string path                                                   -; start of relative paths and commands
   LOG_IN      list env                                                      -; variables of shells and jobs
   START       string session, string command                               u32 job
   LISTEN      u32 job, u32 wait ms, u32 quiet ms                            RESULT
   TYPE        u32 job, blob input                                           u32 accepted bytes
   END         u32 job                                                       -; kills its process tree and orphans

   RESULT: u32 exit code, u8 flags (1 timed out, 2 shell lost, 4 still running), u64 microseconds, string spill path,
           then for stdout and stderr: blob head, blob tail, u64 elided
   STAT:   u8 kind, u32 mode, u64 size, u64 mtime ns

   A repeated id gets the kept answer; an id that belongs to a different request is refused with EBADMSG. The last 256
   answers are kept, up to 4 MiB. Of the evicted ids with the highest bit, the last 4,096 are refused with ESTALE.

   A job is a command on its own terminal (or on pipes, if no terminal is available). It starts with the state of the
   session's shell (directory, variables, functions, options) and outlives that shell. LISTEN answers with the output
   since the last answer, of which the first and last 14,000 bytes are kept: when the job has ended, or no output was
   added for the quiet time (0: does not count), or at the end of the wait. An unknown job is refused with ESRCH, input
   of an ended job with EPIPE, a 33rd running job with EMFILE, and a second concurrent LISTEN with EBUSY.

   A walk of more than 65,536 directories or 262,144 files, or with an answer above 64 MiB, is refused with E2BIG; one
   of more than 200 levels with ENAMETOOLONG. */
#ifndef REQUEST_H
#define REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_VERSION 3

enum op { PING = 1, EXEC, SHELL, RESTART, READ, WRITE, LINK, REMOVE, STAT, WALK, KILL_ALL, CANCEL, WORK_IN,
          LOG_IN, START, LISTEN, TYPE, END };

struct connection;

/* Handle a request. Return false if the frame is malformed: then its sender is disconnected. */
bool request_handle(struct connection *from, const uint8_t *frame, size_t len);

#endif
