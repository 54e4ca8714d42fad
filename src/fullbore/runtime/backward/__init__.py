"""Full backward, and backward in two parts that a schedule can place apart."""

from fullbore.runtime.backward.engine import Root
from fullbore.runtime.backward.split import SplitBackward, full_backward

__all__ = ["Root", "SplitBackward", "full_backward"]
