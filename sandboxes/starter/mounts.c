#include "mounts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CGROUPS "/sys/fs/cgroup"
#define HIERARCHIES_MAX 16
#define IDS 65536

static bool attach(int fd, const char *at)
{
    return !syscall(SYS_move_mount, fd, "", AT_FDCWD, at, 4 /* MOVE_MOUNT_F_EMPTY_PATH */);
}

/* For cgroup version 1: the OCI runtime makes cgroups in all hierarchies that it finds, and even in directories on
   which nothing is mounted. So mount only those that it needs, below a read-only tmpfs. */
static bool keep_hierarchies(char **kept)
{
    int trees[HIERARCHIES_MAX], links = open(CGROUPS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    size_t count = 0;
    for (; kept[count] && count < HIERARCHIES_MAX; count++)
        if ((trees[count] = (int)syscall(SYS_open_tree, AT_FDCWD, kept[count], O_CLOEXEC)) < 0)
            return false;
    if (mount("cgroups", CGROUPS, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=64k"))
        return false;
    for (size_t i = 0; i < count; i++)
        if (mkdir(kept[i], 0755) || !attach(trees[i], kept[i]))
            return false;
    DIR *names = fdopendir(links); /* symlinks such as cpu to cpu,cpuacct */
    for (struct dirent *entry; names && (entry = readdir(names));) {
        char target[256] = {0};
        if (entry->d_type == DT_LNK && readlinkat(links, entry->d_name, target, sizeof target - 1) > 0) {
            int root = open(CGROUPS, O_PATH | O_CLOEXEC);
            symlinkat(target, root, entry->d_name);
            close(root);
        }
    }
    closedir(names);
    for (size_t i = 0; i < count; i++)
        close(trees[i]);
    return !mount(NULL, CGROUPS, NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

static bool make_file(const char *path)
{
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    return file >= 0 && !close(file);
}

static bool is_path_prefix(const char *mount, const char *path)
{
    size_t len = strlen(mount);
    return !strcmp(mount, "/") || (!strncmp(path, mount, len) && (!path[len] || path[len] == '/'));
}

static bool is_needed(const char *mount, char **needed)
{
    static const char *const whole[] = {"/proc", "/sys", "/dev"}, *const system[] = {"/usr", "/lib", "/lib64", "/bin"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (is_path_prefix(whole[i], mount))
            return true;
    for (size_t i = 0; i < sizeof system / sizeof *system; i++)
        if (is_path_prefix(mount, system[i]))
            return true;
    while (*needed && !is_path_prefix(mount, *needed))
        needed++;
    return *needed;
}

/* Decode octal escapes such as "\040" in place, with which the kernel writes characters that would end a field. */
static void unescape(char *text)
{
    char *to = text;
    for (; *text; to++)
        if (*text == '\\' && text[1]) {
            *to = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
            text += 4;
        } else
            *to = *text++;
    *to = 0;
}

/* Unmount all other mounts: the machine could not release them while this process lives, and each start copies the
   mounts that are left. */
static bool keep_mounts(char **needed)
{
    char *table = NULL, *line = NULL;
    size_t size = 0, capacity = 0;
    FILE *mounts = fopen("/proc/self/mountinfo", "re"), *copy = open_memstream(&table, &size);
    if (!mounts || !copy)
        return false;
    while (getline(&line, &capacity, mounts) > 0) { /* read all before it changes; the fifth field is the mount point */
        char *at = line;
        for (int i = 0; i < 4; i++)
            at += strcspn(at, " ") + 1;
        fwrite(at, strcspn(at, " "), 1, copy);
        fputc(0, copy);
    }
    fclose(mounts);
    fclose(copy);
    free(line);
    for (char *at = table, *next; at < table + size; at = next) {
        next = at + strlen(at) + 1;
        unescape(at);
        if (!is_needed(at, needed))
            umount2(at, MNT_DETACH | UMOUNT_NOFOLLOW);
    }
    free(table);
    return true;
}

bool set_up_mounts(int disk, int layer, char **needed, char **hierarchies)
{
    if (chdir("/") || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || !keep_mounts(needed))
        return false;
    if (*hierarchies && !keep_hierarchies(hierarchies))
        return false;
    /* Space for the state of as many starts as possible: the OCI runtime copies each sandbox's configuration, about 6
       MiB
       at most. A start fails if the space is used up. */
    if (mount("farm", MOUNT_DIR, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=2g"))
        return false;
    return !mkdir(DISK, 0755) && !mkdir(LAYER, 0755) && !mkdir(ROOTFS, 0755) && !mkdir(STATE, 0700) &&
           !mkdir(DEVICES, 0755) && make_file(USERS) && attach(disk, DISK) && attach(layer, LAYER);
}

static int wait_for_kill(void *unused)
{
    (void)unused;
    while (pause())
        ;
    return 0;
}

static bool map_ids(pid_t pid, const char *kind, const char *first)
{
    char path[64], map[64];
    snprintf(path, sizeof path, "/proc/%d/%s_map", (int)pid, kind);
    int len = snprintf(map, sizeof map, "0 %s %d\n", first, IDS);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, map, (size_t)len) == len;
    close(fd);
    return written;
}

int make_user_namespace(const char *first)
{
    static _Alignas(16) char stack[4096];
    char path[64];
    if (seteuid((uid_t)atol(first)))
        return -1;
    pid_t pid = clone(wait_for_kill, stack + sizeof stack, CLONE_NEWUSER | CLONE_VM | SIGCHLD, NULL);
    int error = errno, fd = -1;
    if (seteuid(0))
        return -1;
    errno = error;
    if (pid < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    if (map_ids(pid, "uid", first) && map_ids(pid, "gid", first))
        fd = mount(path, USERS, NULL, MS_BIND, NULL) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    errno = error;
    return fd;
}

/* Return a detached mount of the EROFS image at `path`, a file or a block device; see fsopen(2). Each mount of a file
   has its own directory entries, inodes and page cache. */
static int mount_image(const char *path)
{
    int context = (int)syscall(430 /* fsopen */, "erofs", 1 /* FSOPEN_CLOEXEC */), fd = -1;
    if (context < 0)
        return -1;
    if (!syscall(431 /* fsconfig */, context, 1 /* FSCONFIG_SET_STRING */, "source", path, 0) &&
        !syscall(431, context, 0 /* FSCONFIG_SET_FLAG */, "ro", NULL, 0) &&
        !syscall(431, context, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0))
        fd = (int)syscall(432 /* fsmount */, context, 1 /* FSMOUNT_CLOEXEC */, 0x1 /* MOUNT_ATTR_RDONLY */);
    int error = errno;
    close(context);
    errno = error;
    return fd;
}

/* Return a detached read-only mount of the directory or image at `path`. Map its owners if `namespace` is a
   descriptor. */
static int mount_layer(const char *path, int namespace)
{
    struct {
        uint64_t set, clear, propagation, user_namespace;
    } attributes = {0x1 /* MOUNT_ATTR_RDONLY */, 0, 0, 0};
    if (namespace >= 0) {
        attributes.set |= 0x100000; /* MOUNT_ATTR_IDMAP */
        attributes.user_namespace = (uint64_t)namespace;
    }
    struct stat status;
    if (stat(path, &status))
        return -1;
    int fd = S_ISDIR(status.st_mode) ? (int)syscall(SYS_open_tree, AT_FDCWD, path, 1 /* OPEN_TREE_CLONE */ | O_CLOEXEC)
                                    : mount_image(path);
    if (fd >= 0 && !syscall(442 /* mount_setattr */, fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes))
        return fd;
    return -1;
}

bool mount_overlay(const char *top, char **layers, size_t count, const char *options, int namespace)
{
    char data[4096];
    const char *top_path = *top ? top : LAYER;
    int top_fd = mount_layer(top_path, namespace);
    if (top_fd < 0) /* a file system without idmapped mounts: these files are readable for all */
        top_fd = mount_layer(top_path, -1);
    if (top_fd < 0)
        return false;
    int len = snprintf(data, sizeof data, "%s,lowerdir=/proc/self/fd/%d", options, top_fd);
    for (size_t i = 0; i < count && len < (int)sizeof data; i++) {
        int fd = mount_layer(layers[i], namespace);
        if (fd < 0)
            return false;
        len += snprintf(data + len, sizeof data - (size_t)len, ":/proc/self/fd/%d", fd);
    }
    errno = E2BIG;
    if (len >= (int)sizeof data)
        return false;
    /* Device files work only at DEVICES, because an image can have its own. */
    return !mount("overlay", ROOTFS, "overlay", 0, data) && !mount(ROOTFS "/.farm/dev", DEVICES, NULL, MS_BIND, NULL) &&
           !mount(NULL, ROOTFS, NULL, MS_REMOUNT | MS_BIND | MS_NODEV, NULL);
}

static int remove_entry(const char *path, const struct stat *entry, int kind, struct FTW *place)
{
    (void)entry, (void)kind, (void)place;
    return remove(path);
}

void remove_runtime_state(const char *id)
{
    char path[sizeof STATE + 80];
    if (snprintf(path, sizeof path, STATE "/%s", id) < (int)sizeof path)
        nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}
