"""Kernels forked from one process that has imported the slow libraries already.

A chapter then starts in a fraction of a second and still has a process of its own.
"""

import gc
import multiprocessing
import os
import signal
import threading
from contextlib import suppress

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()
context = multiprocessing.get_context("forkserver" if CAN_FORK else None)
_running: set[int] = set()


def preload(libraries: list[str]) -> None:
    """Import ``libraries`` once, for all kernels that this process starts from now on."""
    if CAN_FORK:
        context.set_forkserver_preload(libraries)


def stop_all() -> None:
    """Kill the kernels of this process, whichever thread runs them, and what they started."""
    for process in list(_running):
        with suppress(OSError):
            os.killpg(process, signal.SIGKILL)


def _serve(arguments: list[str], environment: dict, folder: str) -> None:
    gc.freeze()  # a garbage collection would visit, and so copy, all that was preloaded
    os.setsid()
    os.chdir(folder)
    os.environ.update(environment)
    # a lock of tqdm's needs no clean-up then; with Python 3.14's own method it would
    multiprocessing.set_start_method("fork", force=True)
    from ipykernel.kernelapp import IPKernelApp

    threading.Thread(target=_end_with_parent, daemon=True).start()
    IPKernelApp.launch_instance(arguments)


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


class _Process(context.Process):  # pyright: ignore[reportGeneralTypeIssues]
    """A process with the methods of `subprocess.Popen` that a provisioner calls."""

    stdin = stdout = stderr = None

    def poll(self):
        return self.exitcode

    def wait(self):
        self.join()
        return self.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)


class _Provisioner(LocalProvisioner):
    async def launch_kernel(self, cmd, **options):
        place = options.get("cwd") or os.getcwd()
        arguments = cmd[cmd.index("-f") :]  # after "python -m ipykernel_launcher"
        self.process = _Process(target=_serve, args=(arguments, options["env"], place))
        self.process.start()
        self.pid = self.pgid = self.process.pid
        _running.add(self.pid)
        return self.connection_info

    async def cleanup(self, restart=False):
        _running.discard(self.pid)
        await super().cleanup(restart)


class KernelManager(AsyncKernelManager):
    """Start kernels by a fork where the system can."""

    async def _async_pre_start_kernel(self, **options):
        if CAN_FORK and self.provisioner is None:
            self.provisioner = _Provisioner(kernel_spec=self.kernel_spec, parent=self)
        return await super()._async_pre_start_kernel(**options)
