"""What a read has finished, noted in its run folder as it goes, so that the same command can go on after a kill; and
what makes two reads the same.

A `Job` that makes one file is one unit of work. The `.npy` files of a split grow as one job, whose units are runs of
its pieces: a note says how long each file was behind that unit, so that what came later can be cut off. A note is
written when what it speaks of is on disk, with the digest of the input that it was read from. A read that is no larger
than one unit writes none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path

from recordmill.base.errors import DataError, Reject
from recordmill.exporting.input_digest import digest_bytes, digest_frames
from recordmill.exporting.job import JobResult, output_name
from recordmill.exporting.jobs import Job, sizes_of, split_jobs
from recordmill.exporting.plan import NPY, NPZ, ReadOptions, ReadPlan
from recordmill.shards.cutting import pieces_of
from recordmill.shards.piece_table import PieceTable
from recordmill.shards.pieces import Piece, Span
from recordmill.shards.rejects import Rejected
from recordmill.shards.run_folder import ABOUT_NAME
from recordmill.storage.files import atomic_write, stat, write_all
from recordmill.storage.folders import inode, is_folder, make_folder, paths_in
from recordmill.storage.strict_json import Fields, load_fields, parse, read_bounded

NOTES = "notes"  # in the run folder: a file per unit
_VERSION = 3  # of the notes, and of how a read cuts its work: others are not gone on from


@dataclass(frozen=True)
class Note:
    """A job as it stood behind one of its units.

    digest: of what the unit was read from. read, written, filtered, rejected: of the job up to here. reject_bytes: of
    its file of rejects. lengths: of files that grow, the rows of each. identity: of the output, see `identity`. notes:
    for people.
    """

    digest: str = ""
    read: int = 0
    written: int = 0
    filtered: int = 0
    rejected: Rejected = field(default_factory=Rejected.zero)
    reject_bytes: int = 0
    lengths: Mapping[str, int] | None = None
    identity: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def result(self, job: Job, to: str, rejects: Path) -> JobResult:
        """What the job made, if this is its last unit."""
        files = (str(rejects / f"{job.name}.jsonl"),) if self.rejected.total else ()
        rejected = replace(self.rejected, files=files)
        return JobResult(
            job.split, job.index, output_name(job, to), self.read, self.written, rejected, self.filtered, self.notes
        )

    def to_json(self) -> str:
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "rejected"}
        return json.dumps(
            {**values, "counts": self.rejected.counts, "first": [asdict(reject) for reject in self.rejected.first]}
        )

    @classmethod
    def from_json(cls, text: bytes) -> Note:
        """Raises DataError for what no read notes."""
        note = Fields(parse(text, "note"), "note")
        reasons = note.object("counts")
        first = (
            Reject(*(reject.text(name) for name in ("source", "place", "reason", "message")))
            for reject in note.objects("first")
        )
        lengths = None if note.any("lengths") is None else note.object("lengths")
        return cls(
            note.text("digest"),
            note.count("read"),
            note.count("written"),
            note.count("filtered"),
            Rejected(Counter({reason: reasons.count(reason) for reason in reasons.value}), tuple(first)),
            note.count("reject_bytes"),
            None if lengths is None else {name: lengths.count(name) for name in lengths.value},
            tuple(number for number in note.items("identity") if isinstance(number, int)),
            tuple(note.texts("notes")),
        )


@dataclass(frozen=True)
class Notes:
    """The notes of one run folder. path: where they are.
    finished: of each job's name, the notes of an earlier process that still hold.
    """

    path: Path
    finished: Mapping[str, tuple[Note, ...]] = field(default_factory=dict)

    @classmethod
    def begin(cls, run: Path, fingerprint: str) -> Notes:
        """Say in a new run folder which read it is."""
        make_folder(run / NOTES)
        with atomic_write(run / ABOUT_NAME) as file:
            write_all(file, json.dumps({"format": "recordmill read at work", "fingerprint": fingerprint}).encode())
        return cls(run / NOTES)

    def of(self, job: Job) -> tuple[Note, ...]:
        return self.finished.get(job.name, ())

    def load(self, job: Job, unit: int) -> Note | None:
        """The note of a unit; None if there is none that can be understood."""
        with contextlib.suppress(OSError, DataError):
            return Note.from_json(read_bounded(self._file(job, unit)))
        return None

    def save(self, plan: ReadPlan, job: Job, unit: int, pieces: Sequence[Piece | Span], note: Note) -> None:
        """Note a unit, made of these pieces, whose output is on disk;
        not if its input is another one than when the read was planned. A digest that it lacks is made of the input.
        """
        try:
            digest = note.digest or digest_inputs(plan, pieces)
            same = all(
                stat(plan.files[file].path) == plan.files[file].stat for file in {piece.file for piece in pieces}
            )
        except (OSError, DataError):
            same = False
        if same:
            with atomic_write(self._file(job, unit)) as file:
                write_all(file, replace(note, digest=digest).to_json().encode())

    def _file(self, job: Job, unit: int) -> Path:
        return self.path / note_name(job, unit)


def digest_inputs(plan: ReadPlan, found: Sequence[Piece | Span]) -> str:
    """The digest, in hex, of what a unit of these pieces is read from.

    Raises:
        OSError: a file is gone. DataError: it is damaged.
    """
    pieces = list(pieces_of(plan.files, found, lenient=plan.options.lenient))
    if plan.options.checks_all:
        return digest_frames(plan.files, pieces)
    return digest_bytes(plan.files, pieces, lenient=plan.options.lenient)


def note_name(job: Job, unit: int) -> str:
    """The name, in its folder, of the note on one unit of the job."""
    return f"{job.name}.{unit:06d}.json"


def noted_in(run: Path) -> list[Path]:
    """The notes in a run folder."""
    return paths_in(run / NOTES, "[!.]*.json")


def fingerprint_of(run: Path) -> str | None:
    """The fingerprint of the read whose run folder this is; None if it says none."""
    with contextlib.suppress(OSError, DataError):
        return load_fields(run / ABOUT_NAME).text("fingerprint", "[0-9a-f]{64}", "a SHA-256")
    return None


def read_identity(output: Path) -> tuple[int, ...]:
    """What stays as it is while a finished output is only renamed: size and time of a file, and which folder it is."""
    if is_folder(output):
        return (inode(output),)
    about = stat(str(output))
    return about.size_bytes, about.mtime_ns


def grows(options: ReadOptions) -> bool:
    """Whether one job of the read writes a whole split, and can be cut off behind any of its units."""
    return options.to in (NPY, NPZ)


def units_of(plan: ReadPlan, job: Job) -> Sequence[Sequence[Piece | Span]]:
    """The pieces of each unit of the job; they depend on inputs and options alone."""
    if not grows(plan.options):
        return [job.pieces]
    return [part.pieces for part in split_jobs([replace(job, limit=None)], plan.files, plan.options.file_bytes)]


def is_noted(plan: ReadPlan) -> bool:
    """Whether the read is worth notes: where all of it is no more than a unit,
    beginning anew costs less than they do.
    """
    size = sum(int(sizes_of(whole.pieces, plan.files).sum()) for whole in plan.wholes)
    return size > plan.options.file_bytes and sum(len(units_of(plan, job)) for job in plan.jobs) > 1


def fingerprint(plan: ReadPlan) -> str:
    """The same for two reads that end with the same files if their inputs hold the same bytes."""
    options = replace(plan.options, where=None)
    predicate = plan.options.where.predicate if plan.options.where is not None else None
    whole = hashlib.sha256()
    for text in [
        f"{_VERSION} {[version(name) for name in ('recordmill', 'numpy', 'pyarrow', 'pillow')]}",
        predicate
        if isinstance(predicate, str)
        else repr(pickle.dumps(predicate, protocol=4)),  # only hashed: its text leaves long lists out
        *map(repr, [options, plan.schema, plan.decoded, plan.selected, plan.steps, plan.layout]),
        *(f"{whole.split} {whole.limit} {PieceTable.of(whole.pieces).digest()}" for whole in plan.wholes),
        *(f"{file.name} {file.split} {file.compression} {file.stat.size_bytes} {file.info}" for file in plan.files),
    ]:
        whole.update(text.encode(errors="surrogateescape") + b"\0")
    return whole.hexdigest()
