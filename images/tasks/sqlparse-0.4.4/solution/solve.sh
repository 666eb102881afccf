#!/bin/bash
# The known solution where plain Harbor runs this task: the package's own files as the newer release has them.
# The farm works out the same change by itself.
set -euo pipefail
work=$(mktemp -d)
echo 'sqlparse==0.4.4 --hash=sha256:d446183e84b8349fa3061f0fe7f06ca94ba65b426946ffebe6e3e8295332420c' > "$work/requirements.txt"
python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work/sdist" --requirement "$work/requirements.txt"
python3 -c 'import shutil, sys; shutil.unpack_archive(sys.argv[1], sys.argv[2])' "$work"/sdist/* "$work/tree"
cd "$work"/tree/*
cp --parents -t /workspace \
    'sqlparse/__init__.py' \
    'sqlparse/keywords.py' \
    'sqlparse/lexer.py' \
    'sqlparse/sql.py'
