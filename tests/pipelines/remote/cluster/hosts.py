"""Hosts as network namespaces that share a bridge.

Their programs end with this process. One set of hosts exists at a time.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

NET = "10.79.0"
THIS_MACHINE = f"{NET}.254"  # address of this machine for the hosts
_MARK = "rmt"  # prefix of the names of namespaces and links, which have at most 15 letters
_LOCK_SEC = 300.0
END_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL", "--"]


def find_obstacle(*programs: str) -> str:
    """Returns the reason why this machine cannot have hosts with these programs, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [
        name for name in ("ip", "unshare", "setpriv", *programs) if shutil.which(name) is None
    ]
    if missing:
        return f"{', '.join(missing)} is not there"
    probe = f"{_MARK}{os.getpid()}"
    try:
        _ip("netns", "add", probe)
        _ip("netns", "exec", probe, "unshare", "-m", "true")
    except subprocess.CalledProcessError as error:
        return f"no namespace can be made here: {error.stderr.decode(errors='replace').strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return ""


class Hosts:
    """Hosts 1 to `count`, at 10.79.0.1 and so on.

    Attributes:
        hidden: A folder that is empty on all hosts but the first.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.hidden = folder / "hidden"
        self.hidden.mkdir(parents=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock: int | None = None

    def up(self) -> None:
        """Creates the hosts."""
        self._lock = _lock_machine()
        _sweep()
        _ip("link", "add", f"{_MARK}br", "type", "bridge")
        _ip("addr", "add", f"{THIS_MACHINE}/24", "dev", f"{_MARK}br")
        _ip("link", "set", f"{_MARK}br", "up")
        for host in range(1, self.count + 1):
            self._add(host)

    def _add(self, host: int) -> None:
        name = f"{_MARK}{host}"
        _ip("netns", "add", name)
        _ip("link", "add", f"{_MARK}v{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", f"{_MARK}v{host}", "master", f"{_MARK}br", "up")
        _ip("-n", name, "addr", "add", f"{address(host)}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            _ip("-n", name, "link", "set", link, "up")

    def start(
        self, name: str, host: int, command: list[str], environment: Mapping[str, str]
    ) -> None:
        """Runs a command on a host. Its output goes to the file `name`.out."""
        hide = "" if host == 1 else f'mount -t tmpfs none "{self.hidden}" && '
        script = f'mount --make-rprivate / && {hide}exec "$@"'
        prefix = [
            "ip",
            "netns",
            "exec",
            f"{_MARK}{host}",
            "unshare",
            "-m",
            "sh",
            "-c",
            script,
            "sh",
        ]
        if name in self._processes:  # an earlier process was killed
            self._processes.pop(name).wait()
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*END_WITH_PARENT, *prefix, *command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                start_new_session=True,
            )

    def pids(self, host: int, word: bytes = b"") -> list[int]:
        """Returns the IDs of processes on a host with `word` in their command."""
        return [pid for pid in _pids(f"{_MARK}{host}") if word in command_of(pid)]

    def kill(self, host: int, *spared: bytes) -> None:
        """Kills the processes on a host.

        Args:
            spared: Processes with one of these words in their commands go on.
        """
        for pid in self.pids(host):
            if not any(word in command_of(pid) for word in spared):
                kill(pid)

    def read_output(self, name: str) -> str:
        """Returns the output of a command until now."""
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def is_alive(self, name: str) -> bool:
        """Returns whether a command is running."""
        return self._processes[name].poll() is None

    def down(self) -> None:
        """Kills all processes on the hosts, and removes the hosts."""
        _sweep()
        for process in self._processes.values():
            process.kill()
            process.wait()
        if self._lock is not None:
            os.close(self._lock)


def address(host: int) -> str:
    """Returns the address of a host."""
    return f"{NET}.{host}"


def wait(is_true: Callable[[], bool], seconds: float, name: str, every: float = 0.2) -> None:
    """Waits for a condition. Fails after `seconds`.

    Args:
        name: The condition in words, for the error message.
        every: The interval between checks in seconds.
    """
    before = time.monotonic()
    while not is_true():
        assert time.monotonic() - before < seconds, f"{name}: not within {seconds:.0f} s"
        time.sleep(every)


def command_of(pid: int) -> bytes:
    """Returns the command line of a process, or b"" if it does not exist."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill(pid: int) -> None:
    """Kills a process, if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _lock_machine() -> int:
    """Locks the hosts of this machine until this process ends.

    Fails if another run holds the lock for too long.
    """
    lock = os.open(
        Path(tempfile.gettempdir()) / "recordmill-cluster-tests.lock", os.O_CREAT | os.O_RDWR, 0o600
    )

    def try_lock() -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    wait(try_lock, _LOCK_SEC, "the end of another run of these tests")
    return lock


def _sweep() -> None:
    """Kills all processes on hosts of this kind, and removes the hosts.

    While the lock is held, no other process has such hosts.
    """
    namespaces = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=False
    ).stdout
    for name in (line.split()[0] for line in namespaces.splitlines() if line.startswith(_MARK)):
        for pid in _pids(name):
            kill(pid)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    # A namespace and its link exist until the last connection ends, which may take minutes.
    for path in Path("/sys/class/net").glob(f"{_MARK}*"):
        subprocess.run(["ip", "link", "del", path.name], capture_output=True, check=False)


def _pids(namespace: str) -> list[int]:
    process = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
    return [int(word) for word in process.stdout.split()]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
