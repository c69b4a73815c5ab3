"""One set at a time of hosts of their own: namespaces that share a bridge, whose programs end with
this process.
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
HERE = f"{NET}.254"  # this machine, as the hosts see it
_MARK = "rmt"  # of names of namespaces and links, at most 15 letters
_LOCK_SEC = 300.0
ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"]


def why_not(*programs: str) -> str:
    """Why there can be no such hosts, with these programs on them; "" if there can."""
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
    """Hosts 1 to `count`, at 10.79.0.1 and so on. hidden: a folder that all but the first have
    empty.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.hidden = folder / "hidden"
        self.hidden.mkdir(parents=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock: int | None = None

    def up(self) -> None:
        """Make them."""
        self._lock = _only_one()
        _sweep()
        _ip("link", "add", f"{_MARK}br", "type", "bridge")
        _ip("addr", "add", f"{HERE}/24", "dev", f"{_MARK}br")
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
        """Run a command on a host; its output is in the file `name`.out."""
        hide = "" if host == 1 else f'mount -t tmpfs none "{self.hidden}" && '
        script = f'mount --make-rprivate / && {hide}exec "$@"'
        within = [
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
        if name in self._processes:  # it was killed
            self._processes.pop(name).wait()
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*ENDS_WITH_US, *within, *command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                start_new_session=True,
            )

    def pids(self, host: int, word: bytes = b"") -> list[int]:
        """What runs on a host and has that word in its command."""
        return [pid for pid in _pids(f"{_MARK}{host}") if word in command_of(pid)]

    def kill(self, host: int, *spared: bytes) -> None:
        """End everything on a host at once but what has one of these words in its command."""
        for pid in self.pids(host):
            if not any(word in command_of(pid) for word in spared):
                kill(pid)

    def said(self, name: str) -> str:
        """What a command has said so far."""
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def is_alive(self, name: str) -> bool:
        """Whether a command goes on."""
        return self._processes[name].poll() is None

    def down(self) -> None:
        """End everything on them, and them."""
        _sweep()
        for process in self._processes.values():
            process.kill()
            process.wait()
        if self._lock is not None:
            os.close(self._lock)


def address(host: int) -> str:
    """Where a host is."""
    return f"{NET}.{host}"


def wait(until: Callable[[], bool], seconds: float, what: str, every: float = 0.2) -> None:
    """Until something is so; fails when it takes longer."""
    before = time.monotonic()
    while not until():
        assert time.monotonic() - before < seconds, f"{what}: not within {seconds:.0f} s"
        time.sleep(every)


def command_of(pid: int) -> bytes:
    """A process's command line; empty if there is none such."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill(pid: int) -> None:
    """End a process, if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _only_one() -> int:
    """A lock that ends with this process; fails if another run keeps it."""
    lock = os.open(
        Path(tempfile.gettempdir()) / "recordmill-cluster-tests.lock", os.O_CREAT | os.O_RDWR, 0o600
    )

    def taken() -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    wait(taken, _LOCK_SEC, "the end of another run of these tests")
    return lock


def _sweep() -> None:
    """End what is on hosts of this kind, and them; nobody else has any, while the lock is held."""
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=False
    ).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(_MARK)):
        for pid in _pids(name):
            kill(pid)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    # a namespace goes when its last connection has, and its link with it, which may take minutes
    for path in Path("/sys/class/net").glob(f"{_MARK}*"):
        subprocess.run(["ip", "link", "del", path.name], capture_output=True, check=False)


def _pids(namespace: str) -> list[int]:
    found = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
    return [int(word) for word in found.stdout.split()]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
