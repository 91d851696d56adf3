"""A module that no worker can import: what happens depends on the folder it is imported in."""

import os
import signal
import time
from pathlib import Path

match Path("what").read_text(encoding="utf-8"):
    case "raise":
        raise OSError("no model here")
    case "exit":
        os._exit(3)
    case "die":
        with Path("deaths").open("a", encoding="utf-8") as stream:
            stream.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    case "sleep":
        time.sleep(600)
