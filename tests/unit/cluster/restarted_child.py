"""A process for the tests of ``KeptProcess``. It is given a file; while the file is there, the process ends at once."""

import os
import pickle
import signal
import sys
from pathlib import Path

from farm.cluster.restarted_process import READY

if __name__ == "__main__":
    refused: Path = pickle.load(sys.stdin.buffer)
    if refused.exists():
        sys.exit(3)
    os.write(1, READY)
    signal.pause()
