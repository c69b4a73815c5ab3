"""JSON documents that contain a list of rows."""

from typing import Any

TEXT = 'a ] "quoted" [ \\ , {\n}'


ROWS = [
    {"a": row, "text": TEXT, "list": [row, row + 1], "deep": {"b": [row] * 2}} for row in range(50)
]


DOCUMENTS: list[tuple[Any, str]] = [
    ({"version": "1", "data": ROWS}, "data"),
    ({"data": ROWS, "after": {"data": [1]}, "x": '{"data": ['}, "data"),
    ({"a": {"result": [0]}, "result": {"n": 1, "records": ROWS}, "z": 1}, "result.records"),
    ({'q"uoted': [{"data": 1}], "x": "data", "data": ROWS}, "data"),
    ({"datas": 1, "dat": 2, "data": ROWS}, "data"),
]
