"""Options of the outputs of `read`.

The command line imports this module for its help, so it imports neither NumPy nor pyarrow.
"""

from __future__ import annotations

from recordmill.base.errors import UsageError
from recordmill.base.option_names import did_you_mean, option
from recordmill.base.sizes import format_size_option, parse_size
from recordmill.options.declare import Options, declare

# 64 MiB of Arrow memory. DuckDB and Spark read a row group per thread, and a group stays in memory
# until it is written.
ROW_GROUP_BYTES = 64 << 20
# pyarrow's own limit, 1,048,576 rows.
ROW_GROUP_ROWS = 1 << 20
# The memory of a read is planned for groups of this size, so users can't choose a larger one.
MAX_GROUP_BYTES = ROW_GROUP_BYTES
# The highest level of each compression. 0 means that it has no levels.
MAX_COMPRESSION_LEVELS = {"zstd": 22, "gzip": 9, "snappy": 0, "none": 0}
_OUTPUT_HEADING = "the output"


class ParquetOptions(Options, heading=_OUTPUT_HEADING, decides=True):
    """Options of the Parquet writer.

    Attributes:
        row_group_rows: Number of rows in a row group. None means as many as fit into
            `row_group_size`.
        row_group_size: Maximum size of a row group in bytes of Arrow memory. A row group that
            reaches it ends, even before `row_group_rows`.
        compression: A key of MAX_COMPRESSION_LEVELS, perhaps with a level as in `zstd:9`.

    Raises:
        UsageError: A value is out of range.
    """

    row_group_rows: int | None = declare(
        "rows per Parquet row group",
        default=None,
        default_text="as many as fit into --row-group-size",
    )
    row_group_size: int = declare(
        "size of a row group in Arrow memory, at most 64MiB",
        default=format_size_option(ROW_GROUP_BYTES),
        parse=parse_size,
        metavar="SIZE",
    )
    compression: str = declare(
        "compression of Parquet: zstd (level 1), gzip, snappy or none; with a level as in zstd:9",
        default="zstd",
        metavar="CODEC[:LEVEL]",
    )

    @property
    def codec(self) -> str:
        """The compression without its level."""
        return self.compression.partition(":")[0]

    @property
    def level(self) -> int | None:
        """The level of the compression, or None if the user has set none."""
        level = self.compression.partition(":")[2]
        return int(level) if level else None

    def __post_init__(self) -> None:
        codec, colon, level = self.compression.partition(":")
        compression = option("compression", self.compression)
        if colon and not level.isdecimal():
            raise UsageError(
                "{compression}: write a name, or a name and a level as in zstd:9",
                compression=compression,
            )
        if codec not in MAX_COMPRESSION_LEVELS:
            raise UsageError(
                "{compression}: must be one of {names}{suggestion}",
                compression=compression,
                names=", ".join(MAX_COMPRESSION_LEVELS),
                suggestion=did_you_mean(codec, MAX_COMPRESSION_LEVELS),
            )
        max_level = MAX_COMPRESSION_LEVELS[codec]
        if colon and not 1 <= int(level) <= max_level:
            raise UsageError(
                "{compression}: it has {levels}",
                compression=compression,
                levels=f"levels 1 to {max_level}" if max_level else "no levels",
            )
        if self.row_group_rows is not None and not 1 <= self.row_group_rows <= ROW_GROUP_ROWS:
            raise UsageError(
                "{row_group_rows}: must be 1 to {max_rows}",
                row_group_rows=option("row_group_rows", self.row_group_rows),
                max_rows=ROW_GROUP_ROWS,
            )
        if not 1 <= self.row_group_size <= MAX_GROUP_BYTES:
            raise UsageError(
                "{row_group_size}: must be 1 byte to {max_group_bytes} MiB",
                row_group_size=option("row_group_size", self.row_group_size),
                max_group_bytes=MAX_GROUP_BYTES >> 20,
            )


class FileOptions(Options, heading=_OUTPUT_HEADING, decides=True):
    """Options of the output `files`.

    Attributes:
        file_feature: The feature with the contents of the files. If None, it is detected from the
            content.
        name_feature: The feature that names the files. "" means the record's number. None means the
            feature `source` if its values differ between records, else the number.
    """

    file_feature: str | None = declare(
        "with --to files: feature of bytes or text that becomes the files",
        default=None,
        metavar="NAME",
    )
    name_feature: str | None = declare(
        "with --to files: feature of text or whole numbers that names the files ('' for the record's number)",
        default=None,
        metavar="NAME",
    )
