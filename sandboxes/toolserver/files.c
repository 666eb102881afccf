#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_MAX 40
#define PERMISSIONS 07777

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
            error = errno;
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

/* Makes the directories above the last component of `path`, following symlinks as mkdir -p does. */
static int make_parents(const char *path)
{
    char prefix[PATH_MAX];
    size_t len = strlen(path);
    if (len >= sizeof prefix)
        return ENAMETOOLONG;
    memcpy(prefix, path, len + 1);
    for (char *slash = strchr(prefix + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(prefix, 0777) && errno != EEXIST && errno != EISDIR) {
            int error = errno;
            struct stat st;
            if (stat(prefix, &st) || !S_ISDIR(st.st_mode))
                return error;
        }
        *slash = '/';
    }
    return 0;
}

/* The path that writing to `path` would reach: symlinks at its end followed, whether or not anything is there. */
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

static int temporary_beside(const char *path, char temporary[PATH_MAX])
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

static mode_t wanted_mode(mode_t mode, unsigned flags)
{
    if (flags & WRITE_EXECUTABLE)
        return mode | (mode & 0444) >> 2;
    if (flags & WRITE_PLAIN)
        return mode & ~(mode_t)0111;
    return mode;
}

/* Where nothing can be renamed over the file (it is a mount point), its content is replaced in place. */
static int write_in_place(const char *path, const uint8_t *data, size_t len)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = write_all(fd, data, len);
    close(fd);
    return error;
}

int file_write(const char *path, unsigned flags, const uint8_t *data, size_t len)
{
    char resolved[PATH_MAX], temporary[PATH_MAX];
    int error = flags & WRITE_PARENTS ? make_parents(path) : 0;
    if (!error)
        error = follow_links(path, resolved);
    if (error)
        return error;
    struct stat st;
    bool exists = !lstat(resolved, &st);
    if (!exists && errno != ENOENT)
        return errno;
    if (exists && !S_ISREG(st.st_mode))
        return S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
    size_t path_len = strlen(resolved);
    if (!path_len || resolved[path_len - 1] == '/')
        return path_len ? EISDIR : ENOENT;
    int fd = temporary_beside(resolved, temporary);
    if (fd < 0)
        return -fd;
    error = write_all(fd, data, len);
    if (!error && exists && fchown(fd, st.st_uid, st.st_gid) && errno != EPERM)
        error = errno;
    if (!error && fchmod(fd, wanted_mode(exists ? st.st_mode & PERMISSIONS : 0644, flags)))
        error = errno;
    close(fd);
    if (!error && rename(temporary, resolved))
        error = errno;
    if (error)
        unlink(temporary);
    return error == EBUSY ? write_in_place(resolved, data, len) : error;
}

/* The directory that holds the last component of `path`, no symlink followed on the way, with `make` made on it.
   A descriptor or a negative errno; `*name` is the last component. */
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

struct level {
    dev_t device;
    ino_t inode;
    size_t name; /* in the level above; where in `names` it begins */
};

struct levels {
    struct level *at;
    size_t count, cap;
    struct buffer names;
};

static int push_level(struct levels *levels, int directory, const char *name)
{
    struct stat st;
    if (fstat(directory, &st))
        return errno;
    if (levels->count == levels->cap) {
        size_t cap = levels->cap ? levels->cap * 2 : 64;
        struct level *at = realloc(levels->at, cap * sizeof *at);
        if (!at)
            return ENOMEM;
        levels->at = at;
        levels->cap = cap;
    }
    struct level *level = &levels->at[levels->count++];
    level->device = st.st_dev;
    level->inode = st.st_ino;
    level->name = levels->names.len;
    put_bytes(&levels->names, name, strlen(name) + 1);
    return levels->names.failed ? ENOMEM : 0;
}

static bool is_dots(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

/* Removes what it can of `directory` until it meets a directory that is not empty: that one's name goes to `deeper`,
   which stays empty when all is gone. Takes over the descriptor. */
static int clear_directory(int directory, char deeper[NAME_MAX + 1])
{
    DIR *stream = fdopendir(directory);
    if (!stream) {
        close(directory);
        return errno;
    }
    deeper[0] = 0;
    int error = 0;
    for (struct dirent *entry; !error && !deeper[0] && (entry = readdir(stream));) {
        if (is_dots(entry->d_name))
            continue;
        if (!unlinkat(directory, entry->d_name, 0) || errno == ENOENT)
            continue;
        if (errno != EISDIR && errno != EPERM)
            error = errno;
        else if (unlinkat(directory, entry->d_name, AT_REMOVEDIR) && errno != ENOENT) {
            if (errno == ENOTEMPTY || errno == EEXIST)
                snprintf(deeper, NAME_MAX + 1, "%s", entry->d_name);
            else
                error = errno;
        }
    }
    closedir(stream);
    return error;
}

/* The directory above, if it still is the one we came from: somebody may have moved ours. */
static int climb(int directory, const struct level *expected)
{
    struct stat st;
    int above = openat(directory, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (above < 0)
        return -errno;
    if (fstat(above, &st) || st.st_dev != expected->device || st.st_ino != expected->inode) {
        close(above);
        return -ESTALE;
    }
    return above;
}

static int remove_below(int directory)
{
    struct levels levels = {0};
    int error = push_level(&levels, directory, "");
    while (!error && directory >= 0) {
        char deeper[NAME_MAX + 1];
        error = clear_directory(dup(directory), deeper);
        if (error)
            break;
        int next;
        if (deeper[0]) {
            next = openat(directory, deeper, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            error = next < 0 ? errno : push_level(&levels, next, deeper);
        } else if (levels.count == 1) {
            break;
        } else {
            const struct level *left = &levels.at[--levels.count];
            const char *name = (const char *)levels.names.data + left->name;
            levels.names.len = left->name;
            next = climb(directory, &levels.at[levels.count - 1]);
            error = next < 0 ? -next : unlinkat(next, name, AT_REMOVEDIR) && errno != ENOENT ? errno : 0;
        }
        close(directory);
        directory = next;
    }
    if (directory >= 0)
        close(directory);
    free(levels.at);
    buffer_free(&levels.names);
    return error;
}

int file_remove(const char *path)
{
    if (!unlink(path) || errno == ENOENT || errno == ENOTDIR)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return errno;
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0)
        return errno == ENOTDIR ? EPERM : errno;
    int error = remove_below(directory);
    return error ? error : rmdir(path) && errno != ENOENT ? errno : 0;
}

static void put_stat(struct buffer *out, const struct stat *st)
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

#define WALK_DEPTH_MAX 200
#define WALK_BYTES_MAX (64u << 20)

static bool pruned(const char *name, const char *const *prune)
{
    for (; *prune; prune++)
        if (!strcmp(name, *prune))
            return true;
    return false;
}

/* One entry of the directory at `depth`. A directory to be entered is opened into `*deeper`. */
static int walk_entry(int directory, const char *name, struct buffer *path, const char *const *prune, int *deeper,
                      struct buffer *out)
{
    struct stat st;
    if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? 0 : errno;
    if (S_ISDIR(st.st_mode)) {
        if (pruned(name, prune))
            return 0;
        *deeper = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return *deeper >= 0 || errno == ENOENT ? 0 : errno;
    }
    size_t before = path->len;
    put_bytes(path, name, strlen(name));
    put_stat(out, &st);
    put_blob(out, path->data, path->len);
    path->len = before;
    return path->failed || out->failed ? ENOMEM : out->len > WALK_BYTES_MAX ? E2BIG : 0;
}

int file_walk(const char *root, const char *const *prune, struct buffer *out)
{
    DIR *stack[WALK_DEPTH_MAX];
    size_t lengths[WALK_DEPTH_MAX];
    size_t depth = 0;
    struct buffer path = {0};
    int error = 0;
    int deeper = open(root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (deeper < 0)
        return errno;
    for (;;) {
        if (deeper >= 0) {
            DIR *stream = depth < WALK_DEPTH_MAX ? fdopendir(deeper) : NULL;
            if (!stream) {
                error = depth < WALK_DEPTH_MAX ? errno : ENAMETOOLONG;
                close(deeper);
                break;
            }
            stack[depth] = stream;
            lengths[depth++] = path.len;
            deeper = -1;
        }
        struct dirent *entry = readdir(stack[depth - 1]);
        if (!entry) {
            closedir(stack[--depth]);
            if (!depth)
                break;
            path.len = lengths[depth - 1];
            continue;
        }
        if (is_dots(entry->d_name))
            continue;
        error = walk_entry(dirfd(stack[depth - 1]), entry->d_name, &path, prune, &deeper, out);
        if (error)
            break;
        if (deeper >= 0) {
            put_bytes(&path, entry->d_name, strlen(entry->d_name));
            put_u8(&path, '/');
        }
    }
    while (depth)
        closedir(stack[--depth]);
    buffer_free(&path);
    return error;
}
