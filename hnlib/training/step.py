"""How a training step is carried out: operator by operator, compiled, or replayed as a CUDA graph.

A run is asked for with one kind of step (`Execution.step`). Its name is the same with each, so that
what is recorded is recalled. But kinds round differently: a record says its own unless it is eager,
beside the processor, so that no seed is compared across kinds, and a run that is resumed keeps the
kind it began with. Graphs have not run on a card yet.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from hnlib import masks, negatives

#: Compiler of a compiled step, as torch names it
BACKEND = "inductor"
WARM_UP = 3  # steps before a capture: libraries choose their algorithms, and Adam makes its state


def check(kind: str, task, run, device: torch.device, processes: int = 1) -> None:
    """Raise ValueError unless such a step can train a run of a kind of data (a class of task)."""
    if kind == "eager":
        return
    if not task.fixed_shapes:
        raise ValueError(
            f"step={kind} requires a kind of data whose batches all have one shape, such as "
            f"images, not {run.kind}; use step=eager"
        )
    for name in ("queue", "schedule"):  # a queue grows; an option that moves is compiled anew
        if getattr(run, name):
            raise ValueError(f"{name} requires step=eager, got step={kind}")
    if processes > 1:
        raise ValueError(f"step={kind} requires one process, got {processes}; use step=eager")
    if kind == "graph" and device.type != "cuda":
        raise ValueError(f"step=graph requires a CUDA device, got {device}; use step=compiled")


def make(kind: str, loop):
    """Return what carries out the steps of a loop: called with a batch and its generator.

    It returns the loss and whether the embeddings were finite, tensors of no dimension that the
    next call may overwrite.
    """
    return {"eager": Eager, "compiled": Compiled, "graph": Graph}[kind](loop)


class Eager:
    """One operator after the other."""

    kind = "eager"

    def __init__(self, loop):
        self.loop = loop

    def __call__(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.loop.advance(batch, generator)


class Compiled(Eager):
    """What the views are made of, the network and the loss compiled, where torch can.

    Random numbers, Adam and evaluation stay as they are. If the first step cannot be compiled,
    training is eager after a warning.
    """

    kind = "compiled"

    def __init__(self, loop):
        super().__init__(loop)
        # A run before this one may have used up how often torch compiles the same function
        torch.compiler.reset()
        self.plain = loop.trained, loop.criterion, loop.task.render
        self.ready = False
        loop.trained = torch.compile(loop.trained, backend=BACKEND)
        # a hundred iterations, unrolled, would compile for minutes
        if not isinstance(getattr(loop.method, "log_weights", None), negatives.semi_relaxed_ot):
            # called on two views; other calls, as of mixtures, pass through
            loop.criterion = torch.compile(loop.criterion, backend=BACKEND)
        if loop.task.render is not None:
            loop.task.render = torch.compile(loop.task.render, backend=BACKEND)

    def __call__(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self.ready or self.kind == "eager":
            return self.loop.advance(batch, generator)
        drawn, changed = generator.get_state(), _copies(self._buffers())
        try:
            done = self.loop.advance(batch, generator)
        except torch._dynamo.exc.TorchDynamoException as error:  # pyright: ignore
            reason = " ".join(str(error).split())[:200]
            warnings.warn(f"the step could not be compiled and stays eager: {reason}", stacklevel=2)
            # some parts may have run before one failed
            _set_back(self._buffers(), changed)
            generator.set_state(drawn)
            torch.manual_seed(generator.initial_seed())  # as at the start of the epoch
            self.kind = "eager"
            self.loop.trained, self.loop.criterion, self.loop.task.render = self.plain
            return self.loop.advance(batch, generator)
        self.ready = True
        return done

    def _buffers(self) -> list[Tensor]:
        """Return what a forward pass changes: statistics of batch norms, and counts."""
        return [*self.loop.model.buffers(), *self.loop.method.buffers()]


class Graph(Eager):
    """The whole step, recorded once as a CUDA graph and replayed.

    A graph reads and writes the same memory at each replay. So whatever a step takes or leaves is a
    tensor that stays where it is: the batch, the rate, weights, buffers, Adam's state, the masks
    that batches share, the conditions of `hnlib._checks.deferred`.
    """

    kind = "graph"

    def __init__(self, loop):
        super().__init__(loop)
        self.graph: Any = None

    def __call__(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self.graph is None:
            self._capture(batch, generator)
        if generator is not self.of_epoch:  # a new one each epoch; the graph knows its own alone
            self.of_epoch = generator
            self.generator.set_state(generator.get_state())
        self.batch.copy_(batch)
        self.graph.replay()
        return self.out

    def _capture(self, batch: Tensor, generator: torch.Generator) -> None:
        """Record a step, now that weights and Adam's state are those that training begins with."""
        loop = self.loop
        self.batch, self.of_epoch = batch.clone(), None
        self.generator = torch.Generator(batch.device)
        self.generator.set_state(generator.get_state())
        for group in loop.optimiser.param_groups:
            group["capturable"] = True
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=batch.device)

        # other streams than the current one: what a library prepares must not be recorded
        stream = torch.cuda.Stream(batch.device)
        stream.wait_stream(torch.cuda.current_stream(batch.device))
        values, moments = _copies(self._values()), _copies(self._moments())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                loop.advance(self.batch, self.generator)
        torch.cuda.current_stream(batch.device).wait_stream(stream)

        # back to the beginning, in place; Adam's state begins at zero unless it was loaded
        _set_back(self._values(), values)
        _set_back(self._moments(), moments or [torch.zeros_like(x) for x in self._moments()])
        torch.manual_seed(generator.initial_seed())  # as at the start of the epoch
        loop.conditions.forget()
        self.masks = masks.alive()  # evaluation at another size would let the method forget them

        # without gradients, so that the backward pass makes them in the graph's own memory
        loop.optimiser.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        with torch.cuda.graph(self.graph, stream=stream):
            self.out = loop.advance(self.batch, self.generator)

    def _values(self) -> list[Tensor]:
        parts = self.loop.model, self.loop.method
        return [x for part in parts for x in (*part.parameters(), *part.buffers())]

    def _moments(self) -> list[Tensor]:
        return [x for state in self.loop.optimiser.state.values() for x in state.values()]


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [x.detach().clone() for x in tensors]


@torch.no_grad()
def _set_back(tensors: list[Tensor], values: list[Tensor]) -> None:
    """Write values into tensors, which stay where they are."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
