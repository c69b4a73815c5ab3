"""The option of the user's own parser."""

from __future__ import annotations

from recordmill.options.declare import Options, declare
from recordmill.sources.parser.function import ParserFunction, to_parser_function


class ParserOptions(Options, heading="records"):
    """The option of the user's own parser."""

    parser: ParserFunction | None = declare(
        "your function that parses a file of any format: it returns or yields dicts of features, or RecordBatches",
        default=None,
        parse=to_parser_function,
        files_only=True,
        decides=True,
        common=True,
        metavar="FILE.py:FUNCTION",
        excludes=(("kind", None),),
    )
