/* What can be asked, and who answers it. sandboxes/toolserver/protocol.py is the other side of this page.

   Frame, either way: u32 length of what follows, u64 id, u8 (op of a request, 0 or 1 of an answer), body.
   An answer with 1 is a refusal: its body is a u32 errno. Integers are little-endian; a blob is a u32 length and its
   bytes; a string is a blob without zero bytes, followed by one; a list is a u32 count and its strings.

   op          body                                                          answer
   PING        -                                                             u16 protocol version
   EXEC        u8 flags (1 merged, 2 with what LOG_IN said), u32 timeout ms,   RESULT
               u32 head cap, u32 tail cap, string cwd, list argv, list env,
               blob stdin
   SHELL       u32 timeout ms, u32 head cap, u32 tail cap,                   RESULT
               string session, string command
   RESTART     string session                                                -
   READ        u64 offset, u64 limit, string path                            blob
   WRITE       u8 flags (1 executable, 2 not, 4 parents are made, 8 only     u8 whether there was a file
               where nothing is), string path, blob content
   LINK        string path, string target                                    -
   REMOVE      string path                                                   -
   STAT        string path                                                   STAT
   WALK        string root, list prune                                       STAT, blob path; repeated
   KILL_ALL    -                                                             -
   CANCEL      u64 id                                                        -; that call ends as at its time-out
   WORK_IN     string path                                                   -; relative paths, and commands, begin there
   LOG_IN      list env                                                      -; what shells and jobs find beside the rest
   START       string session, string command                               u32 job
   LISTEN      u32 job, u32 wait ms, u32 quiet ms                            RESULT
   TYPE        u32 job, blob input                                           u32 how much of it was taken
   END         u32 job                                                       -; its process tree is killed, and what it left

   RESULT: u32 exit code, u8 flags (1 timed out, 2 shell lost, 4 runs still), u64 microseconds, string spill path,
           then for stdout and stderr: blob head, blob tail, u64 elided
   STAT:   u8 kind, u32 mode, u64 size, u64 mtime ns

   A repeated id gets the answer that is remembered; that of another request is refused with EBADMSG. Remembered are the
   last 256 answers, as many as 4 MiB hold; of ids with the highest bit the last 4,096 beyond that are refused with ESTALE.

   A job is a command on a terminal of its own (or on pipes, where there is none to be had). It begins as the session's
   shell stands: directory, variables, functions, options; and outlives it. LISTEN answers with what the job has said
   since the last answer, of which it keeps 14,000 bytes from either end: once it has ended, or nothing was added for so
   long as quiet says (0: does not count), or at the end of the wait. A job that is not known is refused with ESRCH, one
   that takes no more input with EPIPE, a 33rd that runs with EMFILE, and a second LISTEN at a time with EBUSY.

   A walk of more than 65,536 directories or 262,144 files, or whose answer grows past 64 MiB, is refused with E2BIG; one
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

/* False when the frame makes no sense: its sender is to be cut off. */
bool request_handle(struct connection *from, const uint8_t *frame, size_t len);

#endif
