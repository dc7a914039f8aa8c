"""Settings for all tests: the same random examples everywhere, and no test downloads anything."""

import os
import signal
import sys
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("HNLIB_DATA", None)  # tests use embedded data, whatever else is on the machine
# `nohup` and `&` ignore Ctrl-C, which the processes that tests start would inherit
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "hnlib", derandomize=True, deadline=None, max_examples=50, print_blob=True
)
settings.load_profile("hnlib")
