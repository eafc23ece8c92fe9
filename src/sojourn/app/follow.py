"""A child that ends with its parent: the parent holds its stdin open for as long as it lives, however it ends."""

import os
import signal
import threading
import time


def follow_parent(patience_s: float) -> None:
    """When stdin closes, nobody supervises this process any more: it is asked to end, and has that long to do it."""

    def watch() -> None:
        while os.read(0, 1):  # not through sys.stdin: its lock must be free at the exit
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience_s)  # a daemon's: an exit does not wait for it
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()
