"""The names that `import fullbore` gives; adding or removing one is a decision."""

import fullbore as fb

PUBLIC = {
    *("build", "verify", "check", "lower", "run_passes", "load", "loads", "save", "dumps"),
    *("Schedule", "Action", "Kind", "Form", "Placement", "Finding", "FAMILIES"),
    *("FullboreError", "FormatError", "ParameterError", "InvalidSchedule", "PassError"),
    *("MissingExtra", "ExecutionError", "TransportError", "TransportTimeout", "PeerFailed"),
}


def test_the_public_names_are_these() -> None:
    assert set(fb.__all__) == PUBLIC
    assert all(hasattr(fb, name) for name in PUBLIC)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(fb, "biuld")
    assert set(dir(fb)) >= PUBLIC
