/* Remove and list directory trees, which may change at any time. */
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WALK_DEPTH_MAX 200
#define WALK_DIRECTORIES_MAX 65536
#define WALK_FILES_MAX 262144
#define WALK_BYTES_MAX (64u << 20)

struct level {
    dev_t device;
    ino_t inode;
    size_t name; /* offset in `names` of its name in the level above */
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

/* Remove entries of `directory` until one is a non-empty directory, whose name goes to `deeper`. `deeper` is empty if
   all are removed. Closes `directory`. */
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

/* Open the parent directory. Return -ESTALE if it is not `expected`, because the directory was moved. */
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

static bool pruned(const char *name, const char *const *prune)
{
    for (; *prune; prune++)
        if (!strcmp(name, *prune))
            return true;
    return false;
}

/* Put one entry. A directory that must be entered is opened into `*deeper`. */
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
    size_t depth = 0, directories = 0, files = 0;
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
        size_t before = out->len;
        error = walk_entry(dirfd(stack[depth - 1]), entry->d_name, &path, prune, &deeper, out);
        if (!error && out->len > before && ++files > WALK_FILES_MAX)
            error = E2BIG;
        if (error)
            break;
        if (deeper >= 0 && ++directories > WALK_DIRECTORIES_MAX) {
            close(deeper);
            error = E2BIG;
            break;
        }
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
