"""How ranks exchange messages."""

from fullbore.runtime.transport.base import Edge, Transport, describe_tag, make_tag
from fullbore.runtime.transport.local import LocalTransport
from fullbore.runtime.transport.p2p import P2PTransport
from fullbore.runtime.transport.shm import SharedMemoryTransport

__all__ = [
    "Edge",
    "LocalTransport",
    "P2PTransport",
    "SharedMemoryTransport",
    "Transport",
    "describe_tag",
    "make_tag",
]
