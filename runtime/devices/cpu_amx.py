"""The system's leave to use AMX tiles: on Linux a process must ask for it once, and threads started before or after share the answer."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache

__all__ = ["amx_refusal"]

# The x86-64 system call, and the feature number of the tiles' data in the XSAVE area.
_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


@cache
def amx_refusal() -> str:
    """Why this process may not use AMX, "" if it may. The first call asks the system, whose answer holds for all threads."""
    try:
        system = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError) as error:
        return f"the system cannot be asked for AMX tiles: {error}"
    system.restype = ctypes.c_long
    system.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long]
    if system(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0:
        return ""
    code = ctypes.get_errno()
    if code == errno.ENOSPC:
        return "a signal stack of this process is too small for AMX tiles"
    if code in (errno.EINVAL, errno.EOPNOTSUPP):
        return "this kernel does not save AMX tiles (it needs Linux 5.16, and a hypervisor that passes them on)"
    return f"the system does not let this process use AMX tiles: {os.strerror(code)}"
