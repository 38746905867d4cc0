#!/bin/busybox sh
# First process of a guest. Results go to the second serial port, everything else to the first (the console).
# A line that begins with @@ is for the host.
export PATH=/bin:/sbin HOME=/root TMPDIR=/tmp
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o size=60% tmpfs /tmp
# tracefs stays unmounted: mounting it is the agent's business, and is tested so.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done
ifconfig lo 127.0.0.1 up
hostname guest

say() {
    echo "@@$1" >/dev/ttyS1
}

for module in $(cat /modules/order); do
    # Some kernels have in them what others have as a module, without saying so in their list.
    [ -d "/sys/module/$module" ] || grep -qw "$module" /proc/filesystems || insmod "/modules/$module.ko" ||
        say "note module $module is not to be had"
done
say "kernel $(uname -r)"

tries=50
while [ ! -b /dev/vda ] && [ $tries -gt 0 ]; do
    sleep 0.1
    tries=$((tries - 1))
done
if mount -t ext4 /dev/vda /mnt/disk; then
    . /settings
    cd /tmp
    say start
    # shellcheck disable=SC2086
    /kernel-tests --color never $CASES >/dev/ttyS1
    say "exit $?"
else
    say "broken the scratch disk can't be mounted"
fi
umount /mnt/disk
sync
poweroff -f
