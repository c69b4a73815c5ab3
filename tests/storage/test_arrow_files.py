"""Arrow files in stores are read in part if that is enough."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from kit.web_files import web_files

from recordmill.storage.arrow_files import BatchWriter, open_batches


def test_batch_of_an_object_is_read_without_the_others(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": np.arange(1_000_000)})
    writer = BatchWriter(str(tmp_path / "a.arrow"), batch.schema)
    for _ in range(8):
        writer.write(batch)
    writer.close()
    with web_files(tmp_path) as web:
        assert open_batches(f"{web.url}/a.arrow").get_batch(3).equals(batch)
        ranges = [text.partition("bytes=")[2] for text in web.requests if "bytes=" in text]
    sizes = [int(last) + 1 - int(first) for first, last in (text.split("-") for text in ranges)]
    assert batch.nbytes < sum(sizes) < 4 * batch.nbytes
