"""While a job runs Beam and its job servers say nothing, everybody else what they say, and nothing stays as it was
set.
"""

from __future__ import annotations

import logging
import os
import threading

import pytest

from recordmill.pipelines.remote.quiet import quiet


def test_beam_says_nothing_meanwhile_and_others_what_they_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import apache_beam

    root, hook = logging.getLogger(), threading.excepthook
    monkeypatch.setattr(root, "handlers", [])
    within = os.path.join(os.path.dirname(apache_beam.__file__), "utils", "subprocess_server.py")
    as_beam_does = compile("import logging; logging.warning('of no logger')", within, "exec")
    with quiet():
        exec(as_beam_does)
        logging.getLogger("apache_beam.runners").error("of its logger")
        logging.getLogger("FlinkJarJobServer").error("of its server")
        logging.getLogger("mine").warning("mine")
    assert capsys.readouterr().err == "mine\n"
    assert (root.handlers, root.filters, threading.excepthook) == ([], [], hook)
    exec(as_beam_does)
    assert "of no logger" in capsys.readouterr().err
