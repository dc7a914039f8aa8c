"""The catalogue: every method of the book as one objective and one distribution over negatives."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from hnlib import _checks, mixtures, negatives, objectives
from hnlib._checks import outside_autocast, transformed
from hnlib.contrast import Contrast


def _on_views(method: Method) -> Tensor:
    eye = torch.eye(4)
    return method(eye[:2], eye[2:], torch.arange(2), (eye[:2], eye[2:]))


@dataclass(frozen=True)
class Entry:
    """One row of the catalogue: title, paper (bibliography key), the two choices, need of labels,
    default options.

    `features`: whether the weights need the inputs of the last linear layer. `made_up`: what adds
    negatives that no image has to a contrast (`hnlib.mixtures`), before it is weighted. `observe`:
    what a learning curve should also show, `observe(contrast, log_w, options) -> {name: number}`.
    `later`: options, with defaults, that came after the first records: a record's name holds them
    only where they are not at their default, so that old names stay true. `trial(method)` calls a
    method on a small contrast: every range is checked where it is used, and that brings the errors
    forward.
    """

    title: str
    paper: str
    objective: Callable
    negatives: Callable
    supervised: bool
    defaults: dict
    features: bool = False
    made_up: Callable | None = None
    observe: Callable | None = None
    later: dict = field(default_factory=dict)
    trial: Callable[[Method], Tensor] = _on_views

    @property
    def options(self) -> dict:
        """Every option with its default."""
        return self.defaults | self.later

    def recorded(self, options: dict) -> dict:
        """The options that enter a record's name, 1 as 1.0: all but those of `later` at their
        default."""
        exact = {k for k, v in self.options.items() if isinstance(v, float)}
        plain = {k: float(v) if k in exact and type(v) is int else v for k, v in options.items()}
        return {k: v for k, v in plain.items() if k not in self.later or v != self.later[k]}

    def changed(self, options: dict) -> dict:
        """The options not at their default, in the entry's order; tuples as a record's lists."""
        known, given = (
            {k: list(v) if isinstance(v, tuple) else v for k, v in all_of.items()}
            for all_of in (self.options, options)
        )
        return {k: given[k] for k in known if k in given and given[k] != known[k]}

    def build(self, name: str, options: dict) -> Method:
        """The method of this row with `options` changed, checked as `hnlib.methods.build` says."""
        return Method(name, self, self.checked(name, options))

    def checked(self, name: str, options: dict) -> dict:
        """All options, `options` in the place of defaults. ValueError: as `hnlib.methods.build`."""
        known = self.options
        unknown = [option for option in options if option not in known]
        if unknown:
            raise ValueError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known)}")
        options = known | options
        # Options made for one batch size (a value per anchor, a cost) are left out of the trial.
        plain = {
            k: known[k] if isinstance(v, Tensor) or callable(v) else v for k, v in options.items()
        }
        if "on_empty" in plain:  # that an anchor has no negative is for the real batch to say
            plain["on_empty"] = "skip"
        self.trial(Method(name, self, plain))
        return options


def _guarded(contrast: Contrast, log_w: Tensor, options: dict) -> dict:
    acts = objectives.guarded(contrast, log_w, **_accepted(objectives.guarded, options))
    return {"guarded": float(acts.float().mean())}


def _temperatures(contrast: Contrast, log_w: Tensor, options: dict) -> dict:
    t = objectives.budget_temperature(
        contrast, log_w, **_accepted(objectives.budget_temperature, options)
    )
    low, middle, high = torch.quantile(t, t.new_tensor([0.1, 0.5, 0.9])).tolist()
    return {"temperature": middle, "temperature_low": low, "temperature_high": high}


def _row(
    title: str, paper: str, objective, weights, supervised=False, **more
) -> Callable[..., Entry]:
    """A row whose options, with their defaults, are said in a second call."""
    return lambda **defaults: Entry(title, paper, objective, weights, supervised, defaults, **more)


_NCE = objectives.info_nce
_SINKHORN = dict(cost=None, tol=1e-4, max_iterations=1000, on_failure="warn")
_THIRDS = dict(mixture=(1 / 3, 1 / 3, 1 / 3), learn="fixed")
#: Every method by name. Read it: `CATALOGUE["hcl"].defaults`.
CATALOGUE = {
    "simclr": _row("SimCLR", "simclr", _NCE, negatives.uniform, later={"hardness_strength": 0.0})(
        temperature=0.5
    ),
    "debiased": _row("Debiased", "dcl", _NCE, negatives.uniform)(temperature=0.5, tau_plus=0.1),
    "hcl": _row("HCL", "hcl", _NCE, negatives.tilted)(
        temperature=0.5, beta=1.0, tau_plus=0.1, weights_gradient=True
    ),
    "ot": _row("Entropic OT", "hclot", _NCE, negatives.entropic_ot)(
        temperature=0.5, epsilon=0.5, tau_plus=0.1, **_SINKHORN
    ),
    "ot-semirelaxed": _row("Semi-relaxed OT", "ours", _NCE, negatives.semi_relaxed_ot)(
        temperature=0.5, epsilon=0.5, relaxation=1.0, tau_plus=0.1, **_SINKHORN
    ),
    "hcl-exact": _row(
        "HCL, exactly debiased",
        "ours",
        objectives.exact_debiased,
        negatives.tilted,
        observe=_guarded,
    )(temperature=0.5, beta=1.0, tau_plus=0.1, weights_gradient=True),
    "centred-hcl": _row("Centred HCL", "ours", _NCE, negatives.centred_tilt)(
        temperature=0.5, epsilon=0.5, tau_plus=0.1, weights_gradient=False
    ),
    "bcl": _row("BCL", "hclot", objectives.basic, negatives.tilted)(
        temperature=0.5, beta=1.0, weights_gradient=True
    ),
    "bcl-ot": _row("BCL, entropic OT", "hclot", objectives.basic, negatives.entropic_ot)(
        epsilon=0.5, **_SINKHORN
    ),
    "alpha-cl": _row(
        "α-CL-direct", "tian2022", objectives.basic, negatives.tilted, later=dict(exponent=1.0)
    )(temperature=0.5, beta=1.0, weights_gradient=False),
    "adnce": _row("ADNCE", "dro", _NCE, negatives.gaussian)(
        temperature=0.5, mu=0.7, sigma=1.0, weights_gradient=False
    ),
    "mw": _row("Mean–variance", "dro", objectives.mean_variance, negatives.uniform)(
        temperature=0.5
    ),
    "chi2-dro": _row("χ²-DRO", "dro", objectives.basic, negatives.chi2_ball)(eta=0.2),
    "kl-budget": _row(
        "KL budget", "ours", objectives.kl_budget, negatives.uniform, observe=_temperatures
    )(eta=0.5, order=0, floor=0.01),
    "unremix": _row(
        "UnReMix",
        "unremix",
        _NCE,
        negatives.unremix,
        features=True,
        later=dict(gradient="pseudo-label"),
    )(temperature=0.5, **_THIRDS),
    "unremix-repaired": _row("UnReMix, repaired", "ours", _NCE, negatives.unremix_repaired)(
        temperature=0.5, beta=1.0, **_THIRDS, weights_gradient=False
    ),
    "mochi": _row("MoCHi", "kalantidis2020", _NCE, negatives.uniform, made_up=mixtures.mochi)(
        temperature=0.5, hardest=32, pairs=32, with_anchor=4
    ),
    "scl": _row("SCL", "supcon", _NCE, negatives.uniform, True)(
        temperature=0.5, positives="class", average="anchors", on_empty="raise"
    ),
    "h-scl": _row("H-SCL(β)", "hscl", _NCE, negatives.tilted, True)(
        temperature=0.5,
        beta=1.0,
        weights_gradient=True,
        positives="class",
        average="anchors",
        on_empty="raise",
    ),
    "h-scl-threshold": _row(
        "H-SCL(τ)", "hscl", _NCE, negatives.thresholded, True, later=dict(level=None)
    )(temperature=0.5, tau=math.exp(-0.2), positives="class", average="anchors", on_empty="skip"),
}


class Method(nn.Module):
    """A loss to call on two views: `method(z1, z2, labels=None)`, with `z1`, `z2` $[B,d]$ and
    `labels` $[B]$.

    Supervised methods need the labels; the others ignore them. Where `entry.features` is true the
    inputs of the last linear layer are needed too: `features=(h1, h2)`, $[B,k]$ each. The loss is
    computed outside autocast, in float32. `log_weights` is the distribution over negatives, a value
    of `hnlib.negatives` to call with a contrast, and `objective` what is made of it;
    `observe(contrast)` gives the numbers that a method wants to see in its learning curve.
    `skipped` counts the anchors left out for want of a negative, `unconverged` the couplings that
    missed their tolerance, both on the device. A `mixture` is kept (`learn="fixed"`) or the start
    of a softmax of trained parameters, which descend the loss ("minimise", as UnReMix) or climb it
    ("maximise"); a share of zero starts at 1e-6. Built by `build`; pickles and copies.
    """

    skipped: Tensor
    unconverged: Tensor

    def __init__(self, name: str, entry: Entry, options: dict):
        super().__init__()
        self.name, self.entry = name, entry
        self._set(options)  # which checks them
        learn = options.get("learn", "fixed")
        _checks.one_of("learn", learn, LEARN)
        if learn != "fixed":
            start = torch.tensor(options["mixture"], dtype=torch.float32)
            if abs(float(start.sum()) - 1) > 1e-3:  # a softmax would change the hardness unasked
                given = tuple(options["mixture"])
                raise ValueError(f"mixture={given} is learned as shares; make them sum to one")
            self.logits = nn.Parameter(start.clamp_min(1e-6).log())
        for count in ("skipped", "unconverged"):
            self.register_buffer(count, torch.zeros((), dtype=torch.long), persistent=False)

    def _set(self, options: dict) -> None:
        self.options = options
        self.objective = partial(self.entry.objective, **_accepted(self.entry.objective, options))
        self._weights = self.entry.negatives(**_accepted(self.entry.negatives, options))
        made_up = self.entry.made_up
        self._made_up = None if made_up is None else made_up(**_accepted(made_up, options))

    def change(self, **options) -> None:
        """Give options other values while training, as a schedule does; the counts and learned
        parameters stay.

        ValueError: as in `build`; a mixture that is learned.
        """
        if hasattr(self, "logits") and "mixture" in options:
            raise ValueError(
                f"{self.name} learns its mixture; a schedule for it needs learn='fixed'"
            )
        self._set(self.entry.checked(self.name, self.options | options))

    def copy(self) -> Method:
        """A method of the same options, with parameters of its own and counts at zero."""
        own = copy.deepcopy(self)
        own.skipped.zero_()
        own.unconverged.zero_()
        return own

    @property
    def log_weights(self) -> negatives.Weighting:
        """The distribution over negatives, with the mixture as learned so far."""
        learned = {"mixture": self.mixture} if hasattr(self, "logits") else {}
        return replace(self._weights, **learned) if learned else self._weights

    @property
    def mixture(self) -> Tensor:
        r"""The learned $\lambda$ $[3]$; its gradient is turned round where it climbs the loss."""
        mixture = self.logits.softmax(0)
        return mixture if self.options["learn"] == "minimise" else 2 * mixture.detach() - mixture

    def observe(self, contrast: Contrast) -> dict[str, float]:
        """What the learning curve should also show of this contrast; {} for most methods."""
        learned = hasattr(self, "logits")
        seen = dict(zip("usr", self.mixture.tolist(), strict=True)) if learned else {}
        if self.entry.observe is not None:
            seen |= self.entry.observe(contrast, self.log_weights(contrast), self.options)
        return seen

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        labels: Tensor | None = None,
        features: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        entry = self.entry
        if entry.supervised and labels is None:
            raise ValueError(f"{self.name} learns from labels; call it as method(z1, z2, labels)")
        if entry.features and features is None:
            raise ValueError(
                f"{self.name} needs the inputs of the last layer; call it as method(z1, z2, "
                "features=(h1, h2))"
            )
        contrast = Contrast.from_views(
            z1,
            z2,
            labels if entry.supervised else None,
            self.options.get("positives", "class"),
            features if entry.features else None,
        )
        return self.loss(contrast)

    def pairs(
        self,
        queries: Tensor,
        keys: Tensor,
        positives: Tensor | None = None,
        labels: Tensor | None = None,
        both: bool = False,
    ) -> Tensor:
        """The loss of queries $[n,d]$ and keys $[m,d]$, as `Contrast.from_pairs` takes them; with
        `both` the mean of this direction and of the keys' (CLIP). With the option
        `positives="view"` labels take negatives away and add no answers."""
        contrast = Contrast.from_pairs(queries, keys, positives, labels)
        if labels is not None and self.options.get("positives") == "view":
            own = torch.eye(*contrast.similarity.shape, dtype=torch.bool, device=keys.device)
            own = own if positives is None else own | positives
            contrast = replace(contrast, positives=own, _facts={})
        loss = self.loss(contrast)
        return (loss + self.loss(contrast.reversed())) / 2 if both else loss

    def extended(self, contrast: Contrast) -> Contrast:
        """The contrast with the negatives that the method makes up; most methods make up none."""
        return contrast if self._made_up is None else self._made_up(contrast)

    def loss(self, contrast: Contrast, reduction: str = "mean") -> Tensor:
        """The loss of a contrast made elsewhere, with a queue for one; or $[n]$, that of each
        anchor ("none")."""
        if self.entry.supervised and contrast.labels is None:
            raise ValueError(f"{self.name} learns from labels; build the contrast with labels=…")
        with outside_autocast(contrast.similarity.device):
            contrast = self.extended(contrast)
            return self.objective(contrast, self._counted(contrast), reduction=reduction)

    def _counted(self, contrast: Contrast) -> Tensor:
        """The weights, after counting what they left undone."""
        weights = self.log_weights
        if (solve := getattr(weights, "coupling", None)) is not None:
            coupling = solve(contrast)
            done = coupling.converged  # a tensor where asking would make the device wait
            self._count(self.unconverged, not done if isinstance(done, bool) else ~done)
            return coupling.log_conditional
        log_w = weights(contrast)
        if self.options.get("on_empty") == "skip":
            self._count(self.skipped, (log_w.detach().amax(1) == -torch.inf).sum())
        return log_w

    def _count(self, counter: Tensor, more: Tensor | bool) -> None:
        """Nothing is counted inside a transform of torch.func, whose results cannot be kept."""
        if torch.compiler.is_compiling() or not transformed():
            counter += more

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])


LEARN = ("fixed", "minimise", "maximise")  # what may happen to a mixture while training


def build(name: str, /, **options) -> Method:
    """The method of that name with its options changed from the catalogue's defaults: `build("hcl",
    beta=2.0)`.

    One `temperature` serves weights and objective alike. ValueError: an unknown name, an option the
    method does not have (both list the known ones), a value of another kind or out of range.
    """
    return entry_of(CATALOGUE, name).build(name, options)


def entry_of(catalogue: dict[str, Entry], name: str) -> Entry:
    """The row of that name. ValueError: an unknown one, with those that are known."""
    if name not in catalogue:
        raise ValueError(f"method {name!r} is unknown; the catalogue has {', '.join(catalogue)}")
    return catalogue[name]


def _accepted(function: Callable, options: dict) -> dict:
    return {k: v for k, v in options.items() if k in inspect.signature(function).parameters}
