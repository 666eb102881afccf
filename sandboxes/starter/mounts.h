/* The starter's mount namespace, and the mounts of each start. */
#ifndef MOUNTS_H
#define MOUNTS_H

#include <stdbool.h>
#include <stddef.h>

#define MOUNT_DIR "/mnt" /* hidden by a tmpfs that only the starter sees */
#define DISK MOUNT_DIR "/disk"
#define LAYER MOUNT_DIR "/layer" /* the common layer: sandboxes/runtimes/oci/images/common_layer.py */
#define ROOTFS MOUNT_DIR "/rootfs"
#define STATE MOUNT_DIR "/state"
#define USERS MOUNT_DIR "/users"
#define DEVICES MOUNT_DIR "/dev"

/* Enter a new mount namespace and attach the detached mounts `disk` and `layer` at DISK and LAYER. Unmount everything
   else except the system's mounts and those on the way to `needed`. If `hierarchies` has any, keep only those cgroup
   hierarchies (version 1). */
bool set_up_mounts(int disk, int layer, char **needed, char **hierarchies);

/* Make a user namespace that maps the ids from 0 to those from `first` outside, and bind it at USERS. Return its
   descriptor, or -1 and errno. Its owner is `first`, so that the kernel's per-user counters of namespaces are separate
   for each sandbox. */
int make_user_namespace(const char *first);

/* Mount an overlay at ROOTFS on `top` (LAYER if empty) and `count` `layers`, and bind its device files at DEVICES. A
   layer is a directory or an EROFS image. If `namespace` is the descriptor of a user namespace, map the owners of the
   layers. An overlay has its own inodes for the files of its layers: two sandboxes share a file's page cache, but
   neither its locks nor its watches. Of images they share nothing. */
bool mount_overlay(const char *top, char **layers, size_t count, const char *options, int namespace);

/* Remove the OCI runtime's state of sandbox `id`, which is never asked for. */
void remove_runtime_state(const char *id);

#endif
