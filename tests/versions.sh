#!/usr/bin/env bash
# Unit tests on each supported Python with the newest packages, and on the oldest with the lowest that pyproject.toml
# allows. Not a part of tests/run.sh, because the unit tests run four times.
#   tests/versions.sh                 all of it
#   tests/versions.sh 3.13 lowest     only these
# A Python is taken from PATH or pyenv; uv downloads one that is missing, if it can.
set -euo pipefail

# shellcheck source=deploy/lib.sh
source "$(dirname "$0")/../deploy/lib.sh"
cd "$ROOT"
for name in "${!FARM_@}"; do unset "$name"; done

PYTHONS=(3.11 3.12 3.13)
make_venv dev
uv="$VENV/bin/uv"
scratch="$(mktemp -d /tmp/farm-versions.XXXXXX)"
trap 'rm -rf "$scratch"' EXIT

# find_python VERSION — the path of an interpreter that runs, otherwise the version, which uv then looks for.
find_python() {
  local candidate
  for candidate in "$HOME"/.pyenv/versions/"$1".*/bin/python "$(command -v "python$1")"; do
    if "$candidate" --version >/dev/null 2>&1; then echo "$candidate"; return; fi
  done
  echo "$1"
}

# check NAME PYTHON RESOLUTION — a fresh environment, then the unit tests in it.
check() {
  quietly "$1: environment" "$uv" venv --python "$(find_python "$2")" "$scratch/$1"
  quietly "$1: packages" "$uv" pip install --python "$scratch/$1/bin/python" --resolution "$3" -e "$ROOT[dev]"
  quietly "$1: unit tests" "$scratch/$1/bin/python" -m pytest -n 2 -q -p no:cacheprovider \
    -m "not docker and not ray" tests/unit
  tail -n 1 "$LOGS/${1//./-}--unit-tests.log"
}

[ $# -gt 0 ] || set -- lowest "${PYTHONS[@]}"
for wanted in "$@"; do
  case " ${PYTHONS[*]} lowest " in
    *" $wanted "*) ;;
    *) fail "no such check: $wanted; choose from: lowest ${PYTHONS[*]}" ;;
  esac
done
for wanted in "$@"; do
  if [ "$wanted" = lowest ]; then check lowest "${PYTHONS[0]}" lowest-direct; else check "$wanted" "$wanted" highest; fi
done
