#!/bin/bash
# The verifier where plain Harbor runs this task (it downloads the newer release's tests).
# The farm reads the two id lists beside this file and judges from a report of its own.
set -uo pipefail
mkdir -p /logs/verifier
echo 0 > /logs/verifier/reward.txt
set -e
work=$(mktemp -d)
echo 'sqlparse==0.4.4 --hash=sha256:d446183e84b8349fa3061f0fe7f06ca94ba65b426946ffebe6e3e8295332420c' > "$work/requirements.txt"
python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work/sdist" --requirement "$work/requirements.txt"
python3 -c 'import shutil, sys; shutil.unpack_archive(sys.argv[1], sys.argv[2])' "$work"/sdist/* "$work/tree"
cd "$work"/tree/*
find . -type f \
    \( -path '*/tests/*' -o -path '*/test/*' -o -name 'test_*.py' -o -name '*_test.py' -o -name conftest.py \) \
    -exec cp --parents -t /workspace {} +
cd /workspace
cat /tests/fail_to_pass.txt /tests/pass_to_pass.txt | sort > "$work/expected"
cut -d: -f1 "$work/expected" | sort -u | xargs -d '\n' \
    python3 -m pytest -q -rp -o addopts= --continue-on-collection-errors > "$work/output" || true
tail -n 1 "$work/output"
sed -n 's/^PASSED //p' "$work/output" | sort > "$work/passed"
[ -z "$(comm -23 "$work/expected" "$work/passed")" ]
echo 1 > /logs/verifier/reward.txt
