"""How many examples the adversarial tests draw."""

from hypothesis import HealthCheck, settings

CI = 300
"""What ``make test`` draws of each; ``--hypothesis-profile thorough`` draws more."""


def budget(share: float = 1.0) -> settings:
    """The settings of a test that draws its share of the examples."""
    wanted = max(CI, settings().max_examples)
    # A lowering per example is slow for Hypothesis's taste.
    return settings(
        max_examples=max(1, round(wanted * share)), suppress_health_check=[HealthCheck.too_slow]
    )
