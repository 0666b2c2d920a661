"""How many sockets this process may have, and how its own want of them is told from faults."""

from __future__ import annotations

import errno
import resource
from typing import Final

# What the kernel answers when this process or machine is out of descriptors, ports or memory: the
# other side has not even been asked.
_OWN_FAULTS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)


def is_own_fault(error: OSError) -> bool:
    """Say whether a connection failed for want of something of our own."""
    return error.errno in _OWN_FAULTS


def raise_open_file_limit() -> int:
    """Raise this process's limit of open files as far as it may; give the limit.

    A relayed request needs two sockets, and many shells and service managers start a process with a
    limit of 1,024 that it may raise by itself.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
