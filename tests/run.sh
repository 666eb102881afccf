#!/usr/bin/env bash
# Everything that must hold, from a bare machine: formatting, lint, types, layers, all the tests, nothing left behind.
#   tests/run.sh                 all of it
#   tests/run.sh fast            what needs no Docker and no Ray: formatting, lint, types, layers, unit tests, the store
#   tests/run.sh ARGS…           only pytest, with these arguments (the services are still brought up)
set -euo pipefail

# shellcheck source=deploy/lib.sh
source "$(dirname "$0")/../deploy/lib.sh"
cd "$ROOT"
# A test reads no configuration but its own.
for name in "${!FARM_@}"; do unset "$name"; done
# The tests start thousands of Python processes. If none may write bytecode, each compiles every module that it imports.
unset PYTHONDONTWRITEBYTECODE

check_statically() {
  say "formatting, lint, types, layers"
  "$bin/ruff" format --check .
  "$bin/ruff" check .
  quietly "mypy --strict" "$bin/mypy"
  quietly "import-linter" "$bin/lint-imports"
}

if [ "${1:-}" = fast ]; then
  install_packages
  make_venv dev
  bin="$VENV/bin"
  check_statically
  exec "$bin/pytest" -n 2 -q --instafail -m "not docker and not ray and not slow" tests/unit tests/integration/store
fi

# gVisor's, one of the OCI runtimes that Docker may be told of; Go, for attacks on its test runner.
PROGRAMS+=(runsc:runsc go:golang-go)
# The metrics, the alerts and the queries of the dashboards are tested with Prometheus itself.
PROGRAMS+=(prometheus:prometheus promtool:prometheus)
# A browser, for tests of the page.
PROGRAMS+=(chromium:chromium)
# pip needs no package of Debian's but the one with venv, so it works beside apt. If it fails, make_venv below reports it.
making=""
if "${PYTHON:-python3}" -c 'import ensurepip, venv' >/dev/null 2>&1; then
  (make_venv dev) 2> >(cat >&2) &
  making=$!
fi
install_packages
start_docker
scratch="$(mktemp -d /tmp/farm-tests.XXXXXX)"
images=""
finish() {
  local status=$?
  if [ -n "$images" ]; then
    kill -- "-$images" 2>/dev/null || true
    wait "$images" || true
  fi
  rm -rf "$scratch"
  stop_docker
  exit "$status"
}
trap finish EXIT
[ -z "$making" ] || wait "$making" || true
make_venv dev
bin="$VENV/bin"

# Every process below carries the mark in its environment, so that one left behind is found whatever it is called.
export FARMTEST_MARK="${scratch##*.}"
# Sources and the toolbox are fetched and built once, for all tests.
export FARMTEST_STATE_DIR="$scratch/state"
export TMPDIR="$scratch/tmp"
mkdir -p "$TMPDIR"
"$bin/python" -m tests.support.leaks snapshot "$scratch/before.json"

# Run in a session of its own, so that all its processes are ended with it.
build_images() {
  mkdir -p "$LOGS"
  FARM_STATE_DIR="$FARMTEST_STATE_DIR" setsid bash -euc '"$1" images base; "$1" images build images/tasks' - \
    "$bin/farm" >"$LOGS/images.log" 2>&1 &
  images=$!
}

await_images() {
  local built=0
  say "images"
  wait "$images" || built=$?
  images=""
  cat "$LOGS/images.log"
  [ "$built" -eq 0 ] || fail "the images were not built (exit $built); see $LOGS/images.log"
}

status=0
build_images
if [ $# -gt 0 ]; then
  await_images
  "$bin/pytest" "$@" || status=$?
else
  # What needs no image runs while the images are built.
  check_statically
  say "unit tests"
  "$bin/pytest" -n 2 -q --instafail tests/unit || status=$?
  await_images
  say "all other tests"
  "$bin/pytest" -n 3 --dist loadgroup --ignore tests/unit --durations 25 --instafail --session-timeout 4900 || status=$?
fi

"$bin/python" -m tests.support.leaks compare "$scratch/before.json" || status=1
exit "$status"
