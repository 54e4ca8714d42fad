"""How many examples the adversarial tests draw."""

from hypothesis import HealthCheck, settings

CI = 300
"""What ``make test`` draws of each; ``--hypothesis-profile thorough`` draws more."""


def examples(share: float = 1.0) -> int:
    """How many a test draws for its share."""
    return max(1, round(share * max(CI, settings().max_examples)))


def budget(share: float = 1.0) -> settings:
    """The settings of a test that draws its share of the examples."""
    # A lowering per example is slow for Hypothesis's taste.
    return settings(max_examples=examples(share), suppress_health_check=[HealthCheck.too_slow])
