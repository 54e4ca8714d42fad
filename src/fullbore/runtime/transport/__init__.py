"""How ranks exchange messages."""

from fullbore.runtime.transport.base import Edge, Transport, describe_tag, make_tag
from fullbore.runtime.transport.local import LocalTransport

__all__ = ["Edge", "LocalTransport", "Transport", "describe_tag", "make_tag"]
