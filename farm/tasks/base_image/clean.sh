#!/bin/sh
# Takes out of a Debian root what no task needs, and what would tell of the machine that built it.
# Usage: clean.sh ROOT
set -eu
root=${1:?usage: clean.sh ROOT}
root=${root%/}

rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/* "$root"/var/log/* "$root"/tmp/* "$root"/var/tmp/* \
    "$root"/usr/share/info/* "$root"/usr/share/man/* "$root"/usr/share/lintian "$root"/usr/share/bug "$root"/root/.cache
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type l -delete
find "$root/usr/share/doc" -mindepth 1 -type d -empty -delete
find "$root/usr/share/locale" -mindepth 1 -maxdepth 1 ! -name 'locale.alias' -exec rm -rf {} +
rm -f "$root"/var/lib/dpkg/*-old
# Docker mounts its own over these two while it builds or runs.
[ -z "$root" ] || rm -f "$root/etc/resolv.conf" "$root/etc/hostname"
mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial"
: > "$root/etc/machine-id"
