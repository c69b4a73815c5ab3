"""Builds and reads into a store that are killed at any request leave the old or the new result,
and the next run works.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.fault_proxy import KILL, KILL_BEHIND, Proxy, fault_proxy
from kit.store_server import Store, of_s3, settings

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
    """A process that makes children. said: the file that gets what the last one says; child: its
    process id.
    """

    process: subprocess.Popen[str]
    said: Path
    child: int = 0

    def run(self, *command: str, **environment: str) -> int:
        """Run a command of recordmill; gives its exit status, or minus the signal that killed
        it.
        """
        asked = {"command": command, "environment": environment, "said": str(self.said)}
        print(json.dumps(asked), file=self._stdin, flush=True)
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
def nursery(said: Path) -> Iterator[Nursery]:
    """It uses the settings of stores that this process has now."""
    process = subprocess.Popen(
        [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield Nursery(process, said)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def proxy(store: Store) -> Iterator[Proxy]:
    with fault_proxy(store.endpoint) as between:
        yield between


@pytest.fixture(scope="module")
def children(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with settings(**of_s3(proxy.url)), nursery(tmp_path_factory.mktemp("said") / "stderr") as made:
        yield made


@pytest.fixture(autouse=True)
def here(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with settings(**of_s3(store.endpoint)):
        yield


def requests_of(
    proxy: Proxy, children: Nursery, out: str, *command: str, **environment: str
) -> list[str]:
    """The requests of a run that nobody disturbs, from the first one that changes something on."""
    proxy.begin()
    assert children.run(*command, "--out", out, **environment) == 0
    first = next(at for at, said in enumerate(proxy.requests) if said.startswith("PUT"))
    return [f"{at} {said}" for at, said in enumerate(proxy.requests)][first:]


def kills(asked: list[str], every: bool) -> list[tuple[int, str]]:
    """(number of a request, before or behind it) to kill at: behind each, or before one and behind
    the commit.
    """
    numbers = [int(said.split()[0]) for said in asked]
    commit = next(
        int(said.split()[0])
        for said in asked
        if "PUT" in said and ("_manifests" in said or "_reads" in said)
    )
    if every:
        return [(number, KILL_BEHIND) for number in numbers]
    return [(numbers[len(numbers) // 3], KILL), (commit, KILL_BEHIND)]


pytestmark = pytest.mark.sweep
_WHOLE = pytest.mark.skipif(
    os.environ.get("RECORDMILL_FAULTS") != "all", reason="takes an hour: .ci/faults runs it"
)
EVERY = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=_WHOLE)], ids=["some", "every"]
)


@EVERY
def test_build_killed_at_any_request_leaves_the_old_or_new_data_set(
    store: Store,
    proxy: Proxy,
    children: Nursery,
    tmp_path: Path,
    every: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "in.csv").write_text("a,b\n" + "".join(f"{at},name {at}\n" for at in range(300)))
    command = ["build", str(tmp_path / "in.csv"), "--num-shards", "2", "--overwrite", "--quiet"]
    root, temporary = f"{store.root}/build-{every}", {"TMPDIR": str(tmp_path)}
    old = recordmill.build({"x": [1, 2, 3]}, f"{root}/whole")
    asked = requests_of(proxy, children, f"{root}/whole", *command, **temporary)
    whole = {
        path.rsplit("/", 1)[1]: data
        for path, data in store.objects(f"{root}/whole").items()
        if "/train-" in path and path.startswith(load_manifest(f"{root}/whole").parts[0].folder)
    }
    stood = set()
    for at, fault in kills(asked, every):
        out = f"{root}/{at}-{fault.replace(' ', '-')}"
        recordmill.build({"x": [1, 2, 3]}, out)
        proxy.begin(fault, at, children.kill)
        assert children.run(*command, "--out", out, **temporary) == -signal.SIGKILL
        number = list_generations(out)[-1]
        assert len(recordmill.open(out)) == {1: sum(old.records.values()), 2: 300}[number]
        stood.add(number)
        proxy.begin()
        assert children.run(*command, "--out", out, **temporary) == 0
        assert list_generations(out) == [number, number + 1]
        found = store.objects(out)
        folder = load_manifest(out).parts[0].folder
        assert {
            name.rsplit("/", 1)[1]: data
            for name, data in found.items()
            if "/train-" in name and name.startswith(folder)
        } == whole
        with monkeypatch.context() as patched:
            patched.setattr(store_run, "LEASE_SEC", -1)
            store_run.clean(out, remove=True)
        kept = {load_manifest(out, one).parts[0].folder for one in list_generations(out)}
        folders = {name.split("/")[0] for name in store.objects(out)}
        assert {name for name in folders if name.startswith(("data-", "_run-"))} == kept
        assert recordmill.verify(out) == []
        assert not list(tmp_path.glob("recordmill-*/*/_run-*"))
    assert stood == {1, 2}


@EVERY
def test_append_killed_at_any_request_leaves_the_old_or_new_generation(
    store: Store,
    proxy: Proxy,
    children: Nursery,
    tmp_path: Path,
    every: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    for path, rows in ((old, range(5)), (new, range(5, 305))):
        path.write_text("a,b\n" + "".join(f"{row},name {row}\n" for row in rows))
    command = ["build", str(old), str(new), "--append", "--quiet"]
    root, temporary = f"{store.root}/append-{every}", {"TMPDIR": str(tmp_path)}
    recordmill.build(old, f"{root}/whole")
    asked = requests_of(proxy, children, f"{root}/whole", *command, **temporary)
    expected = recordmill.open(f"{root}/whole").to_table()
    assert expected.num_rows == 305
    generations = set()
    for at, fault in kills(asked, every):
        out = f"{root}/{at}-{fault.replace(' ', '-')}"
        recordmill.build(old, out)
        proxy.begin(fault, at, children.kill)
        assert children.run(*command, "--out", out, **temporary) == -signal.SIGKILL
        number = list_generations(out)[-1]
        assert len(recordmill.open(out)) == {1: 5, 2: 305}[number]
        generations.add(number)
        # The same command appends what is missing, and nothing twice.
        proxy.begin()
        assert children.run(*command, "--out", out, **temporary) == 0
        assert list_generations(out) == [1, 2]
        assert recordmill.open(out).to_table().equals(expected)
        assert recordmill.open(out).statistics["train"]["a"].values == 305
        with monkeypatch.context() as patched:
            patched.setattr(store_run, "LEASE_SEC", -1)
            store_run.clean(out, remove=True)
        kept = {part.folder for part in load_manifest(out, 2).parts}
        folders = {name.split("/")[0] for name in store.objects(out)}
        assert {name for name in folders if name.startswith(("data-", "_run-"))} == kept
        assert recordmill.verify(out) == []
        assert not list(tmp_path.glob("recordmill-*/*/_run-*"))
    assert generations == {1, 2}


@EVERY
@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_read_killed_at_any_request_leaves_the_old_or_new_result(
    store: Store,
    proxy: Proxy,
    children: Nursery,
    tmp_path: Path,
    every: bool,
    to: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = write_data_set(
        tmp_path / "set", {"train": mixed_rows(200), "test": mixed_rows(40, 200)}, shards=3
    )
    root, temporary = f"{store.root}/read-{to}-{every}", {"TMPDIR": str(tmp_path)}
    command = ["read", str(source), "--to", to, "--file-size", "8KB", "--overwrite"]
    small = {"to": to, "limit": 3}
    recordmill.read(source, f"{root}/whole", **small)
    asked = requests_of(proxy, children, f"{root}/whole", *command, **temporary)
    whole = result(store, f"{root}/whole")
    assert len(whole) >= 5
    stood = set()
    for at, fault in kills(asked, every):
        out = f"{root}/{at}-{fault.replace(' ', '-')}"
        recordmill.read(source, out, **small)
        old = result(store, out)
        proxy.begin(fault, at, children.kill)
        assert children.run(*command, "--out", out, **temporary) == -signal.SIGKILL
        assert result(store, out) in (old, whole)
        put = {
            said.split("?")[0]
            for said in proxy.requests[:at]
            if said.startswith("PUT") and "/data-" in said
        }
        numbers = sorted(store_run.list_results(out))
        stood.add(numbers[-1])
        proxy.begin()
        assert children.run(*command, "--out", out, **temporary) == 0
        if numbers[-1] == 1 and put:  # what is finished and was put is neither read nor put again
            assert "resuming an earlier read" in children.said.read_text()
            again = {
                said.split("?")[0]
                for said in proxy.requests
                if said.startswith("PUT") and "/data-" in said
            }
            assert len(put & again) <= 32  # those whose answers had not been heard
            assert len(put | again) == len(whole)
        assert result(store, out) == whole
        with monkeypatch.context() as patched:
            patched.setattr(store_run, "LEASE_SEC", -1)
            store_run.clean(out, remove=True)
        summary = json.loads(store.objects(out)["_read.json"])
        names = {name.split("/")[0] for name in store.objects(out)}
        assert names == {"_read.json", "_reads", summary["folder"]}
        assert not list(tmp_path.glob("recordmill-*/*/_run-*"))
    assert stood == {1, 2}


def result(store: Store, out: str) -> dict[str, bytes]:
    """The files of the result that `_parse_known_connector.json` names."""
    found = store.objects(out)
    summary = json.loads(found["_read.json"])
    named = {name: data for name, data in found.items() if name.startswith(tuple(summary["files"]))}
    assert len(
        {file for file in summary["files"] if any(name.startswith(file) for name in named)}
    ) == len(summary["files"])
    return {name.removeprefix(f"{summary['folder']}/"): data for name, data in named.items()}
