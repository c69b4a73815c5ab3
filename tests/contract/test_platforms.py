"""Each system call that macOS lacks is listed with its alternative, which works."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rooms import ROOT

from recordmill.base.machine import count_cores
from recordmill.storage.stores.local import reserve_space

# Names of Python's modules that Linux has and macOS lacks, by the documentation of Python 3.10 to
# 3.14. A star stands for any ending.
LINUX_NAMES = {
    "os": (
        "copy_file_range epoll eventfd* EFD_* fdatasync getrandom GRND_* getresgid getresuid getxattr "
        "listxattr removexattr setxattr XATTR_* memfd_create MFD_* O_DIRECT O_LARGEFILE O_NOATIME O_PATH "
        "O_RSYNC O_TMPFILE pidfd_open pipe2 posix_fadvise POSIX_FADV_* posix_fallocate process_cpu_count "
        "RWF_* sched_getaffinity sched_getparam sched_getscheduler sched_rr_get_interval "
        "sched_setaffinity sched_setparam sched_setscheduler setns setresgid setresuid splice SPLICE_* "
        "timerfd_* unshare CLONE_* P_PIDFD"
    ),
    "mmap": "MAP_POPULATE MAP_DENYWRITE MAP_EXECUTABLE MAP_STACK MADV_REMOVE MADV_DONTFORK MADV_DOFORK "
    "MADV_HWPOISON MADV_MERGEABLE MADV_UNMERGEABLE MADV_SOFT_OFFLINE MADV_HUGEPAGE MADV_NOHUGEPAGE "
    "MADV_DONTDUMP MADV_DODUMP",
    "fcntl": "F_OFD_* F_ADD_SEALS F_GET_SEALS F_SEAL_* F_GETPIPE_SZ F_SETPIPE_SZ F_NOTIFY DN_* F_SETSIG FICLONE*",
    "resource": "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RLIMIT_OFILE",
    "select": "epoll EPOLL* devpoll",
    "signal": "sigtimedwait sigwaitinfo SIGPWR SIGSTKFLT SIGPOLL SIGRTMIN SIGRTMAX pidfd_send_signal",
    "socket": "AF_NETLINK AF_PACKET AF_ALG AF_VSOCK SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED",
    "time": "CLOCK_BOOTTIME CLOCK_TAI CLOCK_MONOTONIC_COARSE pthread_getcpuclockid",
}
# Functions of the C library that macOS lacks.
C_FUNCTIONS = frozenset(
    [
        "malloc_trim",
        "mallopt",
        "syncfs",
        "prctl",
        "fallocate",
        "sync_file_range",
        "renameat2",
        "gettid",
        "statx",
    ]
)
# Folders that macOS lacks.
FOLDERS = re.compile(r"^/(proc|sys|dev/shm|run)(/|$)")

# By (file, name) of each use: the effect if macOS lacks it.
ALTERNATIVES = {
    ("src/recordmill/base/buffers.py", "malloc_trim"): "getattr: memory is not returned early",
    (
        "src/recordmill/base/machine.py",
        "/sys/fs/cgroup/cpu.max",
    ): "OSError: there is no quota to respect",
    ("src/recordmill/base/machine.py", "os.sched_getaffinity"): "hasattr: os.cpu_count",
    (
        "src/recordmill/base/machine.py",
        "/proc/sys/kernel/random/boot_id",
    ): "OSError: the host name",
    ("src/recordmill/storage/direct_io.py", "os.O_DIRECT"): "getattr: buffered writes",
    ("src/recordmill/storage/direct_io.py", "/proc/self/fd/"): "OSError: the error names no file",
    ("src/recordmill/storage/stores/local.py", "os.posix_fallocate"): "hasattr: zeros are written",
    ("src/recordmill/storage/disk_files.py", "syncfs"): "getattr: os.sync",
    ("pipelines/remote/submission.py", "prctl"): "sys.platform: the job server ends itself",
}


def find_uses(path: Path) -> Iterator[str]:
    """Yields the names, C functions and folders that a module uses and macOS lacks."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from find_names(node.value.id, node.attr)
            if node.attr in C_FUNCTIONS:
                yield node.attr
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from find_names(node.module or "", alias.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if FOLDERS.match(node.value) or node.value in C_FUNCTIONS:
                yield node.value
            elif "\n" in node.value:  # a string with a program
                yield from sorted(C_FUNCTIONS & {*re.findall(r"\.(\w+)\(", node.value)})
        elif isinstance(node, ast.Call) and len(node.args) > 1:  # hasattr and getattr
            module, name = node.args[:2]
            if isinstance(module, ast.Name) and isinstance(name, ast.Constant):
                yield from find_names(module.id, str(name.value))


def find_names(module: str, name: str) -> Iterator[str]:
    for pattern in LINUX_NAMES.get(module, "").split():
        if re.fullmatch(pattern.replace("*", ".*"), name):
            yield f"{module}.{name}"


def test_each_call_that_macos_lacks_is_listed_with_its_alternative() -> None:
    folders = ("src", "pipelines", "schemas", "transforms")
    modules = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    modules.append(ROOT / "setup.py")
    uses = {(str(path.relative_to(ROOT)), use) for path in modules for use in find_uses(path)}
    assert uses == set(ALTERNATIVES)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 5])
def test_space_for_a_file_is_reserved_without_posix_fallocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with (tmp_path / "file").open("w+b") as file:
        reserve_space(file, size)
        stat = os.fstat(file.fileno())
        assert (stat.st_size, stat.st_blocks * 512 >= size) == (size, True)
        assert not np.fromfile(tmp_path / "file", np.uint8).any()


def test_full_disk_is_an_error_without_posix_fallocate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with (
        Path("/dev/full").open("w+b", buffering=0) as file,
        pytest.raises(OSError, match="No space"),
    ):
        reserve_space(file, 10)


def test_cores_are_counted_without_sched_getaffinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    count_cores.cache_clear()
    assert 1 <= count_cores() <= (os.cpu_count() or 1)
