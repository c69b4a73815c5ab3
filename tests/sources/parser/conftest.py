"""Files in a custom format, and functions that parse them."""

from pathlib import Path

import pytest
from kit.parser_inputs import make_parser_inputs

PARSER = """
import os, signal, sys, time

def log(path):
    with open(os.environ["PARSER_LOG"], "a") as file:
        file.write(os.path.basename(path) + "\\n")

def parse(path):
    log(path)
    print("this goes to standard error")
    for number, line in enumerate(open(path)):
        yield {"file": os.path.basename(path), "number": number, "values": [float(word) for word in line.split()]}

def parse_or_fail(path):
    for row in parse(path):
        yield row
        if row["file"] == "2.dat":
            raise ValueError("bad header")

def parse_or_die(path):
    if path.endswith("2.dat"):
        os.kill(os.getpid(), signal.SIGKILL)
    return list(parse(path))

def parse_slowly(path):
    yield from parse(path)
    time.sleep(float(os.environ.get("PARSER_SLEEP", "0")))

def parse_for_ever(path):
    while True:
        pass

def parse_types(path):
    yield {"x": "text" if path.endswith("2.dat") else 1}

def nothing(path):
    return None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_parser_inputs(tmp_path, PARSER, monkeypatch)
