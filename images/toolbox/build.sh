#!/bin/sh
# Build the toolbox that is mounted at /.farm in every sandbox, and print its path: build.sh [STATE_DIR]
# Needs the packages make, musl-tools, gcc, libc6-dev, bash-static, busybox-static and ripgrep.
set -eu
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" -c 'import sys; from sandboxes.toolserver.toolbox import main; main(sys.argv[1])' "${1:-.toolbox}"
