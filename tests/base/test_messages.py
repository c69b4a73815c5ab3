"""Messages keep their options when they are nested, joined or pickled.

They never show passwords.
"""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.errors import UsageError
from recordmill.base.messages import (
    Message,
    OptionMention,
    as_message,
    join_messages,
    redact_passwords,
    render,
    shorten,
)
from recordmill.base.option_names import option


def as_flag(mention: OptionMention) -> str:
    return f"--{mention.name.replace('_', '-')} {mention.value}"


def test_option_in_a_nested_message_is_shown_in_the_requested_spelling() -> None:
    inner = Message("use {max_rejects}", max_rejects=option("max_rejects", 3))
    message = Message("{file} is bad; {remedy}", file="a.csv", remedy=inner)
    assert str(message) == "a.csv is bad; use max_rejects=3"
    assert render(message, as_flag) == "a.csv is bad; use --max-rejects 3"
    assert [mention.name for mention in message.mentions()] == ["max_rejects"]


def test_pickled_message_keeps_its_options() -> None:
    message = Message("use {seed}", seed=option("seed", 7))
    unpickled = pickle.loads(pickle.dumps(message))
    assert render(unpickled, as_flag) == "use --seed 7"
    assert unpickled == message


def test_field_that_looks_like_a_template_is_shown_as_it_is() -> None:
    message = Message("{file}: {reason}", file="{reason}", reason="{0} {}")
    assert str(message) == "{reason}: {0} {}"
    assert str(join_messages(" {x} ", ["{a}", "b"])) == "{a} {x} b"


def test_joined_messages_keep_their_options() -> None:
    joined = join_messages("; ", [option("seed", 1), "or", Message("{x}", x=option("name", "a"))])
    assert render(joined, as_flag) == "--seed 1; or; --name a"


def test_format_that_would_lose_an_option_is_an_error_in_tests() -> None:
    mention = option("seed", 1)
    for use in (lambda: f"{mention}", lambda: mention + "x", lambda: "x" + mention):
        with pytest.raises(TypeError, match="would be lost"):
            use()
    assert f"{Message('no option {x}', x=1)}" == "no option 1"


def test_value_of_an_option_is_written_as_python_writes_it() -> None:
    assert option("splits", {"a": 0.5}) == 'splits={"a": 0.5}'
    assert option("shuffle", False) == "shuffle=False"
    assert option("out", Path("a/b")) == 'out="a/b"'
    assert option("out") == "out="


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
        ("see https://me:p/w?#@host/a.", "see https://***@host/a."),
        ("https://token@host/a", "https://***@host/a"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("mail me@host", "mail me@host"),
    ],
)
def test_passwords_of_urls_are_replaced(text: str, redacted: str) -> None:
    assert redact_passwords(text) == redacted
    assert render(Message("{url}", url=text), as_flag) == redacted


def test_short_message_keeps_its_parts_and_a_long_one_is_cut() -> None:
    message = Message("use {seed}", seed=option("seed", 7))
    assert shorten(message, 100) is message
    assert shorten(message, 5) == "use s"


SEED = OptionMention("seed", 3)


def flag(option: OptionMention) -> str:
    return f"--{option.name}"


@given(st.text(), st.text())
def test_text_of_a_field_is_never_searched(prefix: str, text: str) -> None:
    template = prefix.replace("{", "{{").replace("}", "}}") + "{text} {seed}"
    message = Message(template, text=text, seed=SEED)
    assert str(message) == f"{prefix}{text} seed=3"
    assert message.render(flag) == f"{prefix}{text} --seed"


def test_object_with_a_message_becomes_its_message() -> None:
    error = UsageError("{seed} is wrong", seed=SEED)
    assert render(error, flag) == "--seed is wrong"
    assert as_message(OSError("no disk")) == "no disk"
    message = Message("{error}; {path}", error=error, path=Path("a b"))
    assert message == "seed=3 is wrong; a b"
    assert message.render(flag) == "--seed is wrong; a b"
