#!/bin/sh
# Turns the fresh mount, network and UTS namespaces that this runs in into a node, and holds them.
# Arguments: the node's name, its state folder.
#
# The standard paths of a node (/run, /var/lib, /var/log) become the node's own. The mounts are in this
# namespace only and go with it.
set -eu
name=$1 state=$2
mount --make-rshared /
hostname "$name"
# Mounts of other network namespaces that came along would keep those alive.
umount --recursive --lazy /run/netns 2>/dev/null || true
mkdir -p "$state/var-lib" "$state/var-log"
mount --bind "$state/var-lib" /var/lib
mount --bind "$state/var-log" /var/log
mount -t tmpfs -o mode=0755 tmpfs /run
[ /var/run -ef /run ] || mount --bind /run /var/run
mkdir -p /run/netns /run/lock /run/lockstep /var/lib/kubelet /var/lib/containerd /var/log/pods /var/log/containers
: > "$state/ready"
exec sleep infinity
