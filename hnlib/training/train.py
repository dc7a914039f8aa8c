"""`train`: a run from its configuration to its record."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace

import torch
from torch import nn

from hnlib.methods import Method
from hnlib.training import kinds, loop, step
from hnlib.training.checkpoint import TrainedRun, load
from hnlib.training.config import Configuration, Execution
from hnlib.training.loop import Diverged, Interrupted

__all__ = ["Diverged", "Interrupted", "TrainedRun", "load", "train"]


def train(
    run: Configuration,
    *,
    dataset=None,
    method: nn.Module | None = None,
    encoder: nn.Module | None = None,
    **execution,
) -> TrainedRun:
    r"""Train an encoder with a contrastive loss, evaluate it, and return the `TrainedRun`.

    Parameters
    ----------
    run : ImageRun, GraphRun, SentenceRun or RetrievalRun
        What to train. ``method=None`` with ``epochs=0`` evaluates the untrained encoder.
    dataset : Dataset, GraphSet, Corpus or Collection, optional
        Your own data instead of ``run.dataset``.
    method : torch.nn.Module, optional
        Your own loss instead of ``run.method``, called as ``method(z1, z2, labels)``. Labels reach
        it if its attribute ``supervised`` is true; with a true attribute ``features`` it is called
        with ``features=(h1, h2)``, the inputs of the projector's last layer. InfoGraph calls
        ``method.loss(contrast)``. Its attributes ``name`` and ``options`` go to the record, but a
        fingerprint in place of a name of the catalogue; learning curves show what its
        ``log_weights(contrast)`` and ``observe(contrast)`` return.
    encoder : torch.nn.Module, optional
        Your own encoder of images, with an attribute ``feature_dim``.
    **execution
        Fields of `hnlib.training.config.Execution`: ``device`` ("auto", "cpu", "cuda"),
        ``checkpoint`` (a file to resume from, written every ``checkpoint_seconds``), ``resume``,
        ``minutes`` (after which it stops, to be resumed), ``data_root``, ``record_to`` (a folder),
        ``save`` (a file for `load`), ``step`` ("eager", "compiled", "graph"), ``progress``,
        ``evaluate_every`` (epochs between rows of the history).

    Returns
    -------
    TrainedRun
        With ``model``, ``encoder``, ``record``, ``metrics`` and ``history``.

    Raises
    ------
    ValueError
        If options do not fit each other or the data, or the checkpoint belongs to another run.
    Diverged
        If the loss or the weights are not finite.
    MemoryError
        If the device has too little memory for a batch.
    Interrupted
        On Ctrl-C or SIGTERM, or when ``minutes`` have passed; the message says how to resume.

    Notes
    -----
    The optimiser is Adam with coupled weight decay, for transformers AdamW; it trains parameters of
    the method too, without decay. In epoch $e$ of $E$ a `schedule` (start, end, changes) sets its
    option to $\text{start}+\frac i{\text{changes}}(\text{end}-\text{start})$, $i=\lfloor
    e\,\text{changes}/E\rfloor$ (hcl, App. D.1), and (start, end, "cosine", periods) to
    $\text{start}+\frac12(1-\cos2\pi\,\text{periods}\,e/E)(\text{end}-\text{start})$ (Kukleva et
    al., 2023); with ``reach_end``, $E-1$ stands for $E$. With a ``queue`` only the first views are
    anchors, and keys come from a copy that follows the model. A run that was interrupted ends with
    the same weights as one that was not, bitwise on the CPU: all randomness of an epoch comes from
    the seed and the epoch's number. Under ``torchrun`` each batch is shared by its processes.
    Modules given are copied.

    Examples
    --------
    >>> from hnlib.images.config import ImageRun
    >>> from hnlib.training.train import train
    >>> run = train(ImageRun(dataset="digits", method="hcl", epochs=1), progress=False)
    >>> run.metrics["knn"] > 0.8
    True
    """
    settings, given = Execution(**execution), {}
    if dataset is not None:
        given["dataset"], run = dataset, replace(run, dataset=dataset.name)
    if encoder is not None:
        given["encoder"], run = encoder, replace(run, encoder=fingerprint(encoder))
    if method is not None:
        name, options = recorded_name(method, run.catalogue), getattr(method, "options", {})
        run = replace(run, method=name, options=dict(options))
        method = method.copy() if isinstance(method, Method) else copy.deepcopy(method)
    run.check_names(settings.data_root, given)
    run = run.resolved()
    task = kinds.task_class(run.kind)
    if method is None and run.method is not None:
        method = task.build_method(run)
    loop.check_method(method, run)
    fabric = loop.launch(settings.device, run.precision)
    if run.batch_size % (processes := fabric.world_size):
        raise ValueError(
            f"batch_size must be a multiple of the {processes} processes, got {run.batch_size}"
        )
    step.check(settings.step, task, run, fabric.device, processes)
    trained = task(run, method, fabric.device, settings.data_root, **given)
    if run.epochs and not len(trained):
        raise ValueError(
            f"batch_size must be at most the {trained.examples} {trained.unit}s for training, "
            f"got {run.batch_size}"
        )
    try:
        return loop.fit(fabric, trained, method, settings)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
            raise MemoryError(
                f"{fabric.device} has too little memory for batch_size={run.batch_size}; "
                "give a smaller one"
            ) from error
        raise


def recorded_name(method: nn.Module, catalogue: dict) -> str:
    """Return the name of a method in records: a fingerprint where it might be taken for ours."""
    name = getattr(method, "name", None)
    if name and (isinstance(method, Method) or name not in catalogue):
        return name
    return fingerprint(method)


def fingerprint(module: nn.Module) -> str:
    """Return class and digest of a module: structure, plain attributes, weights before training."""
    digest = hashlib.sha256(repr(module).encode())
    for part, inner in module.named_modules():
        plain = {
            name: value
            for name, value in vars(inner).items()
            if isinstance(value, bool | int | float | str) and name != "training"
        }
        digest.update(repr((part, sorted(plain.items()))).encode())
    for key, value in module.state_dict().items():
        raw = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        digest.update(key.encode() + raw.tobytes())
    return f"{type(module).__name__}-{digest.hexdigest()[:8]}"
