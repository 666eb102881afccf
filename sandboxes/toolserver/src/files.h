/* File operations. Each returns 0 or an errno, and puts its answer into `out`.
   The file system is untrusted and may change at any time. */
#ifndef FILES_H
#define FILES_H

#include "buffer.h"

#define READ_MAX (4u << 20)

enum write_flags { WRITE_EXECUTABLE = 1, WRITE_PLAIN = 2, WRITE_PARENTS = 4, WRITE_NEW = 8 };

/* Put the bytes of a regular file, at most READ_MAX. */
int file_read(const char *path, uint64_t offset, uint64_t limit, struct buffer *out);
/* Replace a file atomically; a symlink at `path` is followed. Without a mode flag the mode of an existing file is kept.
   Put u8, whether there was a file. With WRITE_NEW a file or symlink at `path` is refused. */
int file_write(const char *path, unsigned flags, const uint8_t *data, size_t len, struct buffer *out);
/* Put a symlink in place of any file. No directory on the way may be a symlink. */
int file_link(const char *path, const char *target);
/* Remove a file or a whole tree. */
int file_remove(const char *path);
struct stat;
void put_stat(struct buffer *out, const struct stat *st);
/* Put u8 kind ('f', 'd', 'l' or 'o'), u32 mode, u64 size, i64 mtime in ns. */
int file_stat(const char *path, struct buffer *out);
/* For all entries below `root` except directories, put what file_stat puts, and the path relative to `root` as a blob.
   */
int file_walk(const char *root, const char *const *prune, struct buffer *out);

#endif
