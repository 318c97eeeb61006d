#!/bin/bash
# The first process of a node that is a machine of its own, with its own kernel. `machine.rs` boots it, and writes `machine.env` with the arrays and
# variables in capitals here. It sees this computer's files, read-only. Its disk holds /var/lib and /var/log.
export HOME=/root TMPDIR=/run PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2> /dev/null
exec > /dev/console 2>&1 < /dev/null
set -u
. "$MACHINE/machine.env"

mkdir -p /dev/pts /dev/shm /dev/mqueue
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t mqueue mqueue /dev/mqueue
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=0755 tmpfs /run
# A power failure loses the last two seconds. By default it empties programs that containerd has unpacked half a minute before.
for dirty in expire writeback; do echo 100 > /proc/sys/vm/dirty_${dirty}_centisecs; done
# The kernel ends when its first process does, and its output is the machine's log.
end() {
  echo "$1"
  exit 1
}
mount -t ext4 -o noatime,commit=1,nodelalloc /dev/ubda /var/lib || end "the disk cannot be mounted"
mkdir -p /var/lib/{log,kubelet,containerd} /run/{netns,lock,lockstep,bin,shared}
mount --bind /var/lib/log /var/log
[ /var/run -ef /run ] || mount --bind /run /var/run
mkdir -p /var/log/{pods,containers}
mount -t hostfs -o "$MACHINE/shared" shared /run/shared || end "the shared folder cannot be mounted"

# Its nf_tables cannot translate addresses, so kube-proxy has to use iptables as it was before.
for name in ip{,6}tables{,-save,-restore}; do ln -s "$(command -v xtables-legacy-multi)" "/run/bin/$name"; done
PATH=$BIN:/run/bin:$PATH
for module in overlay veth nf_defrag_ipv{6,4} nf_conntrack nf_nat nfnetlink nf_conntrack_netlink x_tables ip_tables iptable_{filter,nat,mangle} \
  xt_{nat,comment,addrtype,conntrack,mark,MASQUERADE,statistic,tcpudp,multiport,nfacct} nf_reject_ipv4 ipt_REJECT; do
  file=$(find "$MODULES" -name "$module.ko")
  # Some are part of the kernel.
  [ -z "$file" ] || busybox insmod "$file"
done

hostname "$NAME"
ip link set lo up
ip addr add "$ADDRESS" dev vec0
ip link set vec0 up
ip route add default via "$GATEWAY"
for route in "${ROUTES[@]}"; do ip route add $route; done
echo 1 > /proc/sys/net/ipv4/ip_forward
for controller in cpu io memory pids; do echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control; done
# The kubelet asks for the speed of the processor, which this kernel does not say.
{ sed '/^$/d' /proc/cpuinfo; printf 'cpu MHz\t\t: 1000.000\n\n'; } > /run/cpuinfo
mount --bind /run/cpuinfo /proc/cpuinfo

# Waits for a moment, without another process.
mkfifo /run/never
moment() { read -r -t 0.1 <> /run/never; }
"${CONTAINERD[@]}" >> /run/shared/containerd.log 2>&1 &
until [ -S /run/containerd/containerd.sock ]; do
  kill -0 $! || end "containerd has ended: $(tail -n 3 /run/shared/containerd.log)"
  moment
done
for image in "${IMAGES[@]}"; do ctr -n k8s.io images import "$image" > /dev/null; done
"${KUBELET[@]}" >> /run/shared/kubelet.log 2>&1 &
"${PROXY[@]}" >> /run/shared/kube-proxy.log 2>&1 &
: > /run/shared/ready

# Runs the scripts that appear in the shared folder.
shopt -s nullglob
run() {
  bash "$1" > "$1.out" 2>&1
  echo $? > "$1.part"
  mv "$1.part" "$1.rc"
}
while true; do
  for script in /run/shared/*.sh; do
    mv "$script" "${script%.sh}"
    run "${script%.sh}" &
  done
  moment
done
