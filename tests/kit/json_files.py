"""JSON documents that contain a list of rows."""

from typing import Any

TEXT = 'a ] "quoted" [ \\ , {\n}'


ROWS = [{"a": at, "text": TEXT, "list": [at, at + 1], "deep": {"b": [at] * 2}} for at in range(50)]


DOCUMENTS: list[tuple[Any, str]] = [
    ({"version": "1", "data": ROWS}, "data"),
    ({"data": ROWS, "after": {"data": [1]}, "x": '{"data": ['}, "data"),
    ({"a": {"result": [0]}, "result": {"n": 1, "records": ROWS}, "z": 1}, "result.records"),
    ({'q"uoted': [{"data": 1}], "x": "data", "data": ROWS}, "data"),
    ({"datas": 1, "dat": 2, "data": ROWS}, "data"),
]
