"""The catalogue: every method of the book as one objective and one distribution over negatives."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real

import torch
from torch import Tensor, nn

from hnlib import negatives, objectives
from hnlib.contrast import Contrast


@dataclass(frozen=True)
class Entry:
    """One row of the catalogue: title, paper (bibliography key), the two choices, need of labels, default options.

    `features`: whether the weights need the inputs of the last linear layer. `observe`: what a learning curve should
    also show, `observe(contrast, log_w, options) -> {name: number}`.
    """

    title: str
    paper: str
    objective: Callable
    negatives: Callable
    supervised: bool
    defaults: dict
    features: bool = False
    observe: Callable | None = None


def _guarded(contrast: Contrast, log_w: Tensor, options: dict) -> dict:
    acts = objectives.guarded(contrast, log_w, **_accepted(objectives.guarded, options))
    return {"guarded": float(acts.float().mean())}


def _temperatures(contrast: Contrast, log_w: Tensor, options: dict) -> dict:
    t = objectives.budget_temperature(contrast, log_w, **_accepted(objectives.budget_temperature, options))
    low, middle, high = torch.quantile(t, t.new_tensor([0.1, 0.5, 0.9])).tolist()
    return {"temperature": middle, "temperature_low": low, "temperature_high": high}


#: Every method by name. Read it: `CATALOGUE["hcl"].defaults`.
CATALOGUE = {
    "simclr": Entry("SimCLR", "simclr", objectives.info_nce, negatives.uniform, False, dict(temperature=0.5)),
    "debiased": Entry(
        "Debiased", "dcl", objectives.info_nce, negatives.uniform, False, dict(temperature=0.5, tau_plus=0.1)
    ),
    "hcl": Entry(
        "HCL", "hcl", objectives.info_nce, negatives.tilted, False,
        dict(temperature=0.5, beta=1.0, tau_plus=0.1, weights_gradient=True),
    ),
    "ot": Entry(
        "Entropic OT", "hclot", objectives.info_nce, negatives.entropic_ot, False,
        dict(temperature=0.5, epsilon=0.5, tau_plus=0.1, cost=None, tol=1e-4, max_iterations=1000, on_failure="warn"),
    ),
    "ot-semirelaxed": Entry(
        "Semi-relaxed OT", "ours", objectives.info_nce, negatives.semi_relaxed_ot, False,
        dict(temperature=0.5, epsilon=0.5, relaxation=1.0, tau_plus=0.1, cost=None, tol=1e-4, max_iterations=1000,
             on_failure="warn"),
    ),
    "hcl-exact": Entry(
        "HCL, exactly debiased", "ours", objectives.exact_debiased, negatives.tilted, False,
        dict(temperature=0.5, beta=1.0, tau_plus=0.1, weights_gradient=True), observe=_guarded,
    ),
    "centred-hcl": Entry(
        "Centred HCL", "ours", objectives.info_nce, negatives.centred_tilt, False,
        dict(temperature=0.5, epsilon=0.5, tau_plus=0.1, weights_gradient=False),
    ),
    "bcl": Entry(
        "BCL", "hclot", objectives.basic, negatives.tilted, False,
        dict(temperature=0.5, beta=1.0, weights_gradient=True),
    ),
    "alpha-cl": Entry(
        "α-CL-direct", "tian2022", objectives.basic, negatives.tilted, False,
        dict(temperature=0.5, beta=1.0, weights_gradient=False),
    ),
    "adnce": Entry(
        "ADNCE", "dro", objectives.info_nce, negatives.gaussian, False,
        dict(temperature=0.5, mu=0.7, sigma=1.0, weights_gradient=False),
    ),
    "mw": Entry("Mean–variance", "dro", objectives.mean_variance, negatives.uniform, False, dict(temperature=0.5)),
    "chi2-dro": Entry("χ²-DRO", "dro", objectives.basic, negatives.chi2_ball, False, dict(eta=0.2)),
    "kl-budget": Entry(
        "KL budget", "ours", objectives.kl_budget, negatives.uniform, False,
        dict(eta=0.5, order=0, floor=0.01), observe=_temperatures,
    ),
    "unremix": Entry(
        "UnReMix", "unremix", objectives.info_nce, negatives.unremix, False,
        dict(temperature=0.5, mixture=(1 / 3, 1 / 3, 1 / 3), learn="fixed"), features=True,
    ),
    "unremix-repaired": Entry(
        "UnReMix, repaired", "ours", objectives.info_nce, negatives.unremix_repaired, False,
        dict(temperature=0.5, beta=1.0, mixture=(1 / 3, 1 / 3, 1 / 3), learn="fixed", weights_gradient=False),
    ),
    "scl": Entry(
        "SCL", "supcon", objectives.info_nce, negatives.uniform, True,
        dict(temperature=0.5, positives="class", average="anchors", on_empty="raise"),
    ),
    "h-scl": Entry(
        "H-SCL(β)", "hscl", objectives.info_nce, negatives.tilted, True,
        dict(temperature=0.5, beta=1.0, weights_gradient=True, positives="class", average="anchors", on_empty="raise"),
    ),
    "h-scl-threshold": Entry(
        "H-SCL(τ)", "hscl", objectives.info_nce, negatives.thresholded, True,
        dict(temperature=0.5, tau=math.exp(-0.2), positives="class", average="anchors", on_empty="skip"),
    ),
}


class Method(nn.Module):
    """A loss to call on two views: `method(z1, z2, labels=None)`, with `z1`, `z2` $[B,d]$ and `labels` $[B]$.

    Supervised methods need the labels; the others ignore them. Where `entry.features` is true the inputs of the last
    linear layer are needed too: `features=(h1, h2)`, $[B,k]$ each. The loss is computed outside autocast, in float32.
    `log_weights(contrast)` gives the distribution over negatives alone, `observe(contrast)` the numbers that a method
    wants to see in its learning curve. `skipped` counts the anchors left out for want of a negative, `unconverged` the
    couplings that missed their tolerance. A `mixture` is kept (`learn="fixed"`) or the start of a softmax of trained
    parameters, which descend the loss ("minimise", as UnReMix) or climb it ("maximise"); a share of zero starts at
    1e-6. Built by `build`.
    """

    def __init__(self, name: str, entry: Entry, options: dict, rebuild: Callable | None = None):
        super().__init__()
        self.name, self.entry, self._missed, self._rebuild = name, entry, 0, rebuild or build
        if (learn := options.get("learn", "fixed")) not in LEARN:
            raise ValueError(f"learn={learn!r} is unknown; use {', '.join(LEARN)}")
        if learn != "fixed":
            start = torch.tensor(options["mixture"], dtype=torch.float32)
            if abs(float(start.sum()) - 1) > 1e-3:  # a softmax would change the hardness unasked
                raise ValueError(f"mixture={tuple(options['mixture'])} is learned as shares; make them sum to one")
            self.logits = nn.Parameter(start.clamp_min(1e-6).log())
        self._set(options)
        self.register_buffer("skipped", torch.zeros((), dtype=torch.long), persistent=False)

    def change(self, **options) -> None:
        """Give options other values while training, as a schedule does; the counts and learned parameters stay.

        ValueError: as in `build`; a mixture that is learned.
        """
        if hasattr(self, "logits") and "mixture" in options:
            raise ValueError(f"{self.name} learns its mixture; a schedule for it needs learn='fixed'")
        missed, options = self.unconverged, self._rebuild(self.name, **self.options | options).options
        self._set(options)
        self._missed = missed

    def _set(self, options: dict) -> None:
        self.options = options
        self.objective = partial(self.entry.objective, **_accepted(self.entry.objective, options))
        self.log_weights = self.entry.negatives(**_accepted(self.entry.negatives, options))
        if hasattr(self, "logits"):
            self.log_weights = self._learned  # bound: a deep copy then follows its own mixture

    @property
    def unconverged(self) -> int:
        return self._missed + getattr(self.log_weights, "unconverged", 0)

    @unconverged.setter
    def unconverged(self, count: int) -> None:
        self._missed = count - getattr(self.log_weights, "unconverged", 0)

    @property
    def mixture(self) -> Tensor:
        r"""The learned $\lambda$ $[3]$; its gradient is turned round where it climbs the loss."""
        mixture = self.logits.softmax(0)
        return mixture if self.options["learn"] == "minimise" else 2 * mixture.detach() - mixture

    def _learned(self, contrast: Contrast) -> Tensor:
        weights = _accepted(self.entry.negatives, self.options | {"mixture": self.mixture})
        return self.entry.negatives(**weights)(contrast)

    def observe(self, contrast: Contrast) -> dict[str, float]:
        seen = {} if not hasattr(self, "logits") else dict(zip("usr", self.mixture.tolist(), strict=True))
        if self.entry.observe is not None:
            seen |= self.entry.observe(contrast, self.log_weights(contrast), self.options)
        return seen

    def forward(
        self, z1: Tensor, z2: Tensor, labels: Tensor | None = None, features: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        if self.entry.supervised and labels is None:
            raise ValueError(f"{self.name} learns from labels; call it as method(z1, z2, labels)")
        if self.entry.features and features is None:
            raise ValueError(f"{self.name} needs the inputs of the last layer; call it as method(z1, z2, "
                             "features=(h1, h2))")
        with torch.autocast(z1.device.type, enabled=False):
            return self.loss(Contrast.from_views(
                z1, z2, labels if self.entry.supervised else None, self.options.get("positives", "class"),
                features if self.entry.features else None,
            ))

    def loss(self, contrast: Contrast) -> Tensor:
        """The loss of a contrast made elsewhere, with a queue for one."""
        if self.entry.supervised and contrast.labels is None:
            raise ValueError(f"{self.name} learns from labels; build the contrast with labels=…")
        with torch.autocast(contrast.similarity.device.type, enabled=False):
            log_w = self.log_weights(contrast)
            if self.options.get("on_empty") == "skip":
                self.skipped += (log_w.amax(1) == -torch.inf).sum()
            return self.objective(contrast, log_w)

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])


LEARN = ("fixed", "minimise", "maximise")  # what may happen to a mixture while training


def build(name: str, **options) -> Method:
    """The method of that name with its options changed from the catalogue's defaults: `build("hcl", beta=2.0)`.

    One `temperature` serves weights and objective alike. ValueError: an unknown name, an option the method does not
    have (both list the known ones), a value of another kind than the default or out of range.
    """
    eye = torch.eye(4)
    return assemble(CATALOGUE, name, options, build,
                    lambda method: method(eye[:2], eye[2:], torch.arange(2), (eye[:2], eye[2:])))


def assemble(catalogue: dict[str, Entry], name: str, options: dict, rebuild: Callable, trial: Callable) -> Method:
    """A method of any catalogue, its options checked; what `build` of this room and of `hnlib.graphs` share.

    `trial(method)` calls it on a small contrast: every range is checked where it is used, and that brings the errors
    forward to here. `rebuild` is the function that `Method.change` then calls.
    """
    if name not in catalogue:
        raise ValueError(f"method {name!r} is unknown; the catalogue has {', '.join(catalogue)}")
    entry = catalogue[name]
    unknown = [option for option in options if option not in entry.defaults]
    if unknown:
        raise ValueError(f"{name} has no option {unknown[0]!r}; it has {', '.join(entry.defaults)}")
    for option, value in options.items():
        _check_kind(f"{name}: {option}", value, entry.defaults[option])
    options = {**entry.defaults, **options}
    method = Method(name, entry, options, rebuild)
    # Options made for one batch size (a value per anchor, a cost) are left out of the trial.
    plain = {k: entry.defaults[k] if isinstance(v, Tensor) or callable(v) else v for k, v in options.items()}
    if "on_empty" in plain:  # whether an anchor is left without negatives is for the real batch to say
        plain["on_empty"] = "skip"
    trial(Method(name, entry, plain, rebuild))
    return method


def changed(name: str | None, options: dict, framework: str | None = None) -> dict:
    """The `options` that are not the catalogue's, in its order; tuples as the lists that a record makes of them.

    `framework` "infograph": the catalogue of `hnlib.graphs`. All options of a method that is in no catalogue.
    """
    catalogue = CATALOGUE
    if framework == "infograph":
        try:
            from hnlib.graphs import CATALOGUE as catalogue  # a floor above, and an optional one
        except ImportError:
            return options
    if name not in catalogue:
        return options
    default = json.loads(json.dumps(catalogue[name].defaults))
    return {k: options[k] for k in default if k in options and options[k] != default[k]}


def _check_kind(what: str, value, default) -> None:
    """ValueError unless `value` is of the kind of `default`: the word "False", for one, would count as true."""
    if default is None:
        fits, kind = value is None or callable(value), "a function"
    elif isinstance(default, bool):
        fits, kind = isinstance(value, bool), "True or False (on the command line: true or false)"
    elif isinstance(default, tuple):
        numbers = isinstance(value, list | tuple) and all(isinstance(v, Real) for v in value)
        fits, kind = numbers and len(value) == len(default), f"{len(default)} numbers"
    elif isinstance(default, str):
        fits, kind = isinstance(value, str), "a word"
    elif isinstance(default, int):
        fits, kind = isinstance(value, Integral) and not isinstance(value, bool), "a whole number"
    else:
        fits, kind = isinstance(value, Real | Tensor) and not isinstance(value, bool), "a number"
    if not fits:
        raise ValueError(f"{what} must be {kind}, not {value!r}")


def _accepted(function: Callable, options: dict) -> dict:
    return {k: v for k, v in options.items() if k in inspect.signature(function).parameters}
