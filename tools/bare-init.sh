#!/usr/bin/env bash
# The first process of the machine that tools/bare.sh makes below $1: lays its mounts, makes its root the only one, sees
# that it is bare, and runs the commands. The mounts are of its own namespace, and end with it.
set -euo pipefail

say() { echo "bare: $*" >&2; }
give_up() { say "$@"; exit 1; }

laid() { # the mounts of a machine below the present directory
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t tmpfs -o mode=755,nosuid tmpfs dev
    mount -t tmpfs -o mode=755 tmpfs run
    mkdir dev/pts dev/shm run/lock
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
    mount -t tmpfs tmpfs dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    local number=0 name
    for name in stdin stdout stderr; do
        ln -s "/proc/self/fd/$number" "dev/$name"
        number=$((number + 1))
    done
    for name in null zero full random urandom tty; do
        : >"dev/$name"
        mount --bind "/dev/$name" "dev/$name"
    done
    control_groups
}

control_groups() {
    local controllers
    if only_version_2; then
        mount -t cgroup2 cgroup2 sys/fs/cgroup
        return
    fi
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        [ -n "$controllers" ] || continue
        mkdir "sys/fs/cgroup/${controllers#name=}"
        mount -t cgroup -o "${controllers/#name=/none,name=}" cgroup "sys/fs/cgroup/${controllers#name=}"
    done </proc/self/cgroup
}

only_version_2() { ! grep -qv '^0:' /proc/self/cgroup; }

shared_out() { # the controllers of version 2, which a group cannot share out that has processes of its own
    local controller
    mkdir /sys/fs/cgroup/first
    echo 0 >/sys/fs/cgroup/first/cgroup.procs
    for controller in $(</sys/fs/cgroup/cgroup.controllers); do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
    done
}

read_only() { # $1 of the machine outside, at the same place below the present directory
    mkdir -p ".$1"
    mount --bind "$1" ".$1"
    mount -o remount,bind,ro ".$1"
}

bare() { # a proof on something else would prove nothing
    local found=()
    for name in docker dockerd containerd pip pip3 g++ curl; do
        ! command -v "$name" >/dev/null || found+=("$name")
    done
    [ -z "$(find /var/lib/apt/lists -type f ! -name lock)" ] || found+=("apt lists")
    [ -z "$(git config user.email)" ] || found+=("a git identity")
    [ ! -e "$HOME/.cache/pip" ] || found+=("a cache of pip")
    [ ! -t 0 ] && [ ! -t 1 ] && [ ! -t 2 ] || found+=("a terminal")
    [ ${#found[@]} -eq 0 ] || give_up "the root is not bare, it has: ${found[*]}"
}

main() {
    local work=$1 cache home line name began status=0
    local -a commands environment directories
    mapfile -t commands <"$work/commands"
    mapfile -d '' -t environment <"$work/environment"
    mapfile -t directories <"$work/directories"
    cache=$(<"$work/cache")
    exec 8>"$work/made" 9<>"$work/connected"

    hostname bare
    mount --bind "$work/root" "$work/root"
    cd "$work/root"
    laid
    for name in "${directories[@]}"; do
        read_only "$name"
    done
    home=/root/a\ home
    mkdir --mode=0700 ".$home"
    if [ -n "$cache" ]; then
        mkdir -p ".$home/.cache/nvllm" "$work/upper" "$work/workdir"
        mount -t overlay -o "lowerdir=$cache,upperdir=$work/upper,workdir=$work/workdir" overlay ".$home/.cache/nvllm"
    fi
    mkdir outside
    pivot_root . outside
    umount --lazy outside
    rmdir outside

    echo made >&8
    exec 8>&-
    read -r -n 1 -t 60 -u 9 || give_up "slirp4netns has not connected the new machine for 60 s"
    exec 9>&-
    ! only_version_2 || shared_out

    for name in $(compgen -e); do
        unset "$name"
    done
    for line in "${environment[@]}"; do
        export "${line?}"
    done
    export HOME=$home PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    umask 077
    cd "$HOME"
    bare
    git clone --quiet /srv/nvllm.git nvllm
    cd nvllm
    for line in "${commands[@]}"; do
        read -r _ name _ <<<"$line"
        say "\$ $line"
        began=$SECONDS
        bash -c "$line" || status=$?
        say "make $name: exit $status after $((SECONDS - began)) s"
        [ "$status" -eq 0 ] || exit "$status"
    done
}

main "$@"
