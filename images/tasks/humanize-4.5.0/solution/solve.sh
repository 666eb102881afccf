#!/bin/bash
# The known solution where plain Harbor runs this task: the package's own files as the newer release has them.
# The farm works out the same change by itself.
set -euo pipefail
work=$(mktemp -d)
echo 'humanize==4.5.0 --hash=sha256:d6ed00ed4dc59a66df71012e3d69cf655d7d21b02112d435871998969e8aedc8' > "$work/requirements.txt"
python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work/sdist" --requirement "$work/requirements.txt"
python3 -c 'import shutil, sys; shutil.unpack_archive(sys.argv[1], sys.argv[2])' "$work"/sdist/* "$work/tree"
cd "$work"/tree/*
cp --parents -t /workspace \
    'src/humanize/filesize.py' \
    'src/humanize/i18n.py' \
    'src/humanize/locale/de_DE/LC_MESSAGES/humanize.mo' \
    'src/humanize/locale/de_DE/LC_MESSAGES/humanize.po' \
    'src/humanize/locale/eu/LC_MESSAGES/humanize.mo' \
    'src/humanize/locale/eu/LC_MESSAGES/humanize.po' \
    'src/humanize/number.py' \
    'src/humanize/time.py'
