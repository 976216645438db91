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
$b mount -t overlay -o lowerdir=/lower,upperdir=/changes/upper,workdir=/changes/work,xino=off root /root ||
    fail "cannot mount the root directory"
$b mount -t proc proc /root/proc
$b mount -t sysfs sysfs /root/sys
$b mount -t devtmpfs devtmpfs /root/dev
$b mkdir -p /root/dev/pts /root/dev/shm
$b mount -t devpts devpts /root/dev/pts
$b mount -t tmpfs shm /root/dev/shm
$b mount -t tmpfs run /root/run
$b mount -t tmpfs tmp /root/tmp
$b mkdir -p /root/run/netns /root/run/lock /root/run/vm /root/usr/lib/modules
share out /root/run/vm ""
share modules /root/usr/lib/modules ,ro,cache=loose
$b mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
$b mount -t bpf bpf /root/sys/fs/bpf
# Not chroot: for a module that it wants, the kernel starts modprobe in the first root directory.
exec $b switch_root /root /bin/sh /run/vm/run </dev/null
