#!/bin/sh
# Sets up the new mount, network and UTS namespaces that it runs in as a node, and keeps them.
# Arguments: the node's name and its state folder.
#
# The standard paths /run, /var/lib and /var/log become the node's own. The mounts exist only in this
# namespace and end with it.
set -eu
name=$1 state=$2
mount --make-rshared /
hostname "$name"
# Inherited mounts of other network namespaces would keep those alive.
umount --recursive --lazy /run/netns 2>/dev/null || true
mkdir -p "$state/var-lib" "$state/var-log"
mount --bind "$state/var-lib" /var/lib
mount --bind "$state/var-log" /var/log
mount -t tmpfs -o mode=0755 tmpfs /run
[ /var/run -ef /run ] || mount --bind /run /var/run
mkdir -p /run/netns /run/lock /run/lockstep /var/lib/kubelet /var/lib/containerd /var/log/pods /var/log/containers
: > "$state/ready"
exec sleep infinity
