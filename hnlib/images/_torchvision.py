"""torchvision, imported with its one known fault repaired; the rest of the library imports it from
here.

Beside a CPU build of torch the wheel of torchvision may come without its compiled operators. Its
Python part still registers shape rules for two of them, `nms` and `qnms`, which fails when they do
not exist and takes the whole import with it. We need neither: models, data sets and image reading
are pure Python. So the plain import is tried first, and only where it fails are the two operators
declared (never implemented) and the import repeated.
"""

import torch

try:
    import torchvision
except RuntimeError:
    _declaration = torch.library.Library(
        "torchvision", "FRAGMENT"
    )  # kept alive: it withdraws its operators when freed
    for _name in ("nms", "qnms"):
        _declaration.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
