"""Difficult contents of CSV files, and options to read them."""

from hypothesis import strategies as st

from recordmill.sources.csv.options import CsvOptions

LONG = b"x" * 61  # moves the next bytes across a boundary of the 64-byte blocks


pieces = st.sampled_from(
    [
        b"a",
        b"1",
        b",",
        b",",
        b'"',
        b'"',
        b"\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\\",
        b"#",
        b" ",
        b"\t",
        LONG,
        b"\xc3\xa9",
    ]
)


dialects = st.builds(
    CsvOptions,
    quote=st.sampled_from(['"', '"', "'", None]),
    doubled_quote=st.booleans(),
    lenient_quotes=st.booleans(),
    escape=st.sampled_from([None, None, "\\"]),
    comment=st.sampled_from([None, "#"]),
    trim=st.booleans(),
    max_line_bytes=st.sampled_from([1 << 20, 100, 12, 3]),
)


# Many lines are blank.
pieces_of_lines = st.sampled_from(
    [b"\n", b"\n", b"\r\n", b"\r\n", b"\r", b"1", b"ab", b'"a\r\n"', b'""', b"#c", b"x" * 61]
)


contents_of_lines = st.lists(pieces_of_lines, min_size=1, max_size=30).map(b"".join)


options = st.builds(
    CsvOptions,
    comment=st.sampled_from([None, "#"]),
    trim=st.booleans(),
    escape=st.sampled_from([None, "\\"]),
    max_line_bytes=st.sampled_from([1 << 20, 12]),
)
