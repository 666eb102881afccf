#!/bin/bash
# The known solution where plain Harbor runs this task: the package's own files as the newer release has them.
# The farm works out the same change by itself.
set -euo pipefail
work=$(mktemp -d)
echo 'pathspec==0.11.1 --hash=sha256:2798de800fa92780e33acca925945e9a19a133b715067cf165b8866c15a31687' > "$work/requirements.txt"
python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work/sdist" --requirement "$work/requirements.txt"
python3 -c 'import shutil, sys; shutil.unpack_archive(sys.argv[1], sys.argv[2])' "$work"/sdist/* "$work/tree"
cd "$work"/tree/*
cp --parents -t /workspace \
    'pathspec/_meta.py' \
    'pathspec/gitignore.py' \
    'pathspec/pathspec.py' \
    'pathspec/util.py'
