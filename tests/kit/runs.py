"""Runs of builds, reads and other programs.

A build or a read must write the same bytes with any threads, memory and runner.
"""

import functools
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import recordmill
from kit.files import tree
from recordmill.__main__ import main
from recordmill.base.messages import render
from recordmill.options.flags import flag_spelling
from recordmill.options.order import BuildOrder


def in_flags(message: object, command: str = "build") -> str:
    """Returns a message, an error or a reject as the command line prints it."""
    return render(message, flag_spelling(command))


def run_python(
    *words: object, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs this Python interpreter with arguments, and captures its output."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)


def run_command(capture: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Runs a command in this process.

    Returns:
        (exit code, stdout, stderr)
    """
    code = main([str(word) for word in words])
    printed = capture.readouterr()
    return code, printed.out, printed.err


def limit_descriptors() -> None:
    """Limits the open files of this process to 256, as `preexec_fn` of a child."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def run_in_threads(work: Callable[..., object], *arguments: object) -> None:
    """Calls `work` with each of these arguments in its own thread.

    Returns when all threads have ended.
    """
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def use_key_bits(patch: pytest.MonkeyPatch, bits: int) -> None:
    """Lets builds use only the first bits of each key.

    Many records then have equal keys.
    """
    with_bits = functools.partialmethod(BuildOrder.__init__, key_bits=bits)
    patch.setattr(BuildOrder, "__init__", with_bits)


WAYS_TO_READ: tuple[dict[str, Any], ...] = (
    {"threads": 1},
    {"threads": 8, "memory": "256MiB"},
    {"runner": "FnApiRunner", "threads": 2},
)


WAYS_TO_BUILD: tuple[dict[str, Any], ...] = (
    {"threads": 1},
    {"threads": 8},
    {"memory": "128MiB"},
    {"runner": "DirectRunner"},
    {"beam_args": ("--direct_runner_bundle_repeat=2",)},
)


def rejects_of(result: Any) -> list[dict[str, Any]]:
    """Returns the lines of the reject files of a build or a read."""
    return [
        json.loads(line)
        for path in result.rejects
        for line in Path(path).read_text("utf-8").splitlines()
    ]


def read_in_each_way(
    source: Any, folder: Path, ways: Iterable[Mapping[str, Any]] = WAYS_TO_READ, **options: Any
) -> list[recordmill.ReadResult]:
    """Reads `source` once with each dict of options in `ways`.

    Each read has its own folder. Checks that all reads write the same files.
    """
    results = [
        recordmill.read(source, folder / f"{number}", **options, **way)
        for number, way in enumerate(ways)
    ]
    first, *copies = (tree(folder / f"{number}") for number in range(len(results)))
    assert len(first) > 2
    for number, files in enumerate(copies, 1):
        assert files == first, results[number]
    return results


def build_in_each_way(
    data: Any, folder: Path, ways: Iterable[Mapping[str, Any]] = WAYS_TO_BUILD, **options: Any
) -> list[recordmill.BuildResult]:
    """Builds `data` with defaults, and once with each dict of options in `ways`.

    Each build has its own folder. Checks that all builds write the same shards.
    """
    results = [
        recordmill.build(data, folder / f"{number}", **options, **way)
        for number, way in enumerate(({}, *ways))
    ]
    first, *copies = (
        {path.name: path.read_bytes() for path in map(Path, result.shards)} for result in results
    )
    for number, shards in enumerate(copies, 1):
        assert shards == first, results[number]
    return results
