#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define LINKS_MAX 40
#define EXCHANGE (1u << 1) /* RENAME_EXCHANGE, which musl does not define */
#define PERMISSIONS 07777
/* statfs(2). Musl has no linux/magic.h. */
#define PROC_MAGIC 0x9fa0
#define SYSFS_MAGIC 0x62656572
#define CGROUP_MAGIC 0x27e0eb
#define CGROUP2_MAGIC 0x63677270

/* Return whether a file is one of the kernel's, of which each read may fail in its own way: /proc/self/mem with EIO. */
static bool is_kernel_file(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) || fs.f_type == PROC_MAGIC || fs.f_type == SYSFS_MAGIC || fs.f_type == CGROUP_MAGIC ||
           fs.f_type == CGROUP2_MAGIC;
}

int file_read(const char *path, uint64_t offset, uint64_t limit, struct buffer *out)
{
    if (limit > READ_MAX)
        limit = READ_MAX;
    if (offset > INT64_MAX - READ_MAX)
        return EINVAL;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    struct stat st;
    int error = fstat(fd, &st) ? errno : S_ISDIR(st.st_mode) ? EISDIR : S_ISREG(st.st_mode) ? 0 : EINVAL;
    while (!error && limit) {
        size_t chunk = limit < 65536 ? (size_t)limit : 65536;
        if (!buffer_reserve(out, chunk)) {
            error = ENOMEM;
            break;
        }
        ssize_t n = pread(fd, out->data + out->len, chunk, (off_t)offset);
        if (n < 0 && errno != EINTR)
            error = errno == EIO && is_kernel_file(fd) ? EINVAL : errno; /* EIO means that a disk of the machine fails */
        else if (n == 0)
            break;
        else if (n > 0) {
            out->len += (size_t)n;
            offset += (uint64_t)n;
            limit -= (uint64_t)n;
        }
    }
    close(fd);
    return error;
}

/* Make the parent directories of `path`, following symlinks as mkdir -p does. `*made` becomes the length of the
   shortest path that was created, or 0. */
static int make_parents(const char *path, size_t *made)
{
    char prefix[PATH_MAX];
    size_t len = strlen(path);
    if (len >= sizeof prefix)
        return ENAMETOOLONG;
    memcpy(prefix, path, len + 1);
    for (char *slash = strchr(prefix + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (!mkdir(prefix, 0777)) {
            if (!*made)
                *made = (size_t)(slash - prefix);
        } else if (errno != EEXIST && errno != EISDIR) {
            int error = errno;
            struct stat st;
            if (stat(prefix, &st) || !S_ISDIR(st.st_mode))
                return error;
        }
        *slash = '/';
    }
    return 0;
}

/* Remove the directories that make_parents created, unless they have entries by now. */
static void remove_parents(const char *path, size_t made)
{
    char prefix[PATH_MAX];
    if (!made)
        return;
    strcpy(prefix, path);
    for (char *slash; (slash = strrchr(prefix, '/')) && (size_t)(slash - prefix) >= made;) {
        *slash = 0;
        if (rmdir(prefix) && errno != ENOENT)
            return;
    }
}

/* Resolve the symlinks at the end of `path`, whether or not the target exists. */
static int follow_links(const char *path, char resolved[PATH_MAX])
{
    char target[PATH_MAX], joined[PATH_MAX];
    if (strlen(path) >= PATH_MAX)
        return ENAMETOOLONG;
    strcpy(resolved, path);
    for (int i = 0; i < LINKS_MAX; i++) {
        ssize_t n = readlink(resolved, target, sizeof target - 1);
        if (n < 0)
            return errno == EINVAL || errno == ENOENT ? 0 : errno;
        target[n] = 0;
        const char *slash = strrchr(resolved, '/');
        int directory = target[0] == '/' || !slash ? 0 : (int)(slash - resolved) + 1;
        if (snprintf(joined, sizeof joined, "%.*s%s", directory, resolved, target) >= (int)sizeof joined)
            return ENAMETOOLONG;
        strcpy(resolved, joined);
    }
    return ELOOP;
}

static int write_all(int fd, const uint8_t *data, size_t len)
{
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? errno : ENOSPC;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

static int open_temporary(const char *path, char temporary[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    int directory = slash ? (int)(slash - path) + 1 : 0;
    for (int tries = 0; tries < 16; tries++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return -EIO;
        if (snprintf(temporary, PATH_MAX, "%.*s.farm-%016llx", directory, path, (unsigned long long)random) >= PATH_MAX)
            return -ENAMETOOLONG;
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd >= 0 ? fd : -errno;
    }
    return -EEXIST;
}

static mode_t new_mode(mode_t mode, unsigned flags)
{
    if (flags & WRITE_EXECUTABLE)
        return mode | (mode & 0444) >> 2;
    if (flags & WRITE_PLAIN)
        return mode & ~(mode_t)0111;
    return mode;
}

/* Copy user attributes and the access control list from `path` to `fd`, as far as possible. */
static void copy_attributes(const char *path, int fd)
{
    static char names[65536], value[65536];
    ssize_t len = llistxattr(path, names, sizeof names);
    for (const char *name = names; len > 0 && name < names + len; name += strlen(name) + 1) {
        if (strncmp(name, "user.", 5) && strcmp(name, "system.posix_acl_access"))
            continue;
        ssize_t size = lgetxattr(path, name, value, sizeof value);
        if (size >= 0)
            fsetxattr(fd, name, value, (size_t)size, 0);
    }
}

/* Replace the content in place, for a file that cannot be replaced by rename (a mount point). */
static int write_in_place(const char *path, const uint8_t *data, size_t len)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = write_all(fd, data, len);
    close(fd);
    return error;
}

static int exchange(const char *one, const char *other)
{
    return (int)syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, EXCHANGE);
}

/* Put the file `temporary` in place of `old`, or of nothing, atomically. btrfs and ext4 flush a file at once that is
   renamed over another, which takes longer than the rest of the write; an exchange avoids that. Files that were last
   changed before the first write are replaced by rename: they may be in a lower layer, and an exchange would copy them
   up. */
static int put_in_place(const char *temporary, const char *path, const struct stat *old)
{
    static time_t first;
    if (!first)
        first = time(NULL);
    if (!old || old->st_ctime <= first || exchange(temporary, path))
        return rename(temporary, path) ? errno : 0;
    if (!unlink(temporary) || errno == ENOENT) /* the old file is removed, even if by another process */
        return 0;
    int error = errno; /* a directory took the file's place meanwhile */
    exchange(temporary, path);
    return error;
}

static int write_file(const char *path, unsigned flags, const uint8_t *data, size_t len, struct buffer *out)
{
    char resolved[PATH_MAX], temporary[PATH_MAX];
    int error = follow_links(path, resolved);
    if (error)
        return error;
    struct stat st;
    bool exists = !lstat(resolved, &st);
    if (!exists && errno != ENOENT)
        return errno;
    if (exists && !S_ISREG(st.st_mode))
        return S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
    if (flags & WRITE_NEW && (exists || strcmp(path, resolved)))
        return EEXIST;
    size_t path_len = strlen(resolved);
    if (!path_len || resolved[path_len - 1] == '/')
        return path_len ? EISDIR : ENOENT;
    int fd = open_temporary(resolved, temporary);
    if (fd < 0)
        return -fd;
    error = write_all(fd, data, len);
    if (!error && exists && fchown(fd, st.st_uid, st.st_gid) && errno != EPERM)
        error = errno;
    if (!error && exists)
        copy_attributes(resolved, fd);
    if (!error && fchmod(fd, new_mode(exists ? st.st_mode & PERMISSIONS : 0644, flags)))
        error = errno;
    close(fd);
    if (!error)
        error = put_in_place(temporary, resolved, exists ? &st : NULL);
    if (error)
        unlink(temporary);
    if (error == EBUSY)
        error = write_in_place(resolved, data, len);
    put_u8(out, exists);
    return error;
}

int file_write(const char *path, unsigned flags, const uint8_t *data, size_t len, struct buffer *out)
{
    size_t made = 0;
    int error = flags & WRITE_PARENTS ? make_parents(path, &made) : 0;
    if (!error)
        error = write_file(path, flags, data, len, out);
    if (error)
        remove_parents(path, made);
    return error;
}

/* Open the directory of the last component of `path`, without following symlinks. `make`: create missing directories.
   Return a descriptor or a negative errno; `*name` is the last component. */
static int open_parent(const char *path, bool make, const char **name)
{
    char component[NAME_MAX + 1];
    int directory = open(*path == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    while (directory >= 0) {
        path += strspn(path, "/");
        size_t len = strcspn(path, "/");
        int error = !len ? EINVAL : len > NAME_MAX ? ENAMETOOLONG : 0;
        if ((len == 1 && path[0] == '.') || (len == 2 && path[0] == '.' && path[1] == '.'))
            error = EINVAL;
        if (!error && !path[len + strspn(path + len, "/")]) {
            *name = path;
            if (!path[len])
                return directory;
            error = EINVAL;
        }
        if (error) {
            close(directory);
            return -error;
        }
        memcpy(component, path, len);
        component[len] = 0;
        if (make)
            mkdirat(directory, component, 0777);
        int next = openat(directory, component, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        error = errno;
        close(directory);
        if (next < 0)
            return -error;
        directory = next;
        path += len;
    }
    return -errno;
}

int file_link(const char *path, const char *target)
{
    const char *name;
    int directory = open_parent(path, true, &name);
    if (directory < 0)
        return -directory;
    int error = symlinkat(target, directory, name) ? errno : 0;
    if (error == EEXIST) {
        error = unlinkat(directory, name, 0) ? errno : 0;
        if (!error && symlinkat(target, directory, name))
            error = errno;
    }
    close(directory);
    return error;
}

void put_stat(struct buffer *out, const struct stat *st)
{
    uint8_t kind = S_ISREG(st->st_mode) ? 'f' : S_ISDIR(st->st_mode) ? 'd' : S_ISLNK(st->st_mode) ? 'l' : 'o';
    put_u8(out, kind);
    put_u32(out, st->st_mode & PERMISSIONS);
    put_u64(out, (uint64_t)st->st_size);
    put_u64(out, (uint64_t)((int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec));
}

int file_stat(const char *path, struct buffer *out)
{
    struct stat st;
    if (lstat(path, &st))
        return errno;
    put_stat(out, &st);
    return out->failed ? ENOMEM : 0;
}
