"""`train`: a run on images or graphs from its configuration to its record."""

from __future__ import annotations

import copy
import hashlib
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from hnlib import _files
from hnlib.images import augment, data
from hnlib.methods import CATALOGUE, Method
from hnlib.runs import config, records
from hnlib.runs.checkpoint import Checkpoint, Run, load, room
from hnlib.runs.loop import (
    COUNTS,
    Course,
    Diverged,
    Interrupted,
    Loop,
    check_queue,
    check_schedule,
    enough_memory,
    fastest_convolutions,
    launch,
)

__all__ = ["Diverged", "Interrupted", "Run", "load", "train"]


def train(*dataset_and_method, **keywords) -> Run:
    r"""Train an encoder of images or graphs by contrast, evaluate it, and return the `Run`.

    `train(run)` with an `ImageRun` or `GraphRun` and keywords of `Execution`, or the same in
    keywords: `train("digits", "hcl", beta=1.0, epochs=3, record_to=folder)`. What neither run nor
    execution has is an option of the method. The data set decides which run it is.

    Instead of names: `dataset` a `data.Dataset` or a `GraphSet`; `method` any module to call as
    `method(z1, z2, labels)` (labels reach it if it has a true attribute `supervised`; with a true
    attribute `features` it is called with `features=(h1, h2)`, the inputs of the projector's last
    layer, bias left out; where it has `log_weights(contrast)` or `observe(contrast)`, learning
    curves show what these say), or None for `epochs=0`, which evaluates the untrained encoder, the
    same for all methods of one seed; `encoder` a module with an attribute `feature_dim`, to which a
    `projector` may belong (with `.layers`, an `nn.Sequential`, if the method wants features);
    `augmentation` an `augment.Recipe`. Modules given are copied; `Run` has the trained ones.

    **Images.** Two views of each pass the encoder together; batches by permutation, the last
    partial one dropped. STL-10's unlabelled images are trained on by methods that need no labels.
    Subsets and images held out are class-balanced and the same for all seeds. The optimiser is Adam
    with coupled weight decay; it trains parameters of the method too, without decay. `schedule`
    {option: (start, end[, changes])} moves an option of the method: in epoch $e$ of $E$ it is
    $\text{start}+\frac i{\text{changes}}(\text{end}-\text{start})$, $i=\lfloor
    e\,\text{changes}/E\rfloor$; `changes` is $E$ unless given (hcl, App. D.1). With a `queue` only
    the first views are anchors, and the keys come from a copy that follows the model (`KeyQueue`).
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

    `device` and `precision` are Fabric's words. `devices` > 1 shares each batch among processes of
    one machine (a script needs `if __name__ == "__main__":`); under `torchrun` its processes are
    used. Negatives are gathered from all of them, and the run is the one a single device makes, up
    to rounding and to batch-norm, whose statistics are synchronised on GPUs only.

    With a `checkpoint` path the state is written after each epoch; with `resume` an existing one is
    continued, to the same weights as without the interruption (bitwise on the CPU: all randomness
    of an epoch comes from the seed and the epoch's number). A finished run goes on if `epochs` is
    larger now, nothing is scheduled over them and it is no run of several folds. `max_steps` ends
    training early, a cosine before its end. The record in `record_to` replaces an older one of the
    same configuration.

    Raises ValueError (unknown names, sizes that do not fit, memory that does not suffice, a
    checkpoint that is corrupt, of another configuration or in use by another process), `Diverged`,
    `Interrupted`.
    """
    given = dict(zip(("dataset", "method"), dataset_and_method))
    if len(dataset_and_method) > 2 or given.keys() & keywords.keys():
        raise TypeError("train takes data set and method by position, once; the rest by keyword")
    run, execution, own = read_arguments(given | keywords)
    fabric = launch(execution.device, run.precision, execution.devices)
    if execution.devices == 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        return _train(fabric, run, execution, own)
    with tempfile.TemporaryDirectory() as folder:  # the launcher's own way back holds 64 KB
        path = Path(folder) / "run.safetensors"
        # as one function: Fabric takes arguments apart, and cannot take apart what is frozen
        here = partial(_train_in_process, run=run, execution=execution, own=own, path=path)
        if error := fabric.launch(here):
            raise error
        return load(path, own.encoder, own.projector)


train.__signature__ = config.signature(config.ImageRun)


def read_arguments(
    keywords: dict,
) -> tuple[config.Configuration, config.Execution, SimpleNamespace]:
    """The resolved run and its execution, and the objects of one's own that the run only names."""
    keywords, own = (
        dict(keywords),
        SimpleNamespace(dataset=None, method=None, encoder=None, projector=None),
    )
    given = keywords.get("dataset", "digits")
    if isinstance(given, config.Configuration):
        run, beside = given, config.given(config.Execution)
        if wrong := [key for key in keywords if key not in (*beside, "dataset")]:
            raise ValueError(
                f"{wrong[0]} belongs into the run: dataclasses.replace(run, {wrong[0]}=…); beside "
                f"a run stand {', '.join(beside)}"
            )
        execution = config.Execution(**{k: v for k, v in keywords.items() if k != "dataset"})
    else:
        run, execution = _from_keywords(keywords, own)
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
    try:
        from hnlib.graphs.data import KNOWN, GraphSet
    except ImportError:
        known = ", ".join(data.KNOWN)
        raise ValueError(
            f"unknown data set {dataset!r}; known: {known}, and graphs once PyTorch Geometric is "
            "installed: pip install 'hnlib[graphs]'"
        ) from None
    if isinstance(dataset, GraphSet) or dataset in KNOWN or "framework" in keywords:
        return config.GraphRun
    raise ValueError(f"unknown data set {dataset!r}; known: {', '.join((*data.KNOWN, *KNOWN))}")


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


def _train_in_process(fabric, run, execution, own, path: Path):
    """`_train` in a process of its own; the first one leaves the run at `path`. An error is sent
    back."""
    try:
        done = _train(fabric, run, execution, own)
    except (ValueError, Interrupted) as error:
        return error
    if fabric.global_rank == 0:
        done.save(path)
    return None


def _train(fabric, run, execution, own: SimpleNamespace) -> Run:
    started, device = time.perf_counter(), fabric.device
    if run.batch_size % fabric.world_size:
        raise ValueError(
            f"batch_size={run.batch_size} cannot be shared by {fabric.world_size} devices; "
            f"choose a multiple of {fabric.world_size}"
        )
    if (method := own.method) is not None:  # the caller's stays as it was
        method = method.copy() if hasattr(method, "copy") else copy.deepcopy(method)
    elif run.method is not None:
        method = room(type(run)).method_of(run)
    check_schedule(method, run.schedule)
    check_queue(method, run.queue)
    task = room(type(run)).Task(run, execution, own, method, device)
    run = task.run
    if fabric.world_size > 1 and device.type == "cpu" and looks_at_batch(own):
        run = replace(run, devices=fabric.world_size)
    environment = records.environment(device)  # now: the sources may be edited while this runs
    if fabric.world_size > 1:
        environment["hardware"]["devices"] = fabric.world_size
    if execution.checkpoint or execution.record_to:
        run.refuse_unnamed()
    writes = fabric.global_rank == 0  # every process does the same work, one of them keeps it
    configuration = run.configuration
    checkpoint = Checkpoint(execution.checkpoint, configuration, writes)
    files = [checkpoint.path]
    if execution.record_to is not None:
        files.append(execution.record_to / f"{run.name}.json")
    # Nothing here touches the caller's random state, and nothing in it touches us.
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        stack.enter_context(fastest_convolutions())
        _hold(stack, fabric, [file for file in files if file is not None and writes])
        stack.enter_context(enough_memory(device, run.batch_size))
        model, courses, keep = _fit(fabric, task, run, method, checkpoint, execution)
        record = {"configuration": configuration} | task.measure(model, courses, device)
        counts = {name: int(getattr(method, name, 0)) for name in COUNTS}
        record["metrics"] |= counts | {"peak_memory_mb": peak_memory(device)}
        keep()
        record["environment"] = environment
        record["seconds"] = round(time.perf_counter() - started, 3)
        if execution.record_to is not None and writes:
            records.write(record, execution.record_to, overwrite=True)
    return Run(record, model.eval(), method)


def _hold(stack: ExitStack, fabric, files: list[Path]) -> None:
    """Keep other processes from making the same files. ValueError, on all devices: one does."""
    refused = None
    try:
        for file in files:
            stack.enter_context(_files.only_process(file))
    except ValueError as error:
        refused = str(error)
    if refused := fabric.broadcast(refused) if fabric.world_size > 1 else refused:
        raise ValueError(refused)


def _fit(fabric, task, run, method, checkpoint: Checkpoint, execution) -> tuple:
    """Every training of the run, one after the other: the first one's model, what each has seen,
    and how to keep the state that is now reached."""
    every = run.evaluate_every if execution.evaluate_every is None else execution.evaluate_every
    device, courses, first, state = fabric.device, [], None, None
    if execution.resume and (found := checkpoint.read(device, len(task.parts))):
        state, theirs = found
        courses = [Course(**course) for course in state["finished"]]
        if courses:
            first = task.parts[0].model().to(device)
            first.load_state_dict(state["first"])

    def due(epoch: int) -> bool:
        return epoch in execution.evaluate_at or bool(every and epoch % every == 0)

    def keep(loop: Loop) -> None:
        finished = [asdict(course) for course in courses if course is not loop.course]
        more = {"finished": finished, "first": first.state_dict() if finished else None}
        checkpoint.save(loop.state_dict() | more)

    for part in task.parts[len(courses) :]:
        loop = Loop(fabric, part, method, run, due)
        if state is not None:
            loop.load_state_dict(state, theirs["epochs"])
            state = None
        loop.train(task.look, checkpoint, keep, execution.progress and checkpoint.writes)
        courses.append(loop.course)
        first = loop.model if first is None else first
    return first, courses, partial(keep, loop)


def looks_at_batch(own: SimpleNamespace) -> bool:
    """Whether a part of the model has batch statistics: those that are built by name do."""
    norm = nn.modules.batchnorm._BatchNorm  # pyright: ignore[reportPrivateUsage]
    parts = (own.encoder, own.projector)
    return any(p is None or any(isinstance(m, norm) for m in p.modules()) for p in parts)


def peak_memory(device: torch.device) -> float | None:
    """MB: of the GPU, or of the whole process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
