#!/bin/bash
# The known solution where plain Harbor runs this task: the package's own files as the newer release has them.
# The farm works out the same change by itself.
set -euo pipefail
work=$(mktemp -d)
echo 'jinja2==3.1.3 --hash=sha256:ac8bd6544d4bb2c9792bf3a159e80bba8fda7f07e81bc3aed565432d5925ba90' > "$work/requirements.txt"
python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work/sdist" --requirement "$work/requirements.txt"
python3 -c 'import shutil, sys; shutil.unpack_archive(sys.argv[1], sys.argv[2])' "$work"/sdist/* "$work/tree"
cd "$work"/tree/*
cp --parents -t /workspace \
    'src/jinja2/__init__.py' \
    'src/jinja2/async_utils.py' \
    'src/jinja2/compiler.py' \
    'src/jinja2/environment.py' \
    'src/jinja2/ext.py' \
    'src/jinja2/filters.py' \
    'src/jinja2/loaders.py' \
    'src/jinja2/nativetypes.py' \
    'src/jinja2/parser.py' \
    'src/jinja2/runtime.py' \
    'src/jinja2/utils.py'
