"""A simulated accelerator, "gpu", in Python: what fails or waits on a GPU shows without one.

Its tensors hold CPU tensors, so values are the CPU's; but operands on two devices raise as on CUDA,
and every wait of the host is counted with its place. It cannot show what depends on kernels:
memory, speed, rounding, streams, and it computes in float32 what a GPU would in bfloat16.

``python -m tests.simulated_device NOTEBOOK -p NAME VALUE …`` executes a page on such a machine.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

import hnlib

ROOT = str(Path(hnlib.__file__).resolve().parents[1])

#: Of operators whose result depends on values: its shape, or a number for Python
WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
INDEXED = ["index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"]
aten = torch.ops.aten
#: Torch would make these empty and then resize them, which a `DeviceTensor` does not show
FACTORIES = [aten.eye.default, aten.eye.m, aten.linspace.default]
FACTORIES += [aten.arange.default, aten.arange.start, aten.arange.start_step]

#: How often the host waited for the device since the last `machine` began, by operator and place
waits = Counter()


class DeviceTensor(torch.Tensor):
    """A tensor on the simulated device; `values` is the CPU tensor behind it."""

    @staticmethod
    def __new__(cls, values):
        about = dict(strides=values.stride(), dtype=values.dtype, device=GPU)
        tensor = torch.Tensor._make_wrapper_subclass(cls, values.size(), **about)
        tensor.values = values
        return tensor

    def __reduce_ex__(self, protocol):
        return self.values.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return compute(operator, *args, **(kwargs or {}))


def compute(operator, *args, **kwargs):
    """Compute an operator on the CPU; results lie on the device if an operand or `device` does."""
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    ours = [x for x in operands if isinstance(x, DeviceTensor)]
    check_devices(operator, args, operands, ours)
    if ours and waits_for_device(operator, args, kwargs):
        waits[str(operator), place()] += 1
    target = kwargs.get("device")
    on_device = bool(ours) if target is None else torch.device(target).type == GPU.type
    if target is not None:
        kwargs["device"] = torch.device("cpu")
    behind = lambda x: x.values if isinstance(x, DeviceTensor) else x  # noqa: E731
    values, more = tree_map(behind, (args, kwargs))
    result = operator(*values, **more)
    if name_of(operator) == "copy_":
        return args[0]
    if not on_device:
        return result
    known = {id(x.values): x for x in ours}  # an operator in place returns its operand
    return tree_map(lambda x: known[id(x)] if id(x) in known else to_device(x), result)


def name_of(operator):
    """Return the name of an operator, without its overload."""
    return operator.overloadpacket.__name__


def to_device(x):
    """Return a tensor on the device with the values of a CPU tensor, anything else unchanged."""
    return DeviceTensor(x) if isinstance(x, torch.Tensor) else x


def check_devices(operator, args, operands, ours):
    """Raise RuntimeError for operands on two devices; numbers and indices may be on the CPU."""
    name = name_of(operator)
    if not ours or name in ("copy_", "_to_copy"):
        return
    indices = args[1] if name in INDEXED and isinstance(args[0], DeviceTensor) else []
    allowed = {id(x) for x in [*ours, *indices]}
    if foreign := [tuple(x.shape) for x in operands if x.dim() and id(x) not in allowed]:
        where = f"found {foreign} on cpu beside tensors on gpu ({operator})"
        raise RuntimeError(f"Expected all tensors to be on the same device, but {where}")


def waits_for_device(operator, args, kwargs):
    """Return whether the host would wait for this operator."""
    name = name_of(operator)
    if name in INDEXED:
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "_to_copy":
        return torch.device(kwargs.get("device") or GPU).type == "cpu"
    if name == "copy_":
        return not isinstance(args[0], DeviceTensor)
    return not WAITING.isdisjoint(operator.tags)


def place():
    """Return file and line of the innermost frame outside packages and this file."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(ROOT) and name != __file__ and "site-packages" not in name:
            return f"{name.removeprefix(ROOT + os.sep)}:{frame.f_lineno}"
        frame = frame.f_back
    return "autograd"  # a thread of its own


# Make torch know the device "gpu"; these names keep what that takes.
backend = backend_registration._DummyBackendModule()
backend.get_amp_supported_dtype = lambda: [torch.bfloat16]
backend_registration._setup_privateuseone_for_python_backend("gpu", backend_module=backend)
fallbacks = torch.library.Library("_", "IMPL")
fallbacks.fallback(compute, "PrivateUse1")
fallbacks.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
kernels = torch.library.Library("aten", "IMPL")
for factory in FACTORIES:
    kernels.impl(factory, partial(compute, factory), "PrivateUse1")
GPU = torch.device("gpu:0")


class Generator(torch.Generator):
    """A generator of the CPU that says which device it is for."""

    device = None  # in place of a property

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")

    def __init__(self, device="cpu"):
        self.device = torch.device(device)


class Constructors(TorchFunctionMode):
    """What does not reach `compute`: tensors made of numbers, lists of values, generators."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if function is torch.Tensor.tolist and isinstance(first, DeviceTensor):
            return first.cpu().tolist()
        if function is torch.Tensor.new_tensor and isinstance(first, DeviceTensor):
            return torch.tensor(args[1], dtype=kwargs.get("dtype", first.dtype)).to(GPU)
        target = torch.device(kwargs.get("device") or getattr(first, "device", "cpu"))
        if function in (torch.tensor, torch.as_tensor) and target.type == GPU.type:
            return function(*args, **kwargs | {"device": None}).to(GPU)
        drawn_on = getattr(kwargs.get("generator"), "device", target)
        if drawn_on.type != target.type:
            raise RuntimeError(f"Expected a {target.type} generator, but found {drawn_on.type}")
        return function(*args, **kwargs)


def fabric():
    """Return Fabric on the simulated device."""
    from lightning_fabric import Fabric
    from lightning_fabric.accelerators import CPUAccelerator
    from lightning_fabric.strategies import SingleDeviceStrategy

    class Accelerator(CPUAccelerator):
        def setup_device(self, device):
            pass

    return Fabric(strategy=SingleDeviceStrategy(GPU, Accelerator()))


@contextlib.contextmanager
def machine():
    """Simulate a machine with this accelerator in the block: `train` uses it. Yield the waits."""
    from hnlib.training import loop

    launch, load = loop.launch, torch.load

    def launch_here(device, precision):
        return launch(device, precision) if device == "cpu" else fabric()

    def load_here(*args, map_location="cpu", **kwargs):
        saved = load(*args, map_location="cpu", **kwargs)
        return saved if torch.device(map_location).type == "cpu" else tree_map(to_device, saved)

    waits.clear()
    with (
        Constructors(),
        mock.patch.object(loop, "launch", launch_here),
        mock.patch.object(torch, "load", load_here),
        mock.patch.object(torch, "Generator", Generator),
    ):
        yield waits


def execute(notebook, parameters):
    """Execute a page's code on the simulated machine.

    Its runs are recorded in a folder that is deleted. Raises what a cell raises, and ValueError if
    nothing was computed on the device.
    """
    from hnlib.notebooks import execute as notebooks
    from hnlib.training import records

    path = notebooks.find(notebook)
    page = notebooks.read(path)
    values = notebooks.guard_parameters(notebooks.parameters_of(page), parameters)
    namespace = {"__name__": "__main__"}
    with (
        machine(),
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(records, "default_folder", lambda: Path(folder)),
    ):
        for number, cell in enumerate(page.cells):
            if cell.cell_type == "code":
                exec(compile(cell.source, f"{path}, cell {number}", "exec"), namespace)
            if "parameters" in cell.metadata.get("tags", []):
                namespace |= values
    if not waits:  # even a training without a single step is read out
        raise ValueError(f"{path.name} trained nothing on the device; pass parameters of new runs")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    given = parser.parse_args()
    execute(given.notebook, dict(given.p))
    print(f"{given.notebook}: the host waited {waits.total():,} times for the device")
    for (operator, where), times in waits.most_common():
        print(f"{times:7,} {where} {operator}")
