/* What the starter sees of the machine's mounts, and what it mounts for each start. */
#ifndef MOUNTS_H
#define MOUNTS_H

#include <stdbool.h>
#include <stddef.h>

#define PLACE "/mnt" /* hidden by a tmpfs, where only we see it */
#define DISK PLACE "/disk"
#define TOOLBOX PLACE "/toolbox"
#define HOSTS PLACE "/hosts"
#define ROOTFS PLACE "/rootfs"
#define STATE PLACE "/state"
#define USERS PLACE "/users"
#define SYSTEM PLACE "/sys"
#define EMPTY PLACE "/empty" /* stands before directories that are hidden */

/* In a mount namespace of its own, with the detached mounts DISK, TOOLBOX and HOSTS at their places. Of the machine's
   mounts those stay that lead to `needed`, of its control groups of version 1 `hierarchies`, where any is named. At
   SYSTEM is what every sandbox has as its /sys: of a network namespace with nothing in it. */
bool settle(int disk, int toolbox, int hosts, char **needed, char **hierarchies);

/* Where the ids from 0 are those from `first` outside: bound at USERS, and its descriptor; below 0, and errno, where there
   is none. It belongs to `first`: what the kernel counts by who made a namespace is then no other sandbox's either. */
int make_user_namespace(const char *first);

/* At ROOTFS, of so many layers, their owners mapped where `namespace` is the descriptor of one. */
bool mount_overlay(char **layers, size_t count, const char *options, int namespace);

/* What the OCI runtime noted of sandbox `id`, which it is never asked for. */
void forget(const char *id);

#endif
