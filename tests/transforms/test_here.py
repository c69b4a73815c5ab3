"""What a build in one process sets in Beam."""

from __future__ import annotations

import pytest

from recordmill.transforms.here import look_often

statesampler = pytest.importorskip("apache_beam.runners.worker.statesampler")


class _Other:
    def __init__(self, prefix: str, sampling_period_ms: int = 200, more: int = 5) -> None:
        self.given = prefix, sampling_period_ms, more


def test_beams_sampler_looks_often() -> None:
    look_often()
    assert statesampler.StateSampler.__init__.__defaults__ == (10,)


@pytest.mark.parametrize("other", [_Other, object])
def test_a_sampler_of_another_kind_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, other: type) -> None:
    monkeypatch.setattr(statesampler, "StateSampler", other)
    look_often()
    assert _Other("a").given == ("a", 200, 5)
