"""Detection of the kind of data from the content of files.

`sniff_file` detects the kind of one file from its first bytes. If they fit several kinds, the
extension decides. `detect_kind` and `filter_kind` work on a listing: they sample a few files of
each extension.

The registry of kinds, `sources.registry`, refers to the `recognize_...` functions of this module.
Each of them returns a description of the content for messages, or "" if the content is of another
kind. At most HEAD_BYTES of a file are read. From a compressed file, at most HEAD_BYTES of content
are decompressed.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from recordmill.base import native
from recordmill.base.errors import UsageError
from recordmill.base.magic import (
    ARROW_FILE,
    ARROW_STREAM,
    sniff_file_format,
    sniff_image,
    sniff_unsupported_image,
)
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.sizes import format_count
from recordmill.sources.common.encoding import UTF8_ENCODING, resolve_compression, resolve_encoding
from recordmill.sources.registry import (
    COMPRESSED_EXTENSIONS,
    DATA_EXTENSIONS,
    KIND_BY_EXTENSION,
    KIND_NAMES,
    KINDS,
    find_kind,
)
from recordmill.storage.codecs import UNCOMPRESSED, find_codec
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import read_range
from recordmill.storage.listing import Listing

IMAGE_CONTENT, CSV_CONTENT, JSONL_CONTENT, TEXT_CONTENT = "images", "csv", "jsonl", "text"
# Files that are not data: documentation, code, markup and archives. They are read as text only if
# the user requests it.
OTHER_CONTENT = "other"
BINARY_CONTENT = "binary"  # not even text
UNKNOWN_FORMAT = "neither text nor a known format"
# Such a file is read as data only if the listing has no other data. Otherwise it most likely
# describes the data.
JSON_ARRAY_FORMAT = "a JSON array of objects"
JSON_DOCUMENT_FORMAT = "one JSON document, neither one object per line nor an array of objects"
_ARRAY_REMEDY = (
    'its elements are not objects: in Python, recordmill.build({"value": document}, OUT) reads a '
    "record for each element"
)
_MAX_NAMED_MEMBERS = 3  # members of a document that a message names
_YOLO_LINE = re.compile(rb"(?:\xef\xbb\xbf)?\d+(?:\.0)?(?:\s+-?\d*\.?\d+(?:e-?\d+)?){4}")
_MAX_YOLO_FILES = 8  # text files that are searched for lines of YOLO
_MAX_KEY_DEPTH = 8  # maximum length of the path to an array of objects in a JSON document
# 64 KiB: some hundred rows of a table, and one readahead of the disk.
HEAD_BYTES = 64 << 10
# Extensions of files without records of any kind: documents, markup, settings, code, logs, and
# containers of other files or arrays.
_NO_DATA_LIST = """
md markdown rst html htm xml xsd yaml yml toml ini cfg conf tex bib svg pbtxt prototxt pdf
py ipynb sh js ts css c h cc cpp java go rs r rb sql lock sha256 sha1 md5
log mat pkl pickle h5 hdf5 zip tar tgz 7z rar
cff rtf
"""
NO_DATA_EXTENSIONS = frozenset(_NO_DATA_LIST.split())
_DOCUMENTATION_LIST = """
readme license licence unlicense copying notice authors contributors changelog citation contributing codeowners
disclaimer acknowledgements acknowledgments dockerfile makefile requirements checksums md5sums sha1sums sha256sums
"""
_DOCUMENTATION_NAMES = frozenset(_DOCUMENTATION_LIST.split())
# Words that a documentation name may also contain, as in `LICENSE-MIT`. A file with any other word
# is not documentation, such as `license_plates.txt`.
_DOCUMENTATION_WORD_LIST = """
mit apache bsd gpl lgpl agpl mpl cc by nc sa nd lesser code data dataset images model third party me first en zh cn
"""
_DOCUMENTATION_WORDS = frozenset(_DOCUMENTATION_WORD_LIST.split())
# Names that mean documentation only in capital letters. In other letters they also name data.
_CAPITAL_LIST = """
CHANGES HISTORY TODO VERSION TERMS OF USE LEGAL INSTALL CREDITS ATTRIBUTION MANIFEST SHA256SUMS MD5SUMS
"""
_CAPITAL_NAMES = frozenset(_CAPITAL_LIST.split())
_NAME_WORD = re.compile(r"[^\W_]+")
_DELIMITERS = ",\t;|"
# Bytes of a TFRecord record in addition to its payload: the header alone, and header and footer.
_HEADER_BYTES, _FRAME_OVERHEAD_BYTES = 12, 16
# In fewer lines, an equal number of commas may be an accident.
_MIN_TABLE_ROWS = 3
# Enough samples to see that one extension is used for two kinds of files.
SAMPLES_PER_EXTENSION = 8
_TEXTUAL_KINDS = (*(kind.name for kind in KINDS if kind.is_textual), OTHER_CONTENT)


class Content(NamedTuple):
    """The detected content of a file.

    Attributes:
        kind: Name of one of KINDS, OTHER_CONTENT or BINARY_CONTENT.
        detail: Description of the content for messages, such as `a PNG image`.
        remedy: Advice on how the user can use the file, or "".
    """

    kind: str
    detail: str
    remedy: str = ""

    @property
    def description(self) -> str:
        """The detail and the remedy."""
        if not self.remedy:
            return self.detail
        return Message("{detail}; {remedy}", detail=self.detail, remedy=self.remedy)


class ContentSample(NamedTuple):
    """The beginning of a file. A recognizer of a kind receives it.

    Attributes:
        head: The first bytes, decompressed.
        size_bytes: Total size of the content. A huge number for a compressed file of unknown size.
        is_complete: Whether `head` is the complete content.
        hint: Name of the kind that the extension suggests, or None.
        text: The head as text. None for recognizers of binary kinds, since it is not decoded yet.
    """

    head: bytes
    size_bytes: int
    is_complete: bool
    hint: str | None = None
    text: str | None = None


def full_extension(name: str) -> str:
    """Returns the lower-case extension of a file, without the first dot.

    If the last extension names a compression, the extension before it is kept too. The result is ""
    if there is no extension.

    >>> [full_extension(name) for name in ("a/b.JPG", "t.csv.gz", "README", ".hidden")]
    ['jpg', 'csv.gz', '', '']
    """
    stem, dot, extension = name.rpartition("/")[2].rpartition(".")
    if not dot or not stem:
        return ""
    extension = extension.lower()
    inner_extension = full_extension(stem) if extension in COMPRESSED_EXTENSIONS else ""
    return f"{inner_extension}.{extension}" if inner_extension else extension


def is_documentation(name: str) -> bool:
    """Returns whether a file name is typical of documentation, such as `README.txt` or `LICENSE`.

    Such files describe the data and contain no records.

    >>> [is_documentation(name) for name in ("data/README.txt", "LICENSE-MIT", "readme.csv")]
    [True, True, False]
    >>> [
    ...     is_documentation(name)
    ...     for name in ("COPYING.LESSER", "LICENSE.repo", "license_plates.txt")
    ... ]
    [True, True, False]
    """
    base = name.rpartition("/")[2]
    extension = full_extension(name).split(".")[0]
    may_be_text = extension in ("txt", "text", *COMPRESSED_EXTENSIONS)
    if extension in DATA_EXTENSIONS and not may_be_text:
        return False
    if extension not in _DOCUMENTATION_WORDS:
        base = base.partition(".")[0]
    words = _NAME_WORD.findall(base)
    lower_words = {word.lower() for word in words}
    return bool(words) and (
        _CAPITAL_NAMES.issuperset(words)
        or (
            not lower_words.isdisjoint(_DOCUMENTATION_NAMES)
            and lower_words <= _DOCUMENTATION_NAMES | _DOCUMENTATION_WORDS
        )
    )


def sniff_file(file: InputFile) -> Content:
    """Detects the content of a file from its first bytes.

    Raises:
        UsageError: The file can't be read.
    """
    try:
        head = read_range(file.path, 0, HEAD_BYTES).tobytes()
    except OSError as error:
        raise UsageError(f"{file.path}: can't be read: {error.strerror}") from error
    return sniff_kind(head, file.name, file.stat.size_bytes)


def sniff_kind(head: bytes, name: str, size_bytes: int) -> Content:
    """Detects the content of a file from its first bytes and its name.

    Args:
        head: The first HEAD_BYTES of the file, or the complete file if it is shorter.
        name: The name of the file. Its extension decides if the bytes fit several kinds.
        size_bytes: The size of the file.
    """
    extension = full_extension(name)
    hint = KIND_BY_EXTENSION.get(extension.split(".")[0])
    if not head:
        return Content(hint or OTHER_CONTENT, "an empty file")
    # Binary kinds come first: their signatures are certain, while text formats look alike.
    is_complete = size_bytes == len(head)
    content = _match_kinds(
        ContentSample(head, size_bytes, is_complete, hint), is_textual=False
    ) or _detect_foreign_format(head)
    if content is not None:
        return content
    compression = resolve_compression(head)
    if compression != UNCOMPRESSED:
        head, is_complete = find_codec(compression).algorithm.decompress_head(head, HEAD_BYTES)
        content = _match_kinds(
            # The decompressed size is unknown, so any record size is possible.
            ContentSample(head, len(head) if is_complete else 1 << 62, is_complete, hint),
            is_textual=False,
        ) or _detect_foreign_format(head)
        if content is not None:
            return _add_compression(content, compression)
    text = _decode_head(head, is_complete=is_complete)
    if text is None:
        return Content(hint or BINARY_CONTENT, UNKNOWN_FORMAT)
    sample = ContentSample(head, size_bytes, is_complete, hint, text)
    content, main_extension = _match_kinds(sample, is_textual=True), extension.split(".")[0]
    if is_documentation(name):
        return Content(OTHER_CONTENT, "a paper")
    if content is not None and hint is not None and not find_kind(hint).is_textual:
        # For example, the file is an error page or a Git LFS pointer that was saved under the name
        # of the data.
        return Content(hint, f"{content.detail}, which does not fit its extension")
    # Many services write their logs as JSON Lines, which are data.
    is_objects = main_extension == "log" and content is not None and content.kind == JSONL_CONTENT
    if main_extension in NO_DATA_EXTENSIONS and not is_objects:
        return Content(OTHER_CONTENT, f"a .{extension} file")
    content = content or Content(OTHER_CONTENT, *_detect_document(sample))
    return _add_compression(content, compression)


def _add_compression(content: Content, compression: str) -> Content:
    """Returns the content with the compression in its detail, before the remedy."""
    if compression == UNCOMPRESSED:
        return content
    detail, separator, remedy = content.detail.partition(";")
    return content._replace(detail=f"{detail} in {compression}{separator}{remedy}")


def _match_kinds(sample: ContentSample, *, is_textual: bool) -> Content | None:
    """Returns the content according to the first kind that recognizes the sample, or None.

    Args:
        sample: The beginning of the file.
        is_textual: Whether only text formats or only binary formats are tried.
    """
    for kind in KINDS:
        if (
            kind.recognizer_path
            and kind.is_textual == is_textual
            and (detail := kind.recognizer(sample))
        ):
            return Content(kind.name, detail)
    return None


def _detect_foreign_format(head: bytes) -> Content | None:
    """Returns the content of a file in a known format that is not data.

    The first bytes determine the format. The result is None for other files, and for compressed
    content, which may be data.
    """
    file_format = sniff_file_format(head)
    if file_format is None or not file_format.description:
        return None
    return Content(BINARY_CONTENT, file_format.description)


def recognize_image(sample: ContentSample) -> str:
    """Recognizes images by their first bytes, including formats that builds can't read."""
    image_format = sniff_image(sample.head) or sniff_unsupported_image(sample.head)
    return "" if image_format is None else f"a {image_format} image"


def recognize_parquet(sample: ContentSample) -> str:
    """Recognizes Parquet by the first four bytes."""
    return "a Parquet file" if sample.head[:4] == b"PAR1" else ""


def recognize_arrow(sample: ContentSample) -> str:
    """Recognizes Arrow files by their first bytes, and Arrow streams by their first message.

    The first message of a stream contains its schema.
    """
    file_format = sniff_file_format(sample.head)
    if file_format is None or file_format.name not in (ARROW_FILE, ARROW_STREAM):
        return ""
    return "an Arrow file" if file_format.name == ARROW_FILE else "an Arrow stream"


def recognize_numpy(sample: ContentSample) -> str:
    """Recognizes NumPy files by their first bytes.

    An `.npz` file is a ZIP archive, so its extension must match too.
    """
    if sample.head.startswith(b"\x93NUMPY"):
        return "a NumPy array"
    return "a .npz of NumPy" if sample.hint == "numpy" and sample.head.startswith(b"PK") else ""


def recognize_tfrecord(sample: ContentSample) -> str:
    """Recognizes TFRecord files by the header of the first record.

    The CRC of the header must be correct, and the record must fit into the file. Logs of
    TensorBoard are not data, although they are such files.
    """
    file_format = sniff_file_format(sample.head)
    if file_format is not None and file_format.name == "TensorBoard":
        return ""
    header = np.frombuffer(sample.head[:_HEADER_BYTES], np.uint8)
    is_header = native.next_frame(header, 0, sample.size_bytes - _FRAME_OVERHEAD_BYTES, False) == 0
    return "a TFRecord file" if len(header) == _HEADER_BYTES and is_header else ""


def _decode_head(head: bytes, *, is_complete: bool) -> str | None:
    """Returns the head of a file as text, or None if it is binary.

    The encoding follows from a byte order mark. Without one it is UTF-8, or else Latin-1 as a
    substitute for any 8-bit encoding.
    """
    encoding = resolve_encoding(head, UTF8_ENCODING)
    if encoding != UTF8_ENCODING or head.startswith(codecs.BOM_UTF8):
        return head.decode("utf-8-sig" if encoding == UTF8_ENCODING else encoding, errors="replace")
    if b"\0" in head:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(head, final=is_complete)
    except UnicodeDecodeError:
        # Text in an 8-bit encoding has almost no control characters, except for white space, form
        # feed, SUB and ESC.
        controls = sum(head.count(byte) for byte in range(32) if byte not in b"\t\n\r\f\x1a\x1b")
        return None if controls * 100 > len(head) else head.decode("latin-1")


def recognize_jsonl(sample: ContentSample) -> str:
    """Recognizes JSON Lines by two objects on separate lines.

    If the extension is that of JSON Lines, any text is recognized.
    """
    text = sample.text or ""
    if text.lstrip()[:1] == "{":
        objects = _count_json_objects(text, is_complete=sample.is_complete)
        if objects >= 2 or (sample.hint == JSONL_CONTENT and objects != 0):
            return "JSON with one object per line"
    return "named as JSON lines" if sample.hint == JSONL_CONTENT else ""


def recognize_csv(sample: ContentSample) -> str:
    """Recognizes CSV by rows with the same number of fields, or by the extension.

    Content that begins like JSON or markup is never CSV.
    """
    if sample.hint == JSONL_CONTENT or _detect_document(sample)[0]:
        return ""
    num_fields, delimiter = _find_table_shape(
        sample.text or "", is_complete=sample.is_complete, is_named_csv=sample.hint == CSV_CONTENT
    )
    if num_fields:
        return f"a table with {num_fields} fields per row, separated by {delimiter!r}"
    return "named as CSV" if sample.hint == CSV_CONTENT else ""


def recognize_text(sample: ContentSample) -> str:
    """Recognizes text that begins neither like JSON nor like markup."""
    return "" if _detect_document(sample)[0] else "text"


def _detect_document(sample: ContentSample) -> tuple[str, str]:
    """Detects a text that is a single document, without records on separate lines.

    Such a document is a JSON value or markup.

    Returns:
        (format, remedy), both for messages. ("", "") if the text may contain records.
    """
    start = (sample.text or "").lstrip()
    if start[:1] == "[" and start[1:].lstrip()[:1] == "{":
        return JSON_ARRAY_FORMAT, ""
    if start[:1] in ("{", "["):
        if (path := _find_record_path(start)) is not None:
            return JSON_DOCUMENT_FORMAT, Message(
                "its member {path} is an array of objects: `recordmill build jsonl` with {record_path} reads it",
                path=repr(path),
                record_path=option("record_path", path),
            )
        if sample.is_complete:
            return JSON_DOCUMENT_FORMAT, _find_document_remedy(start)
        if start[0] == "[":
            return JSON_DOCUMENT_FORMAT, _ARRAY_REMEDY
        return JSON_DOCUMENT_FORMAT, Message(
            "if one of its members is an array of objects, `recordmill build jsonl` with {record_path} reads the member "
            "KEY",
            record_path=option("record_path", "KEY"),
        )
    return ("markup", "") if start[:1] == "<" and sample.hint is None else ("", "")


def _find_document_remedy(text: str) -> str:
    """Returns how to build a complete JSON document without an array of objects.

    >>> _find_document_remedy('{"a": [1, 2], "b": [3, 4]}')[:35]
    "its members 'a', 'b' are arrays of "
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return (
            "it is not valid JSON: `recordmill build csv` reads it as a table, and `recordmill build "
            "text` its lines"
        )
    if isinstance(document, list):
        return _ARRAY_REMEDY if document else "the array is empty"
    if document.keys() >= {"columns", "data"}:
        return (
            "if pandas has written it: in Python, recordmill.build(pandas.DataFrame(document['data'], "
            "columns=document['columns']), OUT) reads it"
        )
    one_record = (
        "in Python, recordmill.build([document], OUT) reads it as one record"
        if "\n" in text.rstrip()
        else "`recordmill build jsonl` reads it as one record"
    )
    values = document.values()
    if document and all(isinstance(value, dict) for value in values):
        return (
            f"each of its members is an object: {one_record}, and recordmill.build("
            "list(document.values()), OUT) in Python a record for each member"
        )
    if not document or not all(isinstance(value, list) for value in values):
        return one_record
    names = ", ".join(map(repr, list(document)[:_MAX_NAMED_MEMBERS]))
    more = ", ..." if len(document) > _MAX_NAMED_MEMBERS else ""
    subject = (
        f"members {names}{more} are arrays" if len(document) > 1 else f"member {names} is an array"
    )
    columns = (
        ", and recordmill.build(document, OUT) in Python reads the arrays as columns"
        if len(set(map(len, values))) == 1
        else ""
    )
    return f"its {subject} of values, not of objects: {one_record}{columns}"


def _find_record_path(text: str) -> str | None:
    """Returns the path of the first array of objects in a JSON document.

    Returns None if there is no such array.

    >>> _find_record_path('{"v": 1, "result": {"data": [{"a": 1}, {"a":')
    'result.data'

    Args:
        text: The beginning of the document.
    """
    decoder, keys, position = json.JSONDecoder(), list[str](), 0
    try:
        while len(keys) < _MAX_KEY_DEPTH:
            position = _skip_json_space(text, position + 1)  # after `{` or `,`
            key, position = decoder.raw_decode(text, position)
            position = _skip_json_space(text, _skip_json_space(text, position) + 1)
            if text[position] == "{":
                # The array may be in this object. If it is not, the text after it is not searched.
                keys.append(key)
                continue
            if text[position] == "[" and text[_skip_json_space(text, position + 1)] == "{":
                return ".".join([*keys, key])
            _, position = decoder.raw_decode(text, position)
            position = _skip_json_space(text, position)
            while text[position] == "}":
                keys.pop()
                position = _skip_json_space(text, position + 1)
    except (ValueError, IndexError, TypeError, RecursionError):
        return None  # the text ends, or it is not JSON
    return None


def _skip_json_space(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _count_json_objects(text: str, *, is_complete: bool) -> int:
    """Counts the JSON objects among the first 20 complete lines of a text.

    Returns:
        The number of objects. It is 0 if one of these lines is not an object, and -1 if no line is
        complete.
    """
    lines = text.split("\n")
    complete_lines = [line for line in (lines if is_complete else lines[:-1]) if line.strip()][:20]
    for line in complete_lines:
        try:
            if not isinstance(json.loads(line), dict):
                return 0
        # Deeply nested lists count as an object here. Reading rejects the record later.
        except RecursionError:
            if not line.lstrip().startswith("{"):
                return 0
        except ValueError:
            return 0
    return len(complete_lines) or -1


def _find_table_shape(text: str, *, is_complete: bool, is_named_csv: bool) -> tuple[int, str]:
    """Finds the delimiter that splits most rows into the same number of fields.

    At least nine of ten rows must have that number.

    Args:
        text: The head of the file.
        is_complete: Whether the text is the complete file, so that its last line is complete.
        is_named_csv: Whether the extension suggests CSV. Otherwise a table needs _MIN_TABLE_ROWS
            rows.

    Returns:
        (fields per row, delimiter) of the delimiter with the most fields. (0, "") if no delimiter
        yields at least two fields.
    """
    lines = text.splitlines(keepends=True)[:200]
    # The head may end in the middle of the last line.
    if not is_complete and len(lines) > 1 and len(lines) < 200:
        del lines[-1]
    best_shape = (0, "")
    for delimiter in _DELIMITERS:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            continue
        if not widths:
            continue
        width, rows = Counter(widths).most_common(1)[0]
        if (
            width > max(best_shape[0], 1)
            and rows >= 0.9 * len(widths)
            and (is_named_csv or len(widths) >= _MIN_TABLE_ROWS)
        ):
            best_shape = (width, delimiter)
    return best_shape


@dataclass(frozen=True)
class _ExtensionGroup:
    """Files of a listing with the same extension.

    The content of some of them was sampled. Documentation files with the same extension form a
    separate group.

    Attributes:
        extension: The extension, see `full_extension`.
        is_documentation: Whether these are documentation files.
        num_files: Number of files.
        kind_counts: Number of sampled files by kind.
        example: Content of a sampled file of the most common kind.
        example_name: The name of that file.
    """

    extension: str
    is_documentation: bool
    num_files: int
    kind_counts: Counter[str]
    example: Content  # of the most common kind
    example_name: str

    @property
    def kind(self) -> str:
        return self.kind_counts.most_common(1)[0][0]


def detect_kind(
    listing: Listing, kinds: Collection[str] = KIND_NAMES, *, has_kind_argument: bool = True
) -> tuple[str, str]:
    """Detects the kind of the data in a listing.

    The result is the kind of more than half of all files that contain data. The share of each kind
    is estimated from a few samples of each extension.

    Args:
        listing: The files.
        kinds: The kinds that the user's options apply to. Files of other kinds only count if there
            are no files of these kinds.
        has_kind_argument: Whether the user can choose a kind with an argument of the command.

    Returns:
        (kind, a sentence with the reason).

    Raises:
        UsageError: No kind has more than half of the files, or no file contains data. The message
            lists the candidates and says how to choose one.
    """
    groups = _group_by_extension(listing.files)
    counts: defaultdict[str, float] = defaultdict(float)
    for group in groups:
        for kind, sampled in group.kind_counts.items():
            counts[kind] += group.num_files * sampled / group.kind_counts.total()
    files_by_kind = {kind: counts[kind] for kind in KIND_NAMES if counts[kind] > 0}
    if not files_by_kind and len(kinds) == 1:
        (kind,) = kinds
        return kind, f"{kind}, because of the options"
    if not files_by_kind and (
        array_group := next(
            (group for group in groups if group.example.detail.startswith(JSON_ARRAY_FORMAT)), None
        )
    ):
        return JSONL_CONTENT, f"{JSONL_CONTENT}: {array_group.example_name} is {JSON_ARRAY_FORMAT}"
    if (
        not files_by_kind
        and counts[OTHER_CONTENT] > 0
        and not any(group.example.detail.startswith(JSON_DOCUMENT_FORMAT) for group in groups)
    ):
        return TEXT_CONTENT, f"text: nothing but {_describe_extensions(groups, (OTHER_CONTENT,))}"
    if not files_by_kind:
        example_group = max(
            groups,
            key=lambda group: (
                group.example.detail.startswith(JSON_DOCUMENT_FORMAT),
                group.num_files,
            ),
        )
        raise UsageError(
            "no supported data found ({files}: {extensions}; {name} is {description}). The kinds are {kinds}",
            files=format_count(len(listing.files), "file"),
            extensions=_describe_extensions(groups, (OTHER_CONTENT, BINARY_CONTENT)),
            name=example_group.example_name,
            description=example_group.example.description,
            kinds=", ".join(KIND_NAMES),
        )
    files_by_kind = {
        kind: count for kind, count in files_by_kind.items() if kind in kinds
    } or files_by_kind
    kind = max(files_by_kind, key=lambda candidate: files_by_kind[candidate])
    # Without a clear majority the user must choose. The label files of YOLO are often most files.
    yolo = find_yolo_folders(listing) if IMAGE_CONTENT in files_by_kind else None
    is_labels = yolo is not None and find_kind(kind).is_textual
    if is_labels or 2 * files_by_kind[kind] <= sum(files_by_kind.values()):
        candidates = "; ".join(
            f"{name} ({count:.0f} file(s), such as {_largest_group(groups, name).example_name})"
            for name, count in files_by_kind.items()
        )
        if not has_kind_argument:
            raise UsageError(
                f"the inputs contain several kinds of data: {candidates}. Name the files of one kind"
            )
        commands = " or ".join(f"`recordmill build {name} ...`" for name in files_by_kind)
        raise UsageError(
            (
                "the inputs contain several kinds of data: {candidates}. Use {commands}, "
                "or name the files{hint}"
            ),
            candidates=candidates,
            commands=commands,
            hint=_annotation_hint(listing, files_by_kind, yolo),
        )
    largest_group = _largest_group(groups, kind)
    reason = f"{kind}: {largest_group.example_name} is {largest_group.example.detail}"
    other_extensions = _describe_extensions(
        groups, [name for name in (*KIND_NAMES, OTHER_CONTENT, BINARY_CONTENT) if name != kind]
    )
    return kind, f"{reason}; other files: {other_extensions}" if other_extensions else reason


def filter_kind(listing: Listing, kind: str) -> Listing:
    """Removes the files of other kinds from a listing.

    All files with one extension are kept or removed together, according to the kind of most
    samples. Files that the user has named explicitly are kept. If `kind` is a text format and no
    extension matches it, all text files are kept.

    Returns:
        The listing with the remaining files. Its notes count the removed files by extension.

    Raises:
        UsageError: No file is left.
    """
    is_textual = find_kind(kind).is_textual
    groups = _group_by_extension(listing.files)
    matching_groups = [group for group in groups if group.kind == kind]
    if not matching_groups and kind == JSONL_CONTENT:
        matching_groups = [
            group for group in groups if group.example.detail.startswith(JSON_ARRAY_FORMAT)
        ]
    if not matching_groups and is_textual:
        matching_groups = [group for group in groups if group.kind in _TEXTUAL_KINDS]
    keys = {(group.extension, group.is_documentation) for group in matching_groups}
    is_kept = np.fromiter(
        (_group_key(name) in keys for name in listing.files.names()), np.bool_, len(listing.files)
    )
    # The user knows best about files that are named explicitly.
    is_kept |= listing.explicit_mask(~is_kept)
    if not is_kept.any():
        raise UsageError(
            f"no {kind} among {len(listing.files)} file(s): "
            f"{_describe_extensions(groups, (*KIND_NAMES, OTHER_CONTENT, BINARY_CONTENT))}"
        )
    files = listing.files.filter(is_kept)
    ignored_counts = Counter(
        full_extension(name) for name in listing.files.filter(~is_kept).names()
    )
    ignored = {
        **listing.ignored,
        **{
            f"of another kind: {_format_extension(ending)}": count
            for ending, count in ignored_counts.items()
        },
    }
    return replace(
        listing,
        files=files,
        ignored=ignored,
        notes=(*listing.notes, *note_extensions(kind, files, ignored_counts)),
    )


def find_yolo_folders(listing: Listing) -> tuple[str, str] | None:
    """Returns the folders of the images and the labels of a YOLO data set.

    Both paths begin with the input as the user typed it. The result is None if the input is not one
    folder, or if no text file with the name of an image has lines in YOLO's format.
    """
    if len(listing.roots) != 1 or not listing.roots[0].is_folder:
        return None
    stems, texts = set[str](), list[tuple[int, str]]()
    for index, name in enumerate(listing.files.names()):
        stem, ending = _stem(name), full_extension(name)
        if KIND_BY_EXTENSION.get(ending) == IMAGE_CONTENT:
            stems.add(stem)
        elif ending == "txt":
            texts.append((index, stem))
    named = [listing.files[index] for index, stem in texts if stem in stems]
    heads = (read_head_for_message(file) for file in named[:_MAX_YOLO_FILES])
    if not any(map(_YOLO_LINE.match, heads)):
        return None
    root = listing.roots[0].argument.rstrip("/")
    at_top = {"images", "labels"} <= {name.split("/")[0] for name in listing.files.names()}
    return (f"{root}/images", f"{root}/labels") if at_top else (root, root)


def _stem(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0]


def read_head_for_message(file: InputFile) -> bytes:
    """Returns the first bytes of a file, or b"" after an error.

    Use it only for messages.
    """
    with contextlib.suppress(OSError):
        return read_range(file.path, 0, HEAD_BYTES).tobytes()
    return b""


def _annotation_hint(
    listing: Listing, kinds: Collection[str], yolo: tuple[str, str] | None
) -> Message | str:
    """Returns a hint for inputs that contain images and files that may describe them.

    The hint is the end of an error message. It is "" if there is nothing to suggest.

    Args:
        listing: All files.
        kinds: The kinds that have files.
        yolo: The result of `find_yolo_folders`.
    """
    if yolo is not None:
        return Message(
            ". This is a data set of YOLO: `recordmill build images {images}` with {boxes}",
            images=yolo[0],
            boxes=option("boxes", yolo[1]),
        )
    if IMAGE_CONTENT not in kinds or not {CSV_CONTENT, JSONL_CONTENT}.intersection(kinds):
        return ""
    if len(listing.roots) != 1 or not listing.roots[0].is_folder:
        return ""
    root = listing.roots[0].argument
    return Message(
        ". If the tables describe the images, {labels} or {boxes} reads labels or boxes from them",
        labels=option("labels", root),
        boxes=option("boxes", root),
    )


def note_extensions(
    kind: str, files: FileTable, ignored_counts: Mapping[str, int]
) -> tuple[str, ...]:
    """Returns notes about the extensions of used and of ignored files.

    Args:
        kind: The name of the kind.
        files: The files of the kind. A note lists their extensions if there are several.
        ignored_counts: Number of ignored files by extension. A note lists them unless this is
            empty.
    """
    kept_counts = Counter(map(full_extension, files.names()))
    return (
        *(
            (f"files of the {kind}: {format_extension_counts(kept_counts)}",)
            if len(kept_counts) > 1
            else ()
        ),
        *(
            (f"ignored beside the {kind}: {format_extension_counts(ignored_counts)}",)
            if ignored_counts
            else ()
        ),
    )


def _group_key(name: str) -> tuple[str, bool]:
    return full_extension(name), is_documentation(name)


def _group_by_extension(files: FileTable) -> list[_ExtensionGroup]:
    counts = Counter(map(_group_key, files.names()))
    samples = _sample_contents(files, counts)
    groups = []
    for (extension, is_documentation), count in sorted(counts.items()):
        contents = samples[extension, is_documentation]
        kind_counts = Counter(content.kind for content, _ in contents)
        example, name = next(
            item for item in contents if item[0].kind == kind_counts.most_common(1)[0][0]
        )
        groups.append(
            _ExtensionGroup(
                extension=extension,
                is_documentation=is_documentation,
                num_files=count,
                kind_counts=kind_counts,
                example=example,
                example_name=name,
            )
        )
    return groups


def _sample_contents(
    files: FileTable, counts: Mapping[tuple[str, bool], int]
) -> dict[tuple[str, bool], list[tuple[Content, str]]]:
    """Detects the content of a few files of each group.

    Args:
        files: All files.
        counts: Number of files by group key, see `_group_key`.

    Returns:
        (content, file name) of up to SAMPLES_PER_EXTENSION files, by group key. The samples are
        spread evenly over the group.
    """
    # Spread evenly from the first to the last file of each group.
    sample_indices = {
        key: {
            int(index * max(count / SAMPLES_PER_EXTENSION, 1.0))
            for index in range(min(SAMPLES_PER_EXTENSION, count))
        }
        for key, count in counts.items()
    }
    samples: dict[tuple[str, bool], list[tuple[Content, str]]] = {key: [] for key in counts}
    num_passed = Counter[tuple[str, bool]]()
    for index, name in enumerate(files.names()):
        key = _group_key(name)
        if num_passed[key] in sample_indices[key]:
            samples[key].append((sniff_file(files[index]), name))
        num_passed[key] += 1
    return samples


def _largest_group(groups: Sequence[_ExtensionGroup], kind: str) -> _ExtensionGroup:
    """Returns the largest group that has `kind` as its most common kind.

    If there is no such group, the result is the group with the most samples of this kind.
    """
    return max(
        groups, key=lambda group: (group.kind == kind, group.kind_counts[kind], group.num_files)
    )


def _describe_extensions(groups: Sequence[_ExtensionGroup], kinds: Sequence[str]) -> str:
    counts: Counter[str] = Counter()
    for group in groups:
        if group.kind in kinds:
            counts[group.extension] += group.num_files
    return format_extension_counts(counts)


def format_extension_counts(counts: Mapping[str, int]) -> str:
    """Formats the number of files by extension, for messages.

    >>> format_extension_counts({"txt": 2, "": 1})
    '1 without extension, 2 .txt'
    """
    return ", ".join(
        f"{count} {_format_extension(extension)}" for extension, count in sorted(counts.items())
    )


def _format_extension(extension: str) -> str:
    return f".{extension}" if extension else "without extension"
