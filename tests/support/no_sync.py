"""A process whose disk fails when it is asked to sync, and that dies then: `python -m tests.support.no_sync FILE`.

The kernel is told to answer EIO, so that SQLite meets what it meets on such a disk. Exit code 77 where it may not be told.
"""

import ctypes
import errno
import os
import platform
import sys
from pathlib import Path

import numpy as np

from sojourn.sessions.journal import SqliteJournal
from sojourn.sessions.store import Added, StoredSession, StoreError

UNSUPPORTED = 77
SYSCALLS = {"x86_64": (74, 75), "aarch64": (82, 83)}  # fsync, fdatasync
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of the filter's machine
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


class Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint16), ("first", ctypes.POINTER(Instruction)))


def fail_syncs() -> bool:
    """From now on. False: this system does not let us."""
    if platform.machine() not in SYSCALLS:
        return False
    sync, data_sync = SYSCALLS[platform.machine()]
    steps = (
        Instruction(LOAD, 0, 0, 0),  # the number of the call
        Instruction(JUMP_IF_EQUAL, 2, 0, sync),
        Instruction(JUMP_IF_EQUAL, 1, 0, data_sync),
        Instruction(RETURN, 0, 0, ALLOW),
        Instruction(RETURN, 0, 0, ERRNO | errno.EIO),
    )
    program = Program(len(steps), (Instruction * len(steps))(*steps))
    prctl = ctypes.CDLL(None).prctl
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


def session(name: str) -> Added:
    return Added(StoredSession(name, "", False, None, 0.0, 0, 0, (), np.empty(0, np.int32)))


def main() -> None:
    store = SqliteJournal(Path(sys.argv[1]), syncs=True)
    store.commit([session("told")])
    if not fail_syncs():
        os._exit(UNSUPPORTED)
    try:
        store.commit([session("refused")])
    except StoreError as error:
        sys.stdout.write(str(error))
        sys.stdout.flush()
    os._exit(0)  # as a killed process: nothing is closed


if __name__ == "__main__":
    main()
