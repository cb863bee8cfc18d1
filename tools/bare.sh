#!/usr/bin/env bash
# Runs the README's commands on a machine that has never seen the project: a minimal Debian 12 made for it, with git,
# make, python3 and ca-certificates and nothing else, in namespaces of its own. There is no Docker, no apt list, no
# cache of pip, no git identity, no terminal and no locale; the umask is 077, and HOME has a space.
#   tools/bare.sh [--cache DIRECTORY] [demo | test]...    the README's `make demo`, `make test`; default both, in its order
#   tools/bare.sh --check                                 only says whether this machine can make that one
#   tools/bare.sh --list                                  only prints the commands
# --cache lays a cache of nvllm below the new one, which leaves it as it is: a quick look, and not the proof.
#
# What this machine's apt and pip are configured with goes along: Debian's mirrors, indexes, certificates, proxies.
# Everything that is made lies below one directory in TMPDIR (default /var/tmp); whatever way it ends, the processes
# are ended with their namespaces, and with these the mounts, and the directory is removed. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

SUITE=bookworm
PACKAGES=git,make,python3,ca-certificates
SPACE=20 # GiB
CARRIED='^(PIP_.*|PYTEST_ADDOPTS|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(http|https|ftp|all|no)_proxy|(HTTP|HTTPS|FTP|ALL|NO)_PROXY)$'
STAYS='^PIP_(CACHE_DIR|CONFIG_FILE)$' # their contents go along, or must not
WAIT=60 # seconds
NAMESPACES=(--mount --propagation private --net --pid --uts --ipc --cgroup)

say() { echo "bare: $*" >&2; }
give_up() { say "$@"; exit 1; }

began=$SECONDS
work=
machine=
network=
cgroups=()
finish() {
    status=$?
    trap - EXIT INT TERM HUP
    [ -z "$network" ] || kill -TERM "$network" 2>/dev/null || true
    if [ -n "$machine" ]; then
        kill -KILL "$machine" 2>/dev/null || true # and with it the first process inside, and with that every other
        wait "$machine" 2>/dev/null || true
    fi
    for cgroup in "${cgroups[@]}"; do
        emptied "$cgroup" || say "could not remove $cgroup"
    done
    [ -z "$work" ] || rm -rf --one-file-system "$work"
    say "exit $status after $((SECONDS - began)) s"
    exit "$status"
}
emptied() { # removes the control group $1; its processes have been killed, and may take a moment to end
    local until=$((SECONDS + WAIT))
    while [ -d "$1" ]; do
        find "$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
        [ $SECONDS -lt $until ] || return 1
        [ ! -d "$1" ] || sleep 0.2
    done
}

cache=
only_check=
only_list=
wanted=()
while [ $# -gt 0 ]; do
    case $1 in
        --cache) cache=$(realpath -e "${2:?--cache needs a directory}"); shift ;;
        --check) only_check=yes ;;
        --list) only_list=yes ;;
        -*) echo "usage: tools/bare.sh [--check | --list] [--cache DIRECTORY] [demo | test]..." >&2; exit 2 ;;
        *) wanted+=("$1") ;;
    esac
    shift
done

# The commands as the README of the commit has them, comments and all.
mapfile -t commands < <(git show HEAD:README.md | awk '/^```/ { inside = !inside; next } inside && /^make /')
[ ${#commands[@]} -gt 0 ] || give_up "the README has no command"
for name in "${wanted[@]}"; do
    [[ " ${commands[*]} " == *"make $name "* ]] || give_up "the README has no command \`make $name\`; it has: ${commands[*]}"
done

if [ -n "$only_list" ]; then
    printf '%s\n' "${commands[@]}"
    exit
fi

[ "$(id -u)" = 0 ] || give_up "needs root: it makes a root file system and namespaces, and runs an engine in them"
command -v apt-get >/dev/null || give_up "there is no apt, whose sources say where Debian is"
[ -c /dev/net/tun ] || give_up "there is no /dev/net/tun, through which the new machine would reach a network"
unshare "${NAMESPACES[@]}" --fork true ||
    give_up "namespaces cannot be made here (unshare said so above)"
# Debian's sources, as apt reads them; this asks nobody, and needs no list.
mapfile -t sources < <(apt-get update --print-uris |
    sed -nE "s#^'(.*)/dists/($SUITE(-updates|-security)?)/InRelease'.*#deb \1 \2 main#p")
[ ${#sources[@]} -gt 0 ] || give_up "no source of this machine's apt has Debian's $SUITE"
for tool in mmdebstrap slirp4netns; do
    command -v "$tool" >/dev/null && continue
    say "installing $tool"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install --yes --no-install-recommends "$tool" >/dev/null 2>&1 ||
        { apt-get update >/dev/null && apt-get install --yes --no-install-recommends "$tool" >/dev/null; } ||
        give_up "could not install $tool (apt-get said so above)"
done
[ -z "$only_check" ] || exit 0

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
work=$(mktemp -d "${TMPDIR:-/var/tmp}/nvllm-bare.XXXXXX")
root=$work/root
kind=$(stat --file-system --format %T "$work")
case $kind in
    overlayfs | tmpfs | ramfs | nfs) give_up "$work is on $kind, on which Docker cannot lay its images: set TMPDIR" ;;
esac
free=$(($(df --output=avail -B 1 "$work" | tail -n 1) / 1024 ** 3))
[ "$free" -ge $SPACE ] || give_up "$work has $free GiB free, and $SPACE are needed: set TMPDIR"

options=()
while read -r line; do
    options+=("--aptopt=${line%;}")
done < <(apt-config dump | grep -E '^Acquire::(http|https|Check-)' | grep -v '""')

say "making a root of $(printf '%s; ' "${sources[@]}")packages $PACKAGES"
mkdir "$root"
unshare --mount --propagation private mmdebstrap --quiet --mode=root --format=directory --variant=minbase \
    --include="$PACKAGES" "${options[@]}" "$SUITE" "$root" "${sources[@]}" >&2
say "made in $((SECONDS - began)) s"

# What pip and TLS are configured with: values of variables as they are, pip's files as one, certificates and files of
# constraints at their places, and directories of wheels for a read-only mount.
mapfile -t names < <(compgen -e | grep -E "$CARRIED" | grep -Ev "$STAYS")
for name in "${names[@]}"; do
    printf '%s\0' "$name=${!name}"
done >"$work/environment"
python3 tools/pip_carried.py "$root/etc/pip.conf" "$work/directories" "$work/files"
while read -r file; do
    install -D --mode=0644 "$file" "$root$file"
done <"$work/files"
echo nameserver 10.0.2.3 >"$root/etc/resolv.conf" # slirp4netns asks whom this machine asks
printf '127.0.0.1 localhost\n127.0.1.1 bare\n' >"$root/etc/hosts"
echo bare >"$root/etc/hostname"
git clone --quiet --bare --no-local . "$root/srv/nvllm.git"
printf "%s\n" "$cache" >"$work/cache"
for line in "${commands[@]}"; do
    name=${line#make }
    [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" ${name%% *} "* ]] || echo "$line"
done >"$work/commands"

# A control group of its own in every hierarchy, as the root of its namespace: what its engine makes goes with it.
while read -r _ place type _; do
    [[ $type == cgroup || $type == cgroup2 ]] || continue
    cgroup=$place/nvllm-bare-$$
    if [ "$type" = cgroup2 ] && [ -s "$place/cgroup.controllers" ]; then
        for controller in $(<"$place/cgroup.controllers"); do
            echo "+$controller" >"$place/cgroup.subtree_control" 2>/dev/null || true
        done
    fi
    mkdir "$cgroup"
    cgroups+=("$cgroup")
    for file in cpuset.cpus cpuset.mems; do # version 1 leaves them empty, and takes no process then
        [ "$type" = cgroup2 ] || [ ! -e "$cgroup/$file" ] || cat "$place/$file" >"$cgroup/$file"
    done
done </proc/self/mounts

# The first process inside says "made" when its mounts are there, and waits for the network. What it says goes through
# a pipe, because a terminal would be one.
mkfifo "$work/made" "$work/connected"
exec 4<>"$work/made" 5> >(exec cat)
(
    for cgroup in "${cgroups[@]}"; do
        echo "$BASHPID" >"$cgroup/cgroup.procs"
    done
    exec setsid setpriv --pdeathsig KILL unshare "${NAMESPACES[@]}" --fork --kill-child \
        bash tools/bare-init.sh "$work" </dev/null >&5 2>&1 4>&- 5>&-
) &
machine=$!
until read -r -t 1 _ <&4; do
    kill -0 "$machine" 2>/dev/null || { wait "$machine"; exit; }
done
for cgroup in "${cgroups[@]}"; do # only the machine's own are in it from now on
    echo "$machine" >"${cgroup%/*}/cgroup.procs"
done
setpriv --pdeathsig KILL slirp4netns --configure --mtu=65520 --disable-host-loopback --ready-fd=3 \
    --netns-type=path "/proc/$machine/ns/net" tap0 3>"$work/connected" 4>&- 5>&- >"$work/network.log" 2>&1 &
network=$!
wait "$machine" && status=0 || status=$?
machine=
exit "$status"
