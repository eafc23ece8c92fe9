"""How long the end of a process may take, and how that divides: each part fits in what waits for it. Knows no process."""

SAVE_S = 6.0  # for an engine to write what it keeps to the disk tier
QUEUE_SHARE = 0.7  # of that time; the rest is for what is queued by then
HANG_S = 2.0  # for threads that a call to the disk holds, after that
KILL_AFTER_S = SAVE_S + HANG_S + 2.0  # for all of the end, beyond the time that running work has: then it is killed
LOCK_WAIT_S = KILL_AFTER_S  # for an engine to wait for the one before it, which may be ending yet
