"""What reads must work from the base install: neither Beam nor TensorFlow is imported by the reader, head,
inspect, verify or read.
"""

from __future__ import annotations

from pathlib import Path

from kit import run_python
from made_data_set import mixed_rows, write_data_set

CHECK = """
import sys
{code}
loaded = [name for name in ("apache_beam", "tensorflow", "google.protobuf.internal.none") if name in sys.modules]
assert not loaded, (loaded, {code!r})
"""
STEPS = (
    "from recordmill.reader import Dataset, Ragged, Strings, open, open_columns",
    "import recordmill.reader.dataset, recordmill.reader.training, recordmill.reader.mixture",
    "import recordmill.reader.inspect.summary, recordmill.reader.batches.iterator",
    "import recordmill; ds = recordmill.open({out!r}); ds.to_table(); ds.to_numpy(); "
    "list(ds.batches(8, shuffle=True)); ds[3]",
    "recordmill.read({out!r}, {to!r}, to='npy'); recordmill.verify({out!r})",
    "from recordmill.__main__ import main; assert main(['head', {out!r}]) == 0; assert main(['inspect', {out!r}]) == 0",
    "assert main(['verify', {out!r}]) == 0; assert main(['read', {out!r}, '--out', {to!r} + '-table']) == 0",
)


def test_base_install_is_enough(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(20)})
    codes = [step.format(out=str(out), to=str(tmp_path / "to")) for step in STEPS]
    source = "".join(CHECK.format(code=code) for code in codes)
    done = run_python("-c", source, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
