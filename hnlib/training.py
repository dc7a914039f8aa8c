"""One training loop for every data set, encoder and method, and the run it returns."""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import logging
import math
import signal
import sys
import threading
import time
import zipfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hnlib import augment, data, encoders, evaluation, methods, records
from hnlib.contrast import Contrast

DIAGNOSTIC_BATCH = 256  # images in the fixed batch of the learning curves


class Diverged(ValueError):
    """Loss or weights are not finite; the message names step, learning rate and last good checkpoint."""


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C or SIGTERM; the message says where the last checkpoint is and how to go on."""


class Model(nn.Module):
    """Encoder and projector as one module: images to the embedding z that the loss sees."""

    def __init__(self, encoder: nn.Module, projector: nn.Module):
        super().__init__()
        self.encoder, self.projector = encoder, projector

    def forward(self, x: torch.Tensor, hidden: bool = False):
        """The embeddings; with `hidden` also the inputs of the projector's last layer."""
        if not hidden:
            return self.projector(self.encoder(x))
        h = self.projector.layers[:-1](self.encoder(x))
        return self.projector.layers[-1](h), h


@dataclass(frozen=True, eq=False)
class Run:
    """A trained encoder with what was measured on the way. `record` is what `records.write` takes."""

    record: dict
    encoder: nn.Module = field(repr=False)
    projector: nn.Module = field(repr=False)

    @property
    def history(self) -> list[dict]:
        return self.record["history"]

    @property
    def metrics(self) -> dict:
        return self.record["metrics"]

    def save(self, path: Path | str) -> Path:
        """Write weights and record to one safetensors file, atomically; `training.load` reads it back."""
        from safetensors.torch import save

        state = {k: v.detach().cpu().contiguous() for k, v in Model(self.encoder, self.projector).state_dict().items()}
        records.write_atomically(path, save(state, metadata={"record": json.dumps(self.record)}))
        return Path(path)

    def export(self, path: Path | str) -> Path:
        """Write the encoder alone as a `torch.export` program (.pt2) for any batch size, atomically.

        It maps normalised images (`augment.plain`) to features in eval mode and loads without this library.
        """
        shape, encoder = self.record["image_shape"], copy.deepcopy(self.encoder).cpu().eval()
        batch = torch.export.Dim("batch", min=1)
        program = torch.export.export(encoder, (torch.zeros(2, *shape),), dynamic_shapes=({0: batch},))
        records.write_atomically(path, lambda temporary: torch.export.save(program, temporary))
        return Path(path)


def load(path: Path | str) -> Run:
    """The run that `Run.save` wrote, in eval mode on the CPU. ValueError: the file is missing or not such a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            record = json.loads(file.metadata()["record"])
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dictionary)
        model = _model(record["configuration"], record["image_shape"])
        model.load_state_dict(state)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is not a whole saved run ({error}); save it again with Run.save") from error
    model.eval()
    return Run(record, model.encoder, model.projector)


def train(
    dataset: str | data.Dataset = "digits",
    method: str | nn.Module | None = "simclr",
    encoder: str = "small-cnn",
    epochs: int = 30,
    batch_size: int = 256,
    seed: int = 0,
    lr: float = 1e-3,
    weight_decay: float = 1e-6,
    train_size: int | None = None,
    augmentation: str | augment.Recipe | None = None,
    device: str = "auto",
    precision: str = "32-true",
    evaluate_every: int = 5,
    evaluate_size: int | None = None,
    checkpoint: Path | str | None = None,
    resume: bool = True,
    record_to: Path | str | None = None,
    data_root: Path | str | None = None,
    progress: bool = True,
    max_steps: int | None = None,
    experiment: str = "images",
    **method_options,
) -> Run:
    r"""Train an encoder by contrasting two views of each image, evaluate it, and return the `Run`.

    `dataset`: a name or a `data.Dataset`. `method`: a name with its `method_options`, or any module to call as
    `method(z1, z2, labels)` (labels reach it if it has a true attribute `supervised`; with a true attribute `features`
    it is called with `features=(h1, h2)`, the inputs of the projector's last layer, bias left out; where it has
    `log_weights(contrast)` or `observe(contrast)`, learning curves show what these say), or None for `epochs=0`, which
    evaluates the untrained encoder. Adam with coupled weight decay; it trains parameters of the method too, without
    decay. Batches by permutation, the last partial one dropped; both views pass the encoder together. `train_size`: a
    class-balanced subset, the same for all seeds. `augmentation`: by default after the number of channels. `precision`
    and `device` are Fabric's words ("32-true", "bf16-mixed"; "auto", "cpu", "cuda").

    Every `evaluate_every` epochs (0: only at the end) a row joins `history`: epoch, loss, knn, images_per_second,
    and `evaluation.diagnostics` on one batch of the training set, the same augmented views for all methods. Row 0 is
    the untrained encoder. `evaluate_size` limits both readouts to that many images of each split. The final `metrics`
    have knn and linear under the clean protocol.

    With a `checkpoint` path the state is written after each epoch; with `resume` an existing one is continued, to the
    same weights as without the interruption (bitwise on the CPU: all randomness of an epoch comes from the seed and
    the epoch's number). `max_steps` ends training early. `record_to`: folder for the record, which replaces an older
    one of the same configuration; the *Results* page groups records by `experiment`.

    Raises ValueError (unknown names, sizes that do not fit, a checkpoint that is corrupt or of another configuration),
    `Diverged`, `Interrupted`.
    """
    started = time.perf_counter()
    for name, value, least in (("epochs", epochs, 0), ("batch_size", batch_size, 2), ("max_steps", max_steps, 1),
                               ("seed", seed, 0), ("weight_decay", weight_decay, 0),
                               ("evaluate_every", evaluate_every, 0), ("evaluate_size", evaluate_size, 2)):
        if value is not None and value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"lr={lr} must be positive")
    if encoder not in encoders.ENCODERS:
        raise ValueError(f"unknown encoder {encoder!r}; known: {', '.join(encoders.ENCODERS)}")
    method = _method(method, method_options, epochs)
    if isinstance(dataset, str):
        dataset = data.load(dataset, data_root)
    if train_size is not None:
        dataset = data.subset(dataset, train_size, seed=0)  # for every seed: it varies the training, not the data
    if batch_size > len(dataset.x_train) and epochs:
        raise ValueError(f"batch_size={batch_size} exceeds the {len(dataset.x_train)} training images; "
                         f"choose 2 to {len(dataset.x_train)}")
    recipe = augment.resolve(augmentation or augment.recipe_for(dataset.channels))
    fabric = _fabric(device, precision)
    device = fabric.device
    environment = records.environment(device)  # now: the sources on disk may be edited while this runs

    configuration = {
        "experiment": experiment, "dataset": dataset.name, "dataset_digest": dataset.digest, "train_size": train_size,
        "method": None if method is None else getattr(method, "name", type(method).__name__),
        "options": {k: _plain(v) for k, v in getattr(method, "options", {}).items()},
        "encoder": encoder, "epochs": epochs, "batch_size": batch_size, "seed": seed, "lr": lr,
        "weight_decay": weight_decay, "augmentation": asdict(recipe), "precision": precision, "max_steps": max_steps,
        "evaluate_size": evaluate_size,
    }
    configuration = json.loads(json.dumps(configuration))  # as it will be read back: tuples are lists
    shape = [dataset.channels, dataset.image_size, dataset.image_size]

    # Nothing here touches the caller's random state, and nothing in it touches us.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = _model(configuration, shape)
        model = model.to(device, memory_format=torch.channels_last)
        method = nn.Identity() if method is None else method.to(device)
        parameters = [{"params": list(model.parameters())}]
        if learned := list(method.parameters()):  # no decay: it would pull a learned mixture towards equal shares
            parameters.append({"params": learned, "weight_decay": 0.0})
        optimiser = torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True)
        trained, optimiser = fabric.setup(model, optimiser)
        loop = _Loop(fabric, trained, method, optimiser, dataset, recipe, configuration, evaluate_every)
        path = None if checkpoint is None else Path(checkpoint)
        if path is not None and resume and path.exists():
            loop.restore(path)
        loop.run(path, progress)

    limited = loop.limited
    metrics = evaluation.readouts(model.encoder, limited, device=device)
    metrics |= {"loss": loop.history[-1]["loss"], "steps": loop.step,
                "images_per_second": loop.step * batch_size / loop.seconds if loop.step else None,
                "skipped": int(getattr(method, "skipped", 0)), "unconverged": int(getattr(method, "unconverged", 0)),
                "peak_memory_mb": _peak_memory(device)}
    loop.history[-1]["knn"] = metrics["knn"]
    record = {"configuration": configuration, "metrics": metrics, "history": loop.history, "image_shape": shape,
              "test_images": len(limited.x_test), "environment": environment,
              "seconds": round(time.perf_counter() - started, 3)}
    if record_to is not None:
        records.write(record, record_to, overwrite=True)
    model.eval()
    return Run(record, model.encoder, model.projector)


class _Loop:
    """The state of a training that a checkpoint keeps, and the steps that change it."""

    def __init__(self, fabric, model, method, optimiser, dataset, recipe, configuration, evaluate_every):
        self.fabric, self.model, self.method, self.optimiser = fabric, model, method, optimiser
        self.dataset, self.recipe, self.configuration = dataset, recipe, configuration
        self.evaluate_every = evaluate_every
        self.epoch, self.step, self.seconds, self.history = 0, 0, 0.0, []
        self.x, self.y = dataset.x_train.to(fabric.device), dataset.y_train.to(fabric.device)
        self.supervised = bool(getattr(getattr(method, "entry", method), "supervised", False))
        self.features = bool(getattr(getattr(method, "entry", method), "features", False))
        self.limited = _limited(dataset, configuration["evaluate_size"])
        self.fixed = self._fixed_views()

    def run(self, path: Path | None, progress: bool) -> None:
        from tqdm import tqdm

        epochs, limit = self.configuration["epochs"], self.configuration["max_steps"] or math.inf
        title = f"{self.configuration['method'] or 'untrained'} {self.configuration['encoder']} {self.dataset.name}"
        if not self.history:
            self.history.append(self._row(None, None, knn=self.evaluate_every > 0 and epochs > 0))
        bar = tqdm(total=epochs, initial=self.epoch, desc=title, unit="epoch", disable=not progress)
        with bar, _stoppable():
            try:
                while self.epoch < epochs and self.step < limit:
                    begun = time.perf_counter()
                    loss, images = self._train_epoch(path, limit)
                    seconds = time.perf_counter() - begun
                    self.seconds += seconds
                    self.epoch += 1
                    last = self.epoch == epochs or self.step >= limit
                    if last or (self.evaluate_every and self.epoch % self.evaluate_every == 0):
                        self.history.append(self._row(loss, images / seconds, knn=not last))
                    if path is not None:
                        self.save(path)
                    bar.update()
                    knn = next((r["knn"] for r in reversed(self.history) if r["knn"] is not None), math.nan)
                    bar.set_postfix_str(f"loss {loss:.4f}, knn {knn:.3f}, {images / seconds:,.0f} images/s")
            except KeyboardInterrupt as stop:
                saved = path if path is not None and path.exists() else None
                raise Interrupted(
                    f"stopped in epoch {self.epoch + 1} of {epochs}; "
                    + (f"the state after the last whole epoch is in {saved}: repeat the same call to go on from there"
                       if saved else "nothing was saved: pass checkpoint=PATH (--checkpoint PATH) to be able to go on")
                ) from stop

    def _train_epoch(self, path: Path | None, limit: float) -> tuple[float, int]:
        batch_size, device = self.configuration["batch_size"], self.fabric.device
        generator = _generator(device, self.configuration["seed"], self.epoch)
        torch.manual_seed(generator.initial_seed())  # for a method or an encoder that draws random numbers itself
        order = torch.randperm(len(self.x), generator=generator, device=device)
        batches = order[: len(order) // batch_size * batch_size].split(batch_size)
        batches = batches[: int(min(len(batches), limit - self.step))]
        self.model.train()
        losses = torch.empty(len(batches), device=device)
        for i, batch in enumerate(batches):
            views = augment.two_views(self.x[batch], generator, self.recipe)
            x = torch.cat(views).contiguous(memory_format=torch.channels_last)
            z, *h = self.model(x, hidden=True) if self.features else (self.model(x),)
            z1, z2 = z.chunk(2)  # one pass for both views: they share the statistics of batch-norm
            more = {"features": h[0].chunk(2)} if h else {}
            try:
                loss = self.method(z1, z2, self.y[batch] if self.supervised else None, **more)
            except ValueError as error:
                if z1.isfinite().all() and z2.isfinite().all():
                    raise
                raise self._diverged(i, path) from error
            self.optimiser.zero_grad()
            self.fabric.backward(loss)
            self.optimiser.step()
            losses[i] = loss.detach()
            if device.type == "cpu" and not losses[i].isfinite():  # elsewhere asking would stall every step
                raise self._diverged(i, path)
        bad = (~losses.isfinite()).nonzero()
        if len(bad):
            raise self._diverged(int(bad[0]), path)
        parameters = [*self.model.parameters(), *self.method.parameters()]
        if not all(p.isfinite().all() for p in parameters):  # the last gradient was bad, its loss was not
            raise self._diverged(len(batches) - 1, path)
        self.step += len(batches)
        return float(losses.mean()), len(batches) * batch_size

    def _diverged(self, batch: int, path: Path | None) -> Diverged:
        kept = f"last good checkpoint {path}" if path is not None and path.exists() else "no checkpoint was written"
        return Diverged(f"loss or weights are not finite at step {self.step + batch + 1} (epoch {self.epoch + 1}, "
                        f"lr={self.configuration['lr']}); {kept}; lower lr or raise the temperature")

    def _fixed_views(self):
        """Views of the batch that all learning curves look at, the same whatever the seed and the method."""
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(self.dataset.x_train), generator=generator)[:DIAGNOSTIC_BATCH]
        x, y = self.dataset.x_train[chosen], self.dataset.y_train[chosen]
        if len(y.unique()) == len(y):
            raise ValueError(f"no class has two of the {len(y)} training images that the learning curves look at; "
                             "train on more images (train_size) or on fewer classes")
        views = augment.two_views(x, generator, self.recipe)
        return *(v.to(self.fabric.device) for v in views), y.to(self.fabric.device)

    @torch.no_grad()
    def _row(self, loss: float | None, rate: float | None, knn: bool) -> dict:
        """One row of the history; the last row's kNN is filled in with the final readout, which computes it anyway."""
        v1, v2, labels = self.fixed
        module = self.model.module  # not Fabric's wrapper: evaluation is in float32
        module.eval()
        log_weights = getattr(self.method, "log_weights", None)
        row = {"epoch": self.epoch, "step": self.step, "loss": loss, "knn": None, "images_per_second": rate}
        if knn:
            sets = []
            for x, y in ((self.limited.x_train, self.limited.y_train), (self.limited.x_test, self.limited.y_test)):
                features = evaluation.embed(module.encoder, x, device=self.fabric.device)
                sets += [features, y.to(features.device)]
            row["knn"] = evaluation.weighted_knn(*sets, num_classes=self.dataset.num_classes,
                                                   k=evaluation.neighbours(len(sets[0])))
        (z1, h1), (z2, h2) = module(v1, hidden=True), module(v2, hidden=True)
        observe = getattr(self.method, "observe", None)
        seen = observe(Contrast.from_views(z1.float(), z2.float(), features=(h1, h2))) if observe else {}
        return row | evaluation.diagnostics(z1, z2, labels, log_weights, self.supervised, (h1, h2)) | seen

    def save(self, path: Path) -> None:
        state = {"configuration": json.dumps(self.configuration), "epoch": self.epoch, "step": self.step,
                 "seconds": self.seconds, "history": json.dumps(self.history),
                 "model": self.model.module.state_dict(), "method": self.method.state_dict(),
                 "skipped": int(getattr(self.method, "skipped", 0)),
                 "unconverged": int(getattr(self.method, "unconverged", 0)), "optimiser": self.optimiser.state_dict()}
        records.write_atomically(path, lambda temporary: torch.save(state, temporary))

    def restore(self, path: Path) -> None:
        try:
            with zipfile.ZipFile(path) as file:
                damaged = file.testzip()  # torch.load does not look at the check sums
            if damaged:
                raise ValueError(f"{damaged} is damaged")
            state = torch.load(path, map_location=self.fabric.device, weights_only=True)
            theirs = json.loads(state["configuration"])
        except Exception as error:
            raise ValueError(f"the checkpoint {path} is corrupt ({error}); delete it or pass another path") from error
        for key in self.configuration | theirs:
            ours, other = self.configuration.get(key), theirs.get(key)
            if ours != other:
                raise ValueError(f"the checkpoint {path} belongs to another run: {key} is {other!r} there and {ours!r} "
                                 "here; use its value, another path, or resume=False (--restart) to start over")
        self.model.module.load_state_dict(state["model"])
        self.method.load_state_dict(state["method"])
        self.optimiser.load_state_dict(state["optimiser"])
        if hasattr(self.method, "skipped"):
            self.method.skipped.fill_(state["skipped"])
        if state["unconverged"]:
            self.method.log_weights.unconverged = state["unconverged"]
        self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
        self.history = json.loads(state["history"])


def main(argv: list[str] | None = None) -> int:
    """`hnlib train --dataset … --method … -o key=value …`: one run from the command line."""
    parser = argparse.ArgumentParser(prog="hnlib train", description="Train one encoder with one method.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--dataset", default="digits", help=", ".join(data.KNOWN))
    parser.add_argument("--method", default="simclr", help=", ".join(methods.CATALOGUE))
    parser.add_argument("--encoder", default="small-cnn", help=", ".join(encoders.ENCODERS))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=1e-6)
    parser.add_argument("--train-size", type=int, help="a class-balanced subset of the training images")
    parser.add_argument("--augmentation", help=f"{', '.join(augment.RECIPES)}; by the channels if not given")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="32-true", help="or bf16-mixed, …")
    parser.add_argument("--evaluate-every", type=int, default=5, metavar="EPOCHS", help="0: only at the end")
    parser.add_argument("--evaluate-size", type=int, metavar="IMAGES", help="limit of the readouts")
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--checkpoint", type=Path, help="written after each epoch, continued if present")
    parser.add_argument("--restart", action="store_true", help="ignore an existing checkpoint")
    parser.add_argument("--data-root", type=Path, help="default: $HNLIB_DATA, else the user's cache")
    parser.add_argument("--experiment", default="images", help="the name under which the Results page lists the record")
    parser.add_argument("--save", type=Path, help="write the trained encoder here (safetensors)")
    parser.add_argument("--record", action="store_true", help="write to book/results/runs, which the book shows")
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="KEY=VALUE",
                        help="option of the method")
    args = vars(parser.parse_args(argv))
    save, record, restart = args.pop("save"), args.pop("record"), args.pop("restart")
    folder = records.tracked_folder() if record else records.default_folder()
    options = dict(_option(text) for text in args.pop("options"))
    clash = sorted(options.keys() & inspect.signature(train).parameters.keys())
    if clash:
        raise ValueError(f"-o {clash[0]}: this is not an option of a method; use --{clash[0].replace('_', '-')}")
    try:
        run = train(**args, resume=not restart, record_to=folder, progress=sys.stderr.isatty(), **options)
    except Interrupted as stop:
        print(f"hnlib train: {stop}", file=sys.stderr)
        return 130
    if save:
        run.save(save)
    metrics = run.metrics
    print(f"knn {metrics['knn']:.4f}  linear {metrics['linear']:.4f}  {run.record['seconds']:.1f} s  "
          f"{folder / records.name(run.record['configuration'])}.json")
    return 0


def setting(record: dict) -> str:
    """Where a recorded run was made, but for method, options and seed: data, encoder, epochs, what else is unusual.

    "cifar10, 10000 images, small-cnn, 10 epochs". Runs of one method with one `setting` and the same `methods.changed`
    options differ in their seed alone. Usual is the default of `train`, and for the augmentation that of the channels.
    """
    c, usual = record["configuration"], inspect.signature(train).parameters
    text = f"{c['dataset']}, {c['train_size'] or 'all'} images, {c['encoder']}, {c['epochs']} epochs"
    for key in ("batch_size", "lr", "weight_decay", "precision", "max_steps", "evaluate_size"):
        text += f", {key} {c[key]}" if c[key] != usual[key].default else ""
    recipe = asdict(augment.resolve(augment.recipe_for(record["image_shape"][0])))
    return text + ("" if c["augmentation"] == json.loads(json.dumps(recipe)) else f", {c['augmentation']}")


def _method(method, options: dict, epochs: int):
    if isinstance(method, str):
        return methods.build(method, **options)
    if options:
        raise ValueError(f"unknown option {next(iter(options))!r}; method options go with a method's name")
    if method is None and epochs:
        raise ValueError(f"method=None trains nothing; name a method ({', '.join(methods.CATALOGUE)}) or pass epochs=0")
    return method


def _model(configuration: dict, shape) -> Model:
    encoder = encoders.build(configuration["encoder"], shape[0], shape[1])
    return Model(encoder, encoders.Projector(encoder.feature_dim, hidden=min(512, encoder.feature_dim)))


def _fabric(device: str, precision: str):
    import lightning_fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    try:
        return lightning_fabric.Fabric(accelerator=device, devices=1, precision=precision)
    except Exception as error:
        raise ValueError(f"device={device!r} with precision={precision!r} is not possible here: {error}") from error


def _limited(dataset: data.Dataset, size: int | None) -> data.Dataset:
    """At most `size` images in each split, class-balanced."""
    if size is None:
        return dataset
    flipped = replace(dataset, x_train=dataset.x_test, y_train=dataset.y_test)
    test = data.subset(flipped, min(size, len(dataset.x_test)), seed=0)
    train = data.subset(dataset, min(size, len(dataset.x_train)), seed=0)
    return replace(train, x_test=test.x_train, y_test=test.y_train)


def _generator(device, seed: int, epoch: int) -> torch.Generator:
    """All randomness of one epoch: a function of seed and epoch alone, so that resuming needs no random state."""
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]))


def _plain(value):
    """An option as a record can hold it: numbers, words, and a function by its name."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else getattr(value, "__qualname__", str(value))


def _option(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"-o {text}: an option is written KEY=VALUE, for example -o beta=1.0")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _peak_memory(device: torch.device) -> float | None:
    """MB: of the GPU, or of the whole process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


@contextmanager
def _stoppable():
    """SIGTERM ends the training as Ctrl-C does. Signals can be handled in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
