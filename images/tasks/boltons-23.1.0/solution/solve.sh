#!/bin/bash
# The known solution where plain Harbor runs this task: the package's own files as the newer release has them.
# The farm works out the same change by itself.
set -euo pipefail
work=$(mktemp -d)
echo 'boltons==23.1.0 --hash=sha256:ab4023d57a69609f7742dcc21c12bb57f2970d278d315f28eb2d3110a64114a8' > "$work/requirements.txt"
python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work/sdist" --requirement "$work/requirements.txt"
python3 -c 'import shutil, sys; shutil.unpack_archive(sys.argv[1], sys.argv[2])' "$work"/sdist/* "$work/tree"
cd "$work"/tree/*
cp --parents -t /workspace \
    'boltons/cacheutils.py' \
    'boltons/dictutils.py' \
    'boltons/funcutils.py' \
    'boltons/iterutils.py' \
    'boltons/tbutils.py'
