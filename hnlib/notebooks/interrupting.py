"""Ctrl-C while papermill executes a notebook.

The kernel has a session of its own: Ctrl-C in a terminal does not reach it, and papermill, which it
reaches, kills the kernel. A training would lose what it has not written yet.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from jupyter_client.manager import AsyncKernelManager

STOPS = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def kernel_interrupted() -> Iterator[dict]:
    """Yield options of papermill with which Ctrl-C interrupts the cell that the kernel executes.

    The block then ends in KeyboardInterrupt, with what a training says of its epochs. A second
    Ctrl-C ends it at once, and the kernel is killed. Without process groups nothing changes.
    """
    kernels, executing, asked = [], [], []

    class Kernel(AsyncKernelManager):
        async def start_kernel(self, **how):
            await super().start_kernel(**how)
            kernels.append(self.provisioner)

    def before_cell(**_):
        if asked:  # between two cells a kernel ignores it, and while it starts it would die of it
            raise KeyboardInterrupt
        executing[:] = kernels

    def stop(*_):
        if asked:
            raise KeyboardInterrupt
        asked.append(True)
        for kernel in executing:
            with suppress(ProcessLookupError):
                os.killpg(kernel.pgid, signal.SIGINT)

    with ExitStack() as stack:
        if hasattr(os, "killpg") and threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in STOPS):
                if callable(signal.getsignal(number)):  # neither ignored nor the system's own
                    stack.callback(signal.signal, number, signal.signal(number, stop))
        try:
            yield {"kernel_manager_class": Kernel, "on_cell_execute": before_cell}
        except Exception as error:
            if not asked:
                raise
            told = getattr(error, "ename", None) == "Interrupted"
            raise KeyboardInterrupt(getattr(error, "evalue", "") if told else "") from None
