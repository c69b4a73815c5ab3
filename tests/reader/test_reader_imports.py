"""What reads must work from the base install: neither Beam nor TensorFlow is imported by the reader, head,
inspect, verify or read.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_data_set import mixed_rows, write_data_set

CHECK = """
import sys
{code}
loaded = [name for name in ("apache_beam", "tensorflow", "google.protobuf.internal.none") if name in sys.modules]
assert not loaded, loaded
"""


@pytest.mark.parametrize(
    "code",
    [
        "from recordmill.reader import Dataset, Ragged, Strings, open, open_columns",
        "import recordmill.reader.dataset, recordmill.reader.training, recordmill.reader.mixture",
        "import recordmill.reader.inspect.summary, recordmill.reader.batches.iterator",
        "import recordmill; ds = recordmill.open({out!r}); ds.to_table(); ds.to_numpy(); list(ds.batches(8, "
        "shuffle=True)); ds[3]",
        "import recordmill; recordmill.read({out!r}, {to!r}, to='npy'); recordmill.verify({out!r})",
        "from recordmill.__main__ import main; assert main(['head', {out!r}]) == 0; assert main(['inspect', "
        "{out!r}]) == 0",
        "from recordmill.__main__ import main; assert main(['verify', {out!r}]) == 0; assert main(['read', "
        "{out!r}, '--out', {to!r}]) == 0",
    ],
)
def test_base_install_is_enough(tmp_path: Path, code: str) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(20)})
    source = CHECK.format(code=code.format(out=str(out), to=str(tmp_path / "to")))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
