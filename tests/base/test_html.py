"""Text in HTML can add neither tags nor invisible characters."""

from html.parser import HTMLParser
from unicodedata import category

from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.html import cell_text, escape, section, table


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


TEXTS = st.text() | st.text(alphabet="<>&\"'/abi=;\u202e\u200d\a\n")


@given(TEXTS)
def test_escaped_text_has_no_tag_and_no_invisible_character(text: str) -> None:
    escaped = escape(text)
    assert not any(
        category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\n\t\u200c\u200d"
        for char in escaped
    )
    parsed = Tags(escaped)
    assert parsed.tags == []
    if text.isascii() and text.isprintable():
        assert parsed.text == text


@given(TEXTS, TEXTS)
def test_tables_and_sections_have_only_their_own_tags(name: str, value: str) -> None:
    page = table([name, "b"], [[value, None], [b"<i>", 1.5]])
    assert Tags(page).tags == [
        *("table", "thead", "tr", "th", "th", "tbody"),
        *("tr", "td", "td") * 2,
    ]
    assert Tags(section(name, page, lines=[value])).tags == [
        *("div", "p", "b"),
        *Tags(page).tags,
        "p",
    ]


def test_long_cell_is_shortened_before_it_is_escaped() -> None:
    assert len(cell_text("x" * 200)) == 200
    assert cell_text("<" * 201) == "<" * 197 + "..."
    assert table(["a"], [["&" * 300]]).count("&amp;") == 197
