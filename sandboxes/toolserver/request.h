/* What can be asked, and who answers it. sandboxes/protocol.py is the other side of this page.

   Frame, either way: u32 length of what follows, u64 id, u8 (op of a request, 0 or 1 of an answer), body.
   An answer with 1 is a refusal: its body is a u32 errno. Integers are little-endian; a blob is a u32 length and its
   bytes; a string is a blob without zero bytes, followed by one; a list is a u32 count and its strings.

   op          body                                                          answer
   PING        -                                                             u16 protocol version
   EXEC        u8 merge, u32 timeout ms, u32 head cap, u32 tail cap,         RESULT
               string cwd, list argv, list env, blob stdin
   SHELL       u32 timeout ms, u32 head cap, u32 tail cap,                   RESULT
               string session, string command
   RESTART     string session                                                -
   READ        u64 offset, u64 limit, string path                            blob
   WRITE       u8 flags, string path, blob content                           -
   LINK        string path, string target                                    -
   REMOVE      string path                                                   -
   STAT        string path                                                   STAT
   WALK        string root, list prune                                       STAT, blob path; repeated
   KILL_ALL    -                                                             -
   CANCEL      u64 id                                                        -; that call ends as at its time-out
   WORK_IN     string path                                                   -; relative paths, and commands, begin there

   RESULT: u32 exit code, u8 flags (1 timed out, 2 shell lost), u64 microseconds, string spill path,
           then for stdout and stderr: blob head, blob tail, u64 elided
   STAT:   u8 kind, u32 mode, u64 size, u64 mtime ns

   A repeated id gets the answer that is remembered; that of another request is refused with EBADMSG. Remembered are the
   last 256 answers, as many as 4 MiB hold; of ids with the highest bit the last 4,096 beyond that are refused with ESTALE.

   A walk of more than 65,536 directories or 262,144 files, or whose answer grows past 64 MiB, is refused with E2BIG; one
   of more than 200 levels with ENAMETOOLONG. */
#ifndef REQUEST_H
#define REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_VERSION 1

enum op { PING = 1, EXEC, SHELL, RESTART, READ, WRITE, LINK, REMOVE, STAT, WALK, KILL_ALL, CANCEL, WORK_IN };

struct connection;

/* False when the frame makes no sense: its sender is to be cut off. */
bool request_handle(struct connection *from, const uint8_t *frame, size_t len);

#endif
