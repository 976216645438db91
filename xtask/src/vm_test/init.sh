#!/bin/busybox sh
# First process of the virtual machine: lays out the file systems and goes over to this machine's own root directory.
b=/bin/busybox
fail() { $b echo "vm: $1"; $b poweroff -f; }
share() { $b mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000$3" "$1" "$2" || fail "cannot mount $1"; }

$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
for module in $($b cat /modules/order); do $b insmod "/modules/$module"; done

# The machine's files, with changes that are kept in memory.
share root /lower ,ro,cache=loose
$b mount -t tmpfs -o size=70% changes /changes
$b mkdir -p /changes/upper /changes/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/changes/upper,workdir=/changes/work,xino=off root /new ||
    fail "cannot mount the root directory"
$b mount -t proc proc /new/proc
$b mount -t sysfs sysfs /new/sys
$b mount -t devtmpfs devtmpfs /new/dev
$b mkdir -p /new/dev/pts /new/dev/shm
$b mount -t devpts devpts /new/dev/pts
$b mount -t tmpfs shm /new/dev/shm
$b mount -t tmpfs run /new/run
$b mkdir -p /new/run/netns /new/run/lock /new/run/vm /new/usr/lib/modules
share out /new/run/vm ""
share modules /new/usr/lib/modules ,ro,cache=loose
$b mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
$b mount -t bpf bpf /new/sys/fs/bpf
# Not chroot: for a module that it wants, the kernel starts modprobe in the first root directory.
exec $b switch_root /new /bin/sh /run/vm/run </dev/null
