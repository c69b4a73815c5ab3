"""Killed builds and reads leave the old or the new result in a store.

A run may be killed at any request. The next run succeeds.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.fault_proxy import KILL, KILL_AFTER, Proxy, fault_proxy
from kit.store_server import Store, s3_settings, use_settings

import recordmill
from recordmill.shards import store_run
from recordmill.shards.manifest import list_generations, load_manifest

_NURSERY = """
import json, os, sys
import numpy, obstore, obstore.store, pyarrow.parquet
import recordmill.pipelines.build, recordmill.pipelines.read, recordmill.building.local_build
from recordmill.__main__ import main
from recordmill.shards import cutting
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.update(asked["environment"])
        os.dup2(os.open(asked["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        cutting.PIECE_BYTES = 5_000
        os._exit(main(asked["command"]))
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@dataclass
class Nursery:
    """Process that forks a child for each command.

    Attributes:
        stderr_path: The file for the stderr of the last child.
        child: The process ID of the last child.
    """

    process: subprocess.Popen[str]
    stderr_path: Path
    child: int = 0

    def run(self, *command: str, **environment: str) -> int:
        """Runs a recordmill command in a child.

        Returns:
            The exit status, or the negated signal that killed the child.
        """
        request = {"command": command, "environment": environment, "said": str(self.stderr_path)}
        print(json.dumps(request), file=self._stdin, flush=True)
        self.child = int(self._line())
        return os.waitstatus_to_exitcode(int(self._line()))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)

    @property
    def _stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextlib.contextmanager
def nursery(stderr_path: Path) -> Iterator[Nursery]:
    """Starts a process that has the present settings for stores."""
    process = subprocess.Popen(
        [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield Nursery(process, stderr_path)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def proxy(store: Store) -> Iterator[Proxy]:
    with fault_proxy(store.endpoint) as proxy_to_store:
        yield proxy_to_store


@pytest.fixture(scope="module")
def children(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with (
        use_settings(**s3_settings(proxy.url)),
        nursery(tmp_path_factory.mktemp("said") / "stderr") as process,
    ):
        yield process


@pytest.fixture(autouse=True)
def local_settings(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with use_settings(**s3_settings(store.endpoint)):
        yield


def choose_kills(requests: list[str], every: bool) -> list[tuple[int, str]]:
    """Returns the kills to test, as (number of a request, KILL or KILL_AFTER).

    Args:
        requests: The requests of an undisturbed run, with their numbers.
        every: Kill after each request. Otherwise, once before a request and once after the commit.
    """
    numbers = [int(request.split()[0]) for request in requests]
    commit = next(
        int(request.split()[0])
        for request in requests
        if "PUT" in request and ("_manifests" in request or "_reads" in request)
    )
    if every:
        return [(number, KILL_AFTER) for number in numbers]
    return [(numbers[len(numbers) // 3], KILL), (commit, KILL_AFTER)]


pytestmark = pytest.mark.sweep
ALL_KILLS = pytest.mark.skipif(
    os.environ.get("RECORDMILL_FAULTS") != "all", reason="takes an hour: .ci/faults runs it"
)
EVERY = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=ALL_KILLS)], ids=["some", "every"]
)


@dataclass
class KilledCommand:
    """A command that is killed at one of its requests, and runs again.

    Each run has its own output, with the old contents that `make_old` writes.
    """

    proxy: Proxy
    children: Nursery
    root: str
    command: Sequence[str]
    make_old: Callable[[str], object]
    local: Path  # the folder for the files that are prepared on this machine

    @property
    def expected_out(self) -> str:
        """Output of an undisturbed run."""
        return f"{self.root}/whole"

    def run(self, out: str) -> int:
        return self.children.run(*self.command, "--out", out, TMPDIR=str(self.local))

    def find_requests(self) -> list[str]:
        """Returns the requests of an undisturbed run, from the first change on."""
        self.make_old(self.expected_out)
        self.proxy.begin()
        assert self.run(self.expected_out) == 0
        first = next(
            number
            for number, request in enumerate(self.proxy.requests)
            if request.startswith("PUT")
        )
        return [f"{number} {request}" for number, request in enumerate(self.proxy.requests)][first:]

    def kill_at(self, number: int, fault: str) -> str:
        """Kills a run at a request, and returns its output."""
        out = f"{self.root}/{number}-{fault.replace(' ', '-')}"
        self.make_old(out)
        self.proxy.begin(fault, number, self.children.kill)
        assert self.run(out) == -signal.SIGKILL
        return out

    def repeat(self, out: str) -> None:
        """Runs the command again, and removes all files of the killed run."""
        self.proxy.begin()
        assert self.run(out) == 0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store_run, "LEASE_SEC", -1)
            store_run.clean(out, remove=True)
        assert not list(self.local.glob("recordmill-*/*/_run-*"))


def check_only_committed(store: Store, out: str) -> None:
    """Checks that the data set is valid, and that no other folder exists."""
    manifests = [load_manifest(out, number) for number in list_generations(out)]
    expected = {part.folder for manifest in manifests for part in manifest.parts}
    folders = {name.split("/")[0] for name in store.objects(out)}
    assert {name for name in folders if name.startswith(("data-", "_run-"))} == expected
    assert recordmill.verify(out) == []


def newest_shards(store: Store, out: str) -> dict[str, bytes]:
    folder = load_manifest(out).parts[0].folder
    return {
        name.rsplit("/", 1)[1]: data
        for name, data in store.objects(out).items()
        if "/train-" in name and name.startswith(folder)
    }


@EVERY
def test_build_killed_at_any_request_leaves_the_old_or_new_data_set(
    store: Store, proxy: Proxy, children: Nursery, tmp_path: Path, every: bool
) -> None:
    (tmp_path / "in.csv").write_text(
        "a,b\n" + "".join(f"{number},name {number}\n" for number in range(300))
    )
    killed = KilledCommand(
        proxy,
        children,
        f"{store.root}/build-{every}",
        ["build", str(tmp_path / "in.csv"), "--num-shards", "2", "--overwrite", "--quiet"],
        lambda out: recordmill.build({"x": [1, 2, 3]}, out),
        tmp_path,
    )
    requests = killed.find_requests()
    expected, generations = newest_shards(store, killed.expected_out), set()
    for number, fault in choose_kills(requests, every):
        out = killed.kill_at(number, fault)
        generation = list_generations(out)[-1]
        assert len(recordmill.open(out)) == {1: 3, 2: 300}[generation]
        generations.add(generation)
        killed.repeat(out)
        assert list_generations(out) == [generation, generation + 1]
        assert newest_shards(store, out) == expected
        check_only_committed(store, out)
    assert generations == {1, 2}


@EVERY
def test_append_killed_at_any_request_leaves_the_old_or_new_generation(
    store: Store, proxy: Proxy, children: Nursery, tmp_path: Path, every: bool
) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    for path, rows in ((old, range(5)), (new, range(5, 305))):
        path.write_text("a,b\n" + "".join(f"{row},name {row}\n" for row in rows))
    killed = KilledCommand(
        proxy,
        children,
        f"{store.root}/append-{every}",
        ["build", str(old), str(new), "--append", "--quiet"],
        lambda out: recordmill.build(old, out),
        tmp_path,
    )
    requests = killed.find_requests()
    expected, generations = recordmill.open(killed.expected_out).to_table(), set()
    assert expected.num_rows == 305
    for number, fault in choose_kills(requests, every):
        out = killed.kill_at(number, fault)
        generation = list_generations(out)[-1]
        assert len(recordmill.open(out)) == {1: 5, 2: 305}[generation]
        generations.add(generation)
        # The same command appends what is missing, and nothing twice.
        killed.repeat(out)
        assert list_generations(out) == [1, 2]
        assert recordmill.open(out).to_table().equals(expected)
        assert recordmill.open(out).statistics["train"]["a"].values == 305
        check_only_committed(store, out)
    assert generations == {1, 2}


def put_files(requests: Sequence[str]) -> set[str]:
    """Returns the files of outputs in the PUT requests."""
    return {
        request.split("?")[0]
        for request in requests
        if request.startswith("PUT") and "/data-" in request
    }


@EVERY
@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_read_killed_at_any_request_leaves_the_old_or_new_result(
    store: Store, proxy: Proxy, children: Nursery, tmp_path: Path, every: bool, to: str
) -> None:
    source = write_data_set(
        tmp_path / "set", {"train": mixed_rows(200), "test": mixed_rows(40, 200)}, shards=3
    )
    killed = KilledCommand(
        proxy,
        children,
        f"{store.root}/read-{to}-{every}",
        ["read", str(source), "--to", to, "--file-size", "8KB", "--overwrite"],
        lambda out: recordmill.read(source, out, to=to, limit=3),
        tmp_path,
    )
    requests = killed.find_requests()
    old_root = f"{killed.root}/old"
    killed.make_old(old_root)
    old, expected, results = result(store, old_root), result(store, killed.expected_out), set()
    assert len(expected) >= 5
    for number, fault in choose_kills(requests, every):
        out = killed.kill_at(number, fault)
        assert result(store, out) in (old, expected)
        first_files = put_files(proxy.requests[:number])
        result_number = max(store_run.list_results(out))
        results.add(result_number)
        killed.repeat(out)
        if result_number == 1 and first_files:
            assert "resuming an earlier read" in children.stderr_path.read_text()
            second_files = put_files(proxy.requests)
            # A resumed read skips files that were already put. Up to 32 puts had no answer before
            # the kill, so they may be repeated.
            assert len(first_files & second_files) <= 32
            assert len(first_files | second_files) == len(expected)
        assert result(store, out) == expected
        summary = json.loads(store.objects(out)["_read.json"])
        names = {name.split("/")[0] for name in store.objects(out)}
        assert names == {"_read.json", "_reads", summary["folder"]}
    assert results == {1, 2}


def result(store: Store, out: str) -> dict[str, bytes]:
    """Returns the files of the result that `_read.json` names."""
    objects = store.objects(out)
    summary = json.loads(objects["_read.json"])
    files = {
        name: data for name, data in objects.items() if name.startswith(tuple(summary["files"]))
    }
    assert len(
        {file for file in summary["files"] if any(name.startswith(file) for name in files)}
    ) == len(summary["files"])
    return {name.removeprefix(f"{summary['folder']}/"): data for name, data in files.items()}
