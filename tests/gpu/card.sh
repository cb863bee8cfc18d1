#!/bin/sh
# Run a command with one GPU of this machine, the only one that it and what it starts can open: card.sh NUMBER COMMAND...
# It has mounts of its own with a /dev that lacks the other GPUs. Needs root.
exec unshare --mount sh -ec '
number=$1
shift
new=$(mktemp -d)
mount -t tmpfs -o mode=0755 tmpfs "$new"
for one in /dev/*; do
    case $one in /dev/nvidia[0-9]*) [ "$one" = "/dev/nvidia$number" ] || continue ;; esac
    if [ -d "$one" ] && [ ! -L "$one" ]; then
        mkdir "$new/${one##*/}"
        mount --rbind "$one" "$new/${one##*/}"
    else
        cp -a "$one" "$new/"
    fi
done
if [ -f /proc/driver/nvidia/params ]; then # a process of root would make the missing files itself
    sed "s/^ModifyDeviceFiles: 1/ModifyDeviceFiles: 0/" /proc/driver/nvidia/params >"$new/.params"
    mount --bind "$new/.params" /proc/driver/nvidia/params
fi
mount --rbind "$new" /dev
exec "$@"
' sh "$@"
