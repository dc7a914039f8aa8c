"""Import torchvision, also where its wheel lacks the compiled operators.

With a CPU build of torch, its wheel may lack the compiled operators. Shape rules for two of them,
`nms` and `qnms`, are registered all the same, and the whole import fails. We need neither. So only
where the plain import fails are the two declared (never implemented) and the import repeated.
"""

import torch

try:
    import torchvision
except RuntimeError:
    # kept alive: it withdraws its operators when freed
    _declaration = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _declaration.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
