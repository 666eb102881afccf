#!/bin/bash
# Builds farm-base:1, the image under every made task: Debian, Python with pip and venv, git.
#
# From the distribution's slim image where that is here or a registry answers, otherwise from the distribution's
# packages with debootstrap (root needed; under a minute). Does nothing when an image of this very recipe exists.
# Usage: build.sh [--from auto|image|packages]
set -euo pipefail

readonly name=farm-base:1
readonly suite=bookworm
readonly upstream=debian:bookworm-slim
readonly pull_timeout_s=120
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf 'base image: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

recipe() { (cd "$here" && sha256sum Dockerfile build.sh clean.sh packages.txt) | sha256sum | cut -c1-16; }

packages() { tr '\n' "$1" < "$here/packages.txt" | sed "s/$1\$//"; }

upstream_is_here() {
    docker image inspect "$upstream" > /dev/null 2>&1 && return
    say "pulling $upstream"
    timeout "$pull_timeout_s" docker pull --quiet "$upstream" > /dev/null 2>&1
}

# The mirror that this machine already uses for the suite; nothing when it is another system.
host_mirror() {
    command -v apt-get > /dev/null || return 0
    apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" 'Component: main' 'Created-By: Packages' \
        2> /dev/null | head -n 1
}

build_from_image() {
    say "decided: from $upstream"
    docker build --network host --build-arg "PACKAGES=$(packages ' ')" --label "farm.base.recipe=$1" \
        --tag "$name" "$here" >&2
}

build_from_packages() {
    say "decided: from the distribution's packages, with debootstrap"
    command -v debootstrap > /dev/null || fail "debootstrap is missing; apt-get install debootstrap"
    [ "$(id -u)" = 0 ] || fail "debootstrap needs root; run this as root, or pull $upstream first"
    local mirror
    mirror=$(host_mirror)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    say "installing packages into a fresh root"
    debootstrap --variant=minbase --include="$(packages ,)" "$suite" "$work/root" ${mirror:+"$mirror"} \
        > "$work/log" 2>&1 || { tail -n 15 "$work/log" >&2; fail "debootstrap failed; its last lines are above"; }
    sh "$here/clean.sh" "$work/root"
    say "importing"
    tar --sort=name --numeric-owner -C "$work/root" -c . | docker import \
        --change 'ENV LANG=C.UTF-8' \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'CMD ["/bin/bash"]' \
        --change "LABEL farm.base.recipe=$1" - "$name" > /dev/null
}

main() {
    local from=auto wanted
    if [ "${1:-}" = --from ]; then from=${2:-}; fi
    case $from in auto | image | packages) ;; *) fail "usage: build.sh [--from auto|image|packages]" ;; esac
    docker version > /dev/null 2>&1 || fail "the Docker daemon does not answer; start it first"
    wanted=$(recipe)
    if [ "$(docker image inspect --format '{{index .Config.Labels "farm.base.recipe"}}' "$name" 2> /dev/null)" = "$wanted" ]; then
        say "$name is up to date"
        return
    fi
    if [ "$from" = image ] || { [ "$from" = auto ] && upstream_is_here; }; then
        build_from_image "$wanted"
    else
        build_from_packages "$wanted"
    fi
    say "$name is built: $(docker image inspect --format '{{.Size}}' "$name" | awk '{printf "%d MB", $1 / 1e6}')"
}

main "$@"
