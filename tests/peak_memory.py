"""The memory a command takes at most, in a process of its own, beyond what stays after the same small command."""

import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

ADDRESS_BYTES = 6 << 30  # 6 GiB: what no test may take by mistake, with the address space that is only reserved
_SCRIPT = """
import ctypes, resource, sys
import pyarrow as pa
from recordmill.__main__ import main

resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)

def held(name):
    pa.default_memory_pool().release_unused()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(name)).split()[1]) << 10

words = sys.argv[2:]
at = words.index("::")
assert main(words[:at]) == 0, "what the small command loads would be measured"
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")
before = held("VmRSS")
code = main(words[at + 1:])
print("took", code, held("VmHWM") - before)
"""


class Taken(NamedTuple):
    """bytes: beyond what was held before."""

    code: int
    bytes: int
    said: str


def peak_memory(small: Sequence[object], command: Sequence[object], address_bytes: int = ADDRESS_BYTES) -> Taken:
    """What `recordmill COMMAND` takes; small: a command that loads what it needs."""
    words = [sys.executable, "-c", _SCRIPT, str(address_bytes), *map(str, small), "::", *map(str, command)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    _, _, told = ran.stdout.rpartition("took ")
    assert told, ran.stderr
    code, taken = map(int, told.split())
    return Taken(code, taken, ran.stderr)
