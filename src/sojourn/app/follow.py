"""A child that ends with its parent: the parent holds its stdin open for as long as it lives."""

import os
import signal
import threading


def follow_parent() -> None:
    """End this process when stdin closes: nobody supervises it any more."""

    def watch() -> None:
        while os.read(0, 1):  # not through sys.stdin: its lock must be free at the exit
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()
