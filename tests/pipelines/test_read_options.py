"""Options of a read are checked once, before any record is read."""

from typing import Any

import pytest

from recordmill.base.errors import UsageError
from recordmill.pipelines.read_options import make_settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "xlsx"}, "to="),
        ({"limit": -1}, "limit"),
        ({"sample": 2}, "sample"),
        ({"threads": -1}, "threads"),
        ({"memory": "x"}, "memory="),
        ({"max_rejects": "x"}, "max_rejects="),
        ({"decode_raw": "x"}, "decode_raw="),
        ({"pad": "x=0:1"}, "pad="),
        ({"resize": "big", "decode_images": True}, "resize="),
    ],
)
def test_impossible_value_is_refused_by_the_name_of_its_option(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_settings(**options)


def test_unknown_option_names_the_closest_one() -> None:
    with pytest.raises(TypeError, match="read has no option limits; did you mean limit"):
        make_settings(limits=3)


def test_option_of_another_output_is_refused() -> None:
    with pytest.raises(UsageError, match="name_feature"):
        make_settings(to="npy", name_feature="x")


def test_defaults_read_on_threads_of_this_process() -> None:
    settings = make_settings()
    assert settings.run.runner is None
    assert not settings.overwrite
