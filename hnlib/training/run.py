"""`train`: a run on images, graphs or sentences from its configuration to its record."""

from __future__ import annotations

import copy
import hashlib
import os
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import torch
from torch import nn

from hnlib.images import augment, data
from hnlib.methods import CATALOGUE, Method
from hnlib.training import config
from hnlib.training.checkpoint import Run, load, room
from hnlib.training.loop import (
    Diverged,
    Interrupted,
    check_queue,
    check_schedule,
    fit,
    launch,
    under_torchrun,
)

#: Kinds of data whose library may not be there: runs, the class of a set of one's own, the library
WINGS = {
    "sentences": (config.SentenceRun, "Corpus", "the library tokenizers"),
    "graphs": (config.GraphRun, "GraphSet", "PyTorch Geometric"),
}
__all__ = ["Diverged", "Interrupted", "Run", "load", "train"]


def train(*dataset_and_method, **keywords) -> Run:
    r"""Train an encoder of images, graphs or sentences by contrast, evaluate it, and return the
    `Run`.

    `train(run)` with an `ImageRun`, `GraphRun` or `SentenceRun` and keywords of `Execution`, or the
    same in keywords: `train("digits", "hcl", beta=1.0, epochs=3, record_to=folder)`. What neither
    run nor execution has is an option of the method. The data set decides which run it is.

    Instead of names: `dataset` a `data.Dataset`, a `GraphSet` or a `Corpus`; `method` any module to
    call as `method(z1, z2, labels)` (labels reach it if it has a true attribute `supervised`; with
    a true attribute `features` it is called with `features=(h1, h2)`, the inputs of the projector's
    last layer, bias left out; where it has `log_weights(contrast)` or `observe(contrast)`, learning
    curves show what these say; InfoGraph calls `method.loss(contrast)` instead; a `name` and
    `options` of its own are the record's), or None for `epochs=0`, which evaluates the untrained
    encoder, the same for all methods of one seed; `encoder` a module with an attribute
    `feature_dim`, to which a `projector` may belong (with `.layers`, an `nn.Sequential`, if the
    method wants features); `augmentation` an `augment.Recipe`. Modules given are copied; `Run` has
    the trained ones.

    **Images.** Two views of each pass the encoder together; batches by permutation, the last
    partial one dropped. STL-10's unlabelled images are trained on by methods that need no labels.
    Subsets and images held out are class-balanced and the same for all seeds. The optimiser is Adam
    with coupled weight decay; it trains parameters of the method too, without decay. `schedule`
    {option: (start, end[, changes])} moves an option of the method: in epoch $e$ of $E$ it is
    $\text{start}+\frac i{\text{changes}}(\text{end}-\text{start})$, $i=\lfloor
    e\,\text{changes}/E\rfloor$; `changes` is $E$ unless given (hcl, App. D.1). With `reach_end`
    $E-1$ stands for $E$, so that the last epoch has the end (h-scl, eq. 4). With a `queue` only
    the first views are anchors, and the keys come from a copy that follows the model (`KeyQueue`).
    `mixing` mixes images (`hnlib.images.mixing`): "i-mix" the first views, which then look for the
    second ones as in `Contrast.from_pairs`; "un-mix" a third view, for two more losses.
    "cosine" falls after a twentieth of linear warm-up. The `history` has a row each
    `evaluate_every` epochs (0: only at the end): epoch, loss, knn, images_per_second, and
    `diagnostics.diagnostics` on one batch of the training set, the same augmented views for all
    methods; row 0 is the untrained encoder. `metrics`: `readouts.readouts`, "clean" and what else
    `protocols` asks for.

    **Graphs.** A GIN, by InfoGraph with a method of `graphs.methods.CATALOGUE`, or by GraphCL with
    one of `hnlib.methods.CATALOGUE` on two views of every graph; batches by permutation in nearly
    equal parts. The embeddings of all graphs, in eval mode, go to `readouts.svm` on stratified
    folds, which are a function of the seed: methods with the same seed meet the same folds. Methods
    without labels see all graphs and no label; `labels="fold"` trains an encoder for each fold, to
    which the labels of its test graphs are unknown; "all" trains one on all labels, and the
    accuracy is then of labels that training has seen. `metrics`: `svm`, the mean test accuracy of
    the folds, with `svm_folds`, the `inner_folds` accuracy of the chosen `C`, `epoch_seconds`
    (median). The `history` has the first four at the epochs `evaluate_at` (0: untrained).

    **Sentences.** Pairs of neighbours of a corpus by `Method.pairs`, or each sentence twice under
    dropout as two views; batches by permutation, the last partial one dropped; `train_size` pairs
    are the same for all seeds. The embeddings, in eval mode, go to the `tasks` (`transfer.Judged`):
    `metrics` has an accuracy or a rank correlation for each, and `transfer` and `sts`, the means of
    six and of seven. The `history` has them at the epochs `evaluate_at`.

    `device` and `precision` are Fabric's words. Under `torchrun` each batch is shared by its
    processes. Negatives are gathered from all of them, and the run is the one a single process
    makes, up to rounding and to batch-norm, whose statistics are synchronised on GPUs only.

    With a `checkpoint` path the state is written after each epoch; with `resume` an existing one is
    continued, to the same weights as without the interruption (bitwise on the CPU: all randomness
    of an epoch comes from the seed and the epoch's number). A finished run is not measured again;
    it goes on if `epochs` is larger now, nothing is scheduled over them and it is no run of several
    folds. `max_steps` ends training early, a cosine before its end. `save` is where `Run.save`
    writes; the record in `record_to` replaces an older one of the same configuration. `sessions` of
    the record are the processes that worked on the run, each with date, machine, versions and
    seconds up to the last state that it saved; `seconds` is their sum.

    Raises ValueError (unknown names, sizes that do not fit, a checkpoint of another configuration
    or in use by another process), `Diverged`, `Interrupted`.
    """
    given = dict(zip(("dataset", "method"), dataset_and_method))
    if len(dataset_and_method) > 2 or given.keys() & keywords.keys():
        raise TypeError("train takes data set and method by position, once; the rest by keyword")
    run, execution, own = read_arguments(given | keywords)
    if under_torchrun():
        _check_devices(run, int(os.environ["WORLD_SIZE"]))
    method = _method(run, own)
    room(type(run)).check(run, execution, own, method)
    return fit(launch(execution.device, run.precision), run, execution, own, method)


train.__signature__ = config.signature(config.ImageRun)


def read_arguments(keywords: dict) -> tuple:
    """The resolved run, its `Execution`, and the objects of one's own that the run only names."""
    own = SimpleNamespace(dataset=None, method=None, encoder=None, projector=None)
    run, beside = keywords.get("dataset", "digits"), config.given(config.Execution)
    if isinstance(run, config.Configuration):
        more = {key: value for key, value in keywords.items() if key != "dataset"}
        if wrong := [key for key in more if key not in beside]:
            raise ValueError(
                f"{wrong[0]} belongs into the run: dataclasses.replace(run, {wrong[0]}=…); beside "
                f"a run stand {', '.join(beside)}"
            )
        execution = config.Execution(**more)
    else:
        run, execution = _from_keywords(dict(keywords), own)
    run = run.resolved()
    if unreached := [epoch for epoch in execution.evaluate_at if epoch > run.epochs]:
        raise ValueError(
            f"evaluate_at has {unreached[0]}; the run has the epochs 0 to {run.epochs}"
        )
    return run, execution, own


def _from_keywords(keywords: dict, own: SimpleNamespace) -> tuple:
    """Run and execution; what is one's own goes to `own` and leaves its name."""
    kind = kind_of(keywords.get("dataset", "digits"), keywords)
    for part in vars(own):
        if not isinstance(keywords.get(part), str | None):
            setattr(own, part, keywords[part])
            keywords[part] = named(part, keywords[part])
    if isinstance(recipe := keywords.get("augmentation"), augment.Recipe):
        keywords["augmentation"] = augment.recorded(recipe)
    projector = keywords.pop("projector", None)
    run, execution = config.split(kind, keywords)
    if projector is not None:
        run = replace(run, projector=projector)
    if own.method is None and run.method is not None:
        return run, execution
    if run.options:
        raise ValueError(
            f"unknown option {next(iter(run.options))!r}; method options go with a method's name"
        )
    return replace(run, options=dict(getattr(own.method, "options", {}))), execution


def kind_of(dataset, keywords: dict) -> type:
    """What kind of run trains on a data set. ValueError: an unknown name."""
    if isinstance(dataset, data.Dataset):
        return config.ImageRun
    if isinstance(dataset, str) and (dataset in data.KNOWN or dataset.startswith("folder:")):
        return config.ImageRun
    known, missing = [*data.KNOWN], ""
    for wing, (kind, own, package) in WINGS.items():
        try:
            found = import_module(f"hnlib.{wing}.data")
        except ImportError:
            missing += f", and {wing} once {package} is installed: pip install 'hnlib[{wing}]'"
            continue
        path = isinstance(dataset, str) and dataset.startswith(getattr(found, "PREFIX", "folder:"))
        if path or dataset in found.KNOWN or isinstance(dataset, getattr(found, own)):
            return kind
        known += found.KNOWN
    if "framework" in keywords and not missing:
        return config.GraphRun
    raise ValueError(f"unknown data set {dataset!r}; known: {', '.join(known)}{missing}")


def named(part: str, given) -> str:
    """The word by which a record names a data set, a method or a module of one's own: its name, but
    where that could be taken for one of ours, class and digest. ValueError: it is no such thing."""
    name = getattr(given, "name", "")
    if part == "dataset" or isinstance(given, Method):
        return name
    if not isinstance(given, nn.Module):
        raise ValueError(f"the {part} is {given!r}; give a name or a torch module")
    free = part == "method" and (name not in CATALOGUE or hasattr(given, "options"))
    return name if name and free else fingerprint(given)


def fingerprint(module: nn.Module) -> str:
    """Class and digest of a module of one's own: structure, plain attributes and weights before
    training."""
    digest = hashlib.sha256(repr(module).encode())
    for part, inner in module.named_modules():
        kept = (bool, int, float, str)
        plain = {k: v for k, v in vars(inner).items() if isinstance(v, kept) and k != "training"}
        digest.update(repr((part, sorted(plain.items()))).encode())
    for key, value in module.state_dict().items():
        raw = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        digest.update(key.encode() + raw.tobytes())
    return f"{type(module).__name__}-{digest.hexdigest()[:8]}"


def _method(run, own: SimpleNamespace) -> nn.Module | None:
    """A method of the run's own: the caller's stays as it was. ValueError: it cannot train so."""
    method = own.method
    if method is not None:
        method = method.copy() if hasattr(method, "copy") else copy.deepcopy(method)
    elif run.method is not None:
        method = room(type(run)).method_of(run)
    check_schedule(method, run.schedule)
    check_queue(method, run.queue)
    return method


def _check_devices(run, devices: int) -> None:
    """ValueError: the processes cannot share the run's batches."""
    if run.batch_size % devices:
        raise ValueError(
            f"batch_size={run.batch_size} must be a multiple of the {devices} processes"
        )
    if devices > 1 and getattr(run, "mixing", None):
        raise ValueError(f"mixing={run.mixing} needs the whole batch in one process")
