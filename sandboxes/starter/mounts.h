/* What the starter sees of the machine's mounts, and what it mounts for each start. */
#ifndef MOUNTS_H
#define MOUNTS_H

#include <stdbool.h>
#include <stddef.h>

#define PLACE "/mnt" /* hidden by a tmpfs, where only we see it */
#define DISK PLACE "/disk"
#define LAYER PLACE "/layer" /* files that every sandbox has: sandboxes/runtimes/oci/images/common_layer.py */
#define ROOTFS PLACE "/rootfs"
#define STATE PLACE "/state"
#define USERS PLACE "/users"
#define DEVICES PLACE "/dev"

/* In a mount namespace of its own, with the detached mounts DISK and LAYER at their places. Of the machine's mounts those
   stay that lead to `needed`, of its control groups of version 1 `hierarchies`, where any is named. */
bool settle(int disk, int layer, char **needed, char **hierarchies);

/* Where the ids from 0 are those from `first` outside: bound at USERS, and its descriptor; below 0, and errno, where there
   is none. It belongs to `first`: what the kernel counts by who made a namespace is then no other sandbox's either. */
int make_user_namespace(const char *first);

/* Mount an overlay at ROOTFS of `above` (LAYER if it is empty) and below it so many `layers`, and bind its device files at
   DEVICES. A layer is a directory or an EROFS image. Map the owners of the layers if `namespace` is the descriptor of a
   user namespace. An overlay has inodes of its own for what lies in its layers: so two sandboxes share a file's pages,
   and neither its locks nor its watches. Of images they share nothing. */
bool mount_overlay(const char *above, char **layers, size_t count, const char *options, int namespace);

/* What the OCI runtime noted of sandbox `id`, which it is never asked for. */
void forget(const char *id);

#endif
