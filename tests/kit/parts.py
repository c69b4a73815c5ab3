"""Data sets of several parts for tests, made from separate builds."""

import hashlib
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import recordmill
from recordmill.building.commit import finish_output
from recordmill.shards.manifest import (
    APPEND,
    SKETCH_NAME,
    STATISTICS_NAME,
    Manifest,
    load_manifest,
    load_newest_manifest,
    manifest_path,
)
from recordmill.storage.digest import Digest


def append(out: Path, source: Any, **options: Any) -> Manifest:
    """Builds a source with these options, and makes it the next part of OUT."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        recordmill.build(source, Path(folder, out.name), **options)
        return join_parts(out, Path(folder, out.name))


def join_parts(out: Path, *others: Path) -> Manifest:
    """Moves the parts of other data sets to OUT, as its next generation."""
    base, manifest = load_newest_manifest(out)
    added = [load_manifest(other) for other in others]
    for other, one in zip(others, added, strict=True):
        for part in one.parts:
            os.rename(other / part.folder, out / part.folder)
        for name in one.rejects["files"]:
            (out / "rejects").mkdir(exist_ok=True)
            os.rename(other / name, out / name)
    reasons = sum((Counter(one.rejects["reasons"]) for one in [manifest, *added]), Counter[str]())
    prints = "".join([manifest.fingerprint, *(one.fingerprint for one in added)])
    joined = replace(
        manifest,
        parts=(*manifest.parts, *(part for one in added for part in one.parts)),
        rejects={
            "count": reasons.total(),
            "reasons": dict(reasons),
            "files": [name for one in [manifest, *added] for name in one.rejects["files"]],
        },
        fingerprint=hashlib.sha256(prints.encode()).hexdigest(),
        statistics={"notes": []},
        run={**manifest.run, **added[-1].run, "action": APPEND},
    )
    joined = replace(joined, run={**joined.run, "keep_generations": manifest.keep_generations})
    # Real appends merge the sketches, too.
    (out / joined.statistics_folder / SKETCH_NAME).unlink(missing_ok=True)
    path = manifest_path(out, base + 1)
    path.write_text(joined.to_json())
    if "file" in manifest.statistics:
        data = recordmill.open(out).statistics.to_bytes()
        (out / joined.statistics_folder / STATISTICS_NAME).write_bytes(data)
        digest = Digest()
        digest.update(data)
        entry = {"name": STATISTICS_NAME, "bytes": len(data), "digest": digest.text()}
        joined = replace(joined, statistics={"notes": [], "file": entry})
        path.write_text(joined.to_json())
    finish_output(out, joined, base + 1)
    return joined
