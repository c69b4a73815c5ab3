"""The text of a violation contains its place and a remedy."""

from recordmill.checks.violations import Violation


def test_violation_text_has_place_and_remedy() -> None:
    violation = Violation(
        "leakage", "3 records leak", "take them out", None, "test", 0.5, 0.0, "a.tfrecord", 7
    )
    assert str(violation) == "a.tfrecord, record 7: test: leakage: 3 records leak; take them out"
    assert violation.to_json() == {
        "check": "leakage",
        "what": "3 records leak",
        "remedy": "take them out",
        "feature": None,
        "split": "test",
        "figure": 0.5,
        "threshold": 0.0,
        "file": "a.tfrecord",
        "record": 7,
        "is_judged": True,
    }
