"""What goes into the image: Debian packages, and what of their files and dependencies stays out."""

from __future__ import annotations

import re

from deploy.image.archive import Entry, Tree

PACKAGES = (
    "base-files",  # os-release: scanners for known faults read which Debian it is
    "python3-minimal",  # /usr/bin/python3
    "libpython3-stdlib",  # of the same version
    "e2fsprogs",  # ext4
    "xfsprogs",
    "btrfs-progs",
    "lvm2",
    "thin-provisioning-tools",  # LVM checks a thin pool with them before it uses it
    "ndctl",  # regions of persistent memory
    "util-linux",  # blkid, wipefs
    "mount",
    "dash",  # xfs_admin is a shell script
)

DROPPED = re.compile(
    r"perl.*|lib.*-perl|libperl.*|usrmerge|debconf|dpkg|tar|init-system-helpers|sysvinit-utils|lsb-base"  # installing
    r"|libdb5\.3|libgdbm.*"  # for Perl
    r"|mawk"  # for scripts of base-files
    r"|libicu.*"  # for xfs_scrub, which is left out
    r"|libnsl2|libtirpc.*|libk5crypto3|libkrb5.*|libgssapi-krb5-2|libkeyutils1-"  # for NIS, of Python's library
    r"|gcc-\d+-base|readline-common|libaudit-common|util-linux-extra|logsave|media-types"
)
"""Packages that are dependencies of the above and that nothing of ours uses."""

_LEFT_OUT = re.compile(
    r"usr/share/(?!keyrings/)|usr/lib/(systemd|udev|init|tmpfiles\.d|modules-load\.d|modprobe\.d)/|lib/udev/|etc/(init\.d|"
    r"issue|update-motd\.d|profile|default|cron\.[a-z]+|pam\.d|rc.\.d|perl|xattr\.conf|ndctl/keys|depmod\.d)|var/"
    r"|usr/lib/[^/]+/(gconv|audit|e2fsprogs|perl[^/]*)/|usr/lib/bfd-plugins|usr/include/"
    r"|usr/lib/[^/]+/libc_malloc_debug|usr/lib/valgrind"
    r"|usr/lib/python3\.\d+/(test|idlelib|lib2to3|tkinter|turtledemo|ensurepip|pydoc_data|distutils|config-[^/]*"
    r"|unittest/test|sqlite3/test|ctypes/test|__phello__|turtle\.py)(/|$)"
    r"|usr/lib/python3\.\d+/lib-dynload/(nis|_g?dbm|_test[a-z]*|_ctypes_test|xxlimited[_0-9]*)\."
    r"|usr/s?bin/(xfs_scrub(_all)?|xfs_mdrestore|btrfs-convert|btrfs-map-logical|e2scrub(_all)?|e4crypt|e4defrag|py3.*"
    r"|pydoc3.*|pygettext3.*|2to3.*|python3-config|iconv|locale|localedef|ldconfig\.real|cxl|daxctl|badblocks|dphys.*)$"
)

_EMPTY = {"dev": 0o755, "etc": 0o755, "proc": 0o555, "run": 0o755, "sys": 0o555, "tmp": 0o1777, "root": 0o700}
USER = 65532
"""The user of those that need no power: the controller."""


def is_left_out(path: str) -> bool:
    """Documentation, translations, what installs and what nothing of ours calls. path: after merged()."""
    return _LEFT_OUT.match(path) is not None


def merged(path: str) -> str:
    """Where a path lies in a system whose /bin, /sbin and /lib are links to /usr's."""
    first, _, _ = path.partition("/")
    return f"usr/{path}" if first in ("bin", "sbin", "lib", "lib64", "lib32", "libx32") else path


def base() -> Tree:
    """What no package brings: empty folders, links of the merged /usr, users, LVM's folders."""
    tree = {path: Entry(mode) for path, mode in _EMPTY.items()}
    tree |= {path: Entry(0o777, link=f"usr/{path}") for path in ("bin", "sbin", "lib", "lib64")}
    users = f"root:x:0:0:root:/root:/usr/sbin/nologin\ntonnage:x:{USER}:{USER}:tonnage:/:/usr/sbin/nologin\n"
    tree["etc/passwd"] = Entry(0o644, users.encode())
    tree["etc/group"] = Entry(0o644, f"root:x:0:\ndisk:x:6:\ntonnage:x:{USER}:\n".encode())
    tree["etc/nsswitch.conf"] = Entry(0o644, b"passwd: files\ngroup: files\nhosts: files dns\n")
    return tree
