#!/bin/bash
# namespaces.sh FOLDER GROUP: inside new mount and cgroup namespaces, makes the view of the machine that a node has, and
# holds it until it is killed.
set -e
node=$1 group=$2
mount --make-rprivate /
mount --make-rshared /
mount -t overlay overlay -o lowerdir=/var/lib,upperdir=$node/upper,workdir=$node/work /var/lib
mkdir -p /var/lib/kubelet
mount --rbind $node/kubelet /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --bind $node/log /var/log
mount -t tmpfs -o mode=755 tmpfs /run
# What kubelet and network plugins want to find there, or they would change it for the whole machine.
for key in vm/overcommit_memory kernel/panic kernel/panic_on_oops net/ipv4/ip_forward; do
  mount --bind "$node/sysctl/$(basename $key)" /proc/sys/$key
done
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  umount /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; mkdir -p /sys/fs/cgroup/$group
else
  for c in cpu cpuacct cpuset memory devices freezer blkio pids; do
    umount /sys/fs/cgroup/$c; mount -t cgroup -o $c cgroup /sys/fs/cgroup/$c; mkdir -p /sys/fs/cgroup/$c/$group
  done
  if mountpoint -q /sys/fs/cgroup/systemd; then
    umount /sys/fs/cgroup/systemd; mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
    mkdir -p /sys/fs/cgroup/systemd/$group
  fi
  if mountpoint -q /sys/fs/cgroup/unified; then
    umount /sys/fs/cgroup/unified; mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
  fi
  for file in cpus mems; do cat /sys/fs/cgroup/cpuset/cpuset.$file > /sys/fs/cgroup/cpuset/$group/cpuset.$file; done
fi
touch $node/ready
exec sleep infinity
