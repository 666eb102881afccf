/* File operations. Each returns 0 or an errno; what it found is put into `out`.
   Whatever lies on the file system may be hostile and may change while it is looked at. */
#ifndef FILES_H
#define FILES_H

#include "buffer.h"

#define READ_MAX (4u << 20)

enum write_flags { WRITE_EXECUTABLE = 1, WRITE_PLAIN = 2, WRITE_PARENTS = 4, WRITE_NEW = 8 };

/* The file's bytes. Regular files only; at most READ_MAX bytes. */
int file_read(const char *path, uint64_t offset, uint64_t limit, struct buffer *out);
/* New content in one step; follows a symlink at `path`. Without a flag for it, the mode of an existing file stays.
   u8 whether there was a file; with WRITE_NEW that, or a symlink, is refused. */
int file_write(const char *path, unsigned flags, const uint8_t *data, size_t len, struct buffer *out);
/* A symlink in place of whatever file is there; no directory on the way may be a symlink. */
int file_link(const char *path, const char *target);
/* Whatever is there, with all below it. */
int file_remove(const char *path);
struct stat;
void put_stat(struct buffer *out, const struct stat *st);
/* u8 kind ('f', 'd', 'l' or 'o'), u32 mode, u64 size, i64 mtime in ns. */
int file_stat(const char *path, struct buffer *out);
/* For everything below `root` but directories: what file_stat puts, then the path relative to `root` as a blob. */
int file_walk(const char *root, const char *const *prune, struct buffer *out);

#endif
