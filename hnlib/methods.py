"""The catalogue: every method as an objective, a distribution over negatives and a logit."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from hnlib import negatives, objectives, synthetic_negatives
from hnlib._checks import check, outside_autocast
from hnlib.contrast import Contrast
from hnlib.logit_functions import artanh, weince


@dataclass(frozen=True)
class Entry:
    """One row of the catalogue.

    Parameters
    ----------
    title : str
        Name as printed.
    paper : str
        Key of the bibliography.
    defaults : dict
        Options with their defaults.
    negatives : callable, default negatives.uniform
        Makes a weighting of `hnlib.negatives` from its options.
    objective : callable, default objectives.info_nce
        Function of `hnlib.objectives`.
    supervised : bool, default False
        Whether the method needs labels.
    features : bool, default False
        Whether the weights need the inputs of the last linear layer.
    synthetic : callable, optional
        Makes a mixture of `hnlib.synthetic_negatives`, which adds negatives before they are
        weighted.
    logit : callable, optional
        Makes a logit of `hnlib.logit_functions`, which replaces $s/t$ in the objective.
    observe : callable, optional
        ``observe(contrast, log_w, options)`` returns further numbers for learning curves, by name.
    later : tuple of str
        Options that records name only where they are changed, since older records lack them.
    """

    title: str
    paper: str
    defaults: dict
    negatives: Callable = negatives.uniform
    objective: Callable = objectives.info_nce
    supervised: bool = False
    features: bool = False
    synthetic: Callable | None = None
    logit: Callable | None = None
    observe: Callable | None = None
    later: tuple[str, ...] = ()

    @property
    def takes_prior(self) -> bool:
        """Whether the loss accepts any weights of the negatives, and so a prior on them."""
        needs_its_own = (objectives.exact_debiased, objectives.signed)
        return self.synthetic is None and self.objective not in needs_its_own


def _guarded(contrast: Contrast, log_w: Tensor, options: dict) -> dict:
    acts = _with_options(objectives.guarded, options)(contrast, log_w)
    return {"guarded": float(acts.float().mean())}


def _temperatures(contrast: Contrast, log_w: Tensor, options: dict) -> dict:
    t = _with_options(objectives.budget_temperature, options)(contrast, log_w)
    low, middle, high = torch.quantile(t, t.new_tensor([0.1, 0.5, 0.9])).tolist()
    return {"temperature": middle, "temperature_low": low, "temperature_high": high}


_BASIC = objectives.basic
_TILT = dict(temperature=0.5, beta=1.0, weights_gradient=True)
_HCL = dict(temperature=0.5, beta=1.0, tau_plus=0.1, weights_gradient=True)
_LABELS = dict(positives="class", average="anchors")
_SINKHORN = dict(cost=None, tol=1e-4, max_iterations=1000, on_failure="warn")
_THIRDS = dict(mixture=(1 / 3, 1 / 3, 1 / 3), learn="fixed")
#: Every method by name. Read it: `CATALOGUE["hcl"].defaults`.
CATALOGUE = {
    "simclr": Entry(
        "SimCLR",
        "simclr",
        dict(temperature=0.5, hardness_strength=0.0),
        later=("hardness_strength",),
    ),
    "debiased": Entry("Debiased", "dcl", dict(temperature=0.5, tau_plus=0.1)),
    "hcl": Entry("HCL", "hcl", _HCL, negatives.tilted),
    "ot": Entry(
        "Entropic OT",
        "hclot",
        dict(temperature=0.5, epsilon=0.5, tau_plus=0.1, **_SINKHORN),
        negatives.entropic_ot,
    ),
    "ot-semirelaxed": Entry(
        "Semi-relaxed OT",
        "ours",
        dict(temperature=0.5, epsilon=0.5, relaxation=1.0, tau_plus=0.1, **_SINKHORN),
        negatives.semi_relaxed_ot,
    ),
    "hcl-exact": Entry(
        "HCL, exactly debiased",
        "ours",
        _HCL,
        negatives.tilted,
        objectives.exact_debiased,
        observe=_guarded,
    ),
    "centred-hcl": Entry(
        "Centred HCL",
        "ours",
        dict(temperature=0.5, epsilon=0.5, tau_plus=0.1, weights_gradient=False),
        negatives.centred_tilt,
    ),
    "bcl": Entry("BCL", "hclot", _TILT, negatives.tilted, _BASIC),
    "bcl-ot": Entry(
        "BCL, entropic OT", "hclot", dict(epsilon=0.5, **_SINKHORN), negatives.entropic_ot, _BASIC
    ),
    "alpha-cl": Entry(
        "α-CL-direct",
        "tian2022",
        dict(temperature=0.5, beta=1.0, weights_gradient=False, exponent=1.0),
        negatives.tilted,
        _BASIC,
        later=("exponent",),
    ),
    "adnce": Entry(
        "ADNCE",
        "dro",
        dict(temperature=0.5, mu=0.7, sigma=1.0, weights_gradient=False),
        negatives.gaussian,
    ),
    "mw": Entry("Mean–variance", "dro", dict(temperature=0.5), objective=objectives.mean_variance),
    "chi2-dro": Entry("χ²-DRO", "dro", dict(eta=0.2), negatives.chi2_ball, _BASIC),
    "kl-budget": Entry(
        "KL budget",
        "ours",
        dict(eta=0.5, order=0, floor=0.01),
        objective=objectives.kl_budget,
        observe=_temperatures,
    ),
    "dcl": Entry("DCL", "decoupled", dict(temperature=0.5, loudness=0.0)),
    "focal": Entry("Focal InfoNCE", "kalm", dict(temperature=0.5, loudness=2.0)),
    "siglip": Entry(
        "SigLIP",
        "siglip",
        dict(temperature=0.5, bias=None, learn_scale=False),
        objective=objectives.sigmoid,
    ),
    "artanh": Entry("Artanh", "artanh", vars(artanh()), logit=artanh),
    "weince": Entry("WEINCE", "weince", vars(weince()), logit=weince),
    "bpr": Entry("BPR", "bpr", dict(temperature=0.5), objective=objectives.pairwise),
    "gbce": Entry(
        "gBCE", "gbce", dict(temperature=0.5, bias=0.0, power=0.5), objective=objectives.sigmoid
    ),
    "warp": Entry("WARP", "warp", dict(margin=0.1), objective=objectives.warp),
    "soft-targets": Entry(
        "Soft targets",
        "hinton2015",
        dict(temperature=0.5, teacher_temperature=0.5, share=0.5),
        objective=objectives.soft_targets,
    ),
    "unremix": Entry(
        "UnReMix",
        "unremix",
        dict(temperature=0.5, **_THIRDS, gradient="pseudo-label"),
        negatives.unremix,
        features=True,
        later=("gradient",),
    ),
    "unremix-printed": Entry(
        "UnReMix, as printed",
        "unremix",
        dict(temperature=0.5, **_THIRDS, gradient="pseudo-label"),
        objective=objectives.signed,
        features=True,
        later=("gradient",),
    ),
    "unremix-repaired": Entry(
        "UnReMix, repaired",
        "ours",
        dict(temperature=0.5, beta=1.0, **_THIRDS, weights_gradient=False),
        negatives.unremix_repaired,
    ),
    "mochi": Entry(
        "MoCHi",
        "kalantidis2020",
        dict(temperature=0.5, hardest=32, pairs=32, with_anchor=4),
        synthetic=synthetic_negatives.mochi,
    ),
    "scl": Entry(
        "SCL", "supcon", dict(temperature=0.5, **_LABELS, on_empty="raise"), supervised=True
    ),
    "h-scl": Entry(
        "H-SCL(β)",
        "hscl",
        dict(**_TILT, **_LABELS, on_empty="raise"),
        negatives.tilted,
        supervised=True,
    ),
    "h-scl-threshold": Entry(
        "H-SCL(τ)",
        "hscl",
        dict(temperature=0.5, tau=math.exp(-0.2), **_LABELS, on_empty="skip", level=None),
        negatives.thresholded,
        supervised=True,
        later=("level",),
    ),
}


class Method(nn.Module):
    r"""A loss of the catalogue as a module; built by `build`.

    Called as ``method(z1, z2, labels=None, features=None)``, it returns the loss of two views.

    Parameters
    ----------
    name : str
        Name of the method.
    entry : Entry
        Row of the catalogue.
    options : dict
        Those that differ from the entry's defaults. Values out of range are refused here, or at the
        first call where they depend on the batch.

    Attributes
    ----------
    objective : callable
        The objective with its options.
    skipped : Tensor
        Number of anchors that were left out because they had no negative.
    unconverged : Tensor
        Number of couplings that missed their tolerance.

    Notes
    -----
    The loss is computed outside autocast, in float32 or better. A `mixture` is fixed
    (``learn="fixed"``) or the start of a softmax of trained parameters, which descend the loss
    ("minimise", as UnReMix) or climb it ("maximise"); a share of zero starts at 1e-6. With
    `learn_scale`, temperature and bias are trained, the former as $e^{-\texttt{log\_scale}}$.
    """

    skipped: Tensor
    unconverged: Tensor

    def __init__(self, name: str, entry: Entry, options: dict):
        super().__init__()
        self.name, self.entry = name, entry
        options = entry.defaults | options
        self._set(options)
        self._learned = ()
        if options.get("learn", "fixed") != "fixed":
            start = torch.tensor(options["mixture"], dtype=torch.float32)
            if abs(float(start.sum()) - 1) > 1e-3:  # a softmax would change the hardness
                raise ValueError(f"a learned mixture must sum to 1, got {options['mixture']}")
            self._learned = ("mixture",)
            self.logits = nn.Parameter(start.clamp_min(1e-6).log())
        if options.get("learn_scale"):
            if options["bias"] is None:
                raise ValueError("a learned bias needs a number to start from; pass bias=")
            self._learned = ("temperature", "bias")
            self.log_scale = nn.Parameter(torch.tensor(-math.log(options["temperature"])))
            self.bias = nn.Parameter(torch.tensor(float(options["bias"])))
        for count in ("skipped", "unconverged"):
            self.register_buffer(count, torch.zeros((), dtype=torch.long), persistent=False)

    def _set(self, options: dict) -> None:
        entry = self.entry
        for option, value in options.items():
            if option not in entry.defaults:
                choices = ", ".join(entry.defaults)
                raise ValueError(f"{self.name} has no option {option!r}; it has {choices}")
            if value is None and entry.defaults[option] is not None:
                raise ValueError(f"{option} must be a value in {self.name}, got None")
        check(**options)
        weights = _with_options(entry.negatives, options)()
        synthetic = entry.synthetic and _with_options(entry.synthetic, options)()
        self._logit = entry.logit and _with_options(entry.logit, options)()
        divided = {"temperature": 1.0} if entry.logit else {}  # by the temperature, in the logit
        self.objective = _with_options(entry.objective, options | divided)
        self.options, self._weights, self._synthetic = options, weights, synthetic

    def change(self, **options) -> None:
        """Change options during training; counts and learned parameters stay.

        Raises
        ------
        ValueError
            As in `build`, or if an option is learned or says what is learned.
        """
        for option in options:
            if option in ("learn", "learn_scale"):
                raise ValueError(f"{option} cannot change during training; pass it to build")
            if option in self._learned:
                raise ValueError(f"{self.name} learns its {option}, so nothing else can set it")
        self._set(self.options | options)

    def copy(self) -> Method:
        """Return a copy with its own parameters and with counts at zero."""
        twin = copy.deepcopy(self)
        twin.skipped.zero_()
        twin.unconverged.zero_()
        return twin

    @property
    def log_weights(self) -> negatives.Weighting:
        """The distribution over negatives, with the mixture as learned so far.

        For `unremix-printed` it is uniform: the objective has its scores, which may be negative.
        """
        if hasattr(self, "logits") and hasattr(self._weights, "mixture"):
            return replace(self._weights, mixture=self.mixture)
        return self._weights

    @property
    def mixture(self) -> Tensor:
        r"""The learned shares of shape [3]; their gradient is reversed for "maximise"."""
        mixture = self.logits.softmax(0)
        return mixture if self.options["learn"] == "minimise" else 2 * mixture.detach() - mixture

    def observe(self, contrast: Contrast) -> dict[str, float]:
        """Return further numbers for learning curves; {} for most methods."""
        numbers = {}
        if hasattr(self, "logits"):
            numbers = dict(zip("usr", self.mixture.tolist(), strict=True))
        if self.entry.observe is not None:
            numbers |= self.entry.observe(contrast, self.log_weights(contrast), self.options)
        return numbers

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        labels: Tensor | None = None,
        features: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the loss of two views.

        Parameters
        ----------
        z1, z2 : Tensor of shape [B, d]
            Embeddings of the views.
        labels : integers of shape [B], optional
            Classes; supervised methods need them, others ignore them.
        features : pair of Tensors of shape [B, k], optional
            Inputs of the last linear layer; methods with ``entry.features`` need them.

        Returns
        -------
        Tensor of shape []
            The loss.

        Raises
        ------
        ValueError
            If labels or features are missing; further errors as in `Contrast.from_views`.
        """
        entry = self.entry
        if entry.features and features is None:
            raise ValueError(f"{self.name} needs the inputs of the last layer, features=(h1, h2)")
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
        excluded: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of queries and keys.

        Parameters
        ----------
        queries, keys, positives, labels
            As in `Contrast.from_pairs`. With the option ``positives="view"``, labels take negatives
            away and add no answers.
        both : bool, default False
            Whether to return the mean of this direction and of the keys' (CLIP).
        excluded : bool Tensor of shape [n, m], optional
            Candidates that are not negatives. The scale $Q$ becomes the number of those that are
            left; a query without any is left out.

        Returns
        -------
        Tensor of shape []
            The loss.
        """
        of_class = self.options.get("positives", "class") == "class"
        contrast = Contrast.from_pairs(queries, keys, positives, labels, of_class)
        if excluded is not None:
            contrast = contrast.without(excluded).rescaled()
        directions = [contrast, contrast.reversed()] if both else [contrast]
        losses = [self.loss(c, skip=excluded is not None) for c in directions]
        return sum(losses[1:], losses[0]) / len(losses)

    def loss(
        self,
        contrast: Contrast,
        reduction: str = "mean",
        skip: bool = False,
        log_prior: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a contrast, such as one with a queue.

        Parameters
        ----------
        contrast : Contrast
            Built with labels if the method is supervised.
        reduction : {"mean", "none"}, default "mean"
            Whether to return the mean or one value per anchor.
        skip : bool, default False
            Whether to leave out anchors without negatives, where the weights allow it.
        log_prior : Tensor broadcasting to [n, m], optional
            Added to the method's log-weights, which are not normalised again, such as minus the
            log-frequency of each candidate.

        Returns
        -------
        Tensor of shape [] or [n]
            The loss.

        Raises
        ------
        ValueError
            If labels are missing, or the method's loss cannot take further weights.
        """
        if self.entry.supervised and contrast.labels is None:
            raise ValueError(f"{self.name} learns from labels; pass labels")
        if log_prior is not None and not self.entry.takes_prior:
            raise ValueError(
                f"{self.name} takes no further weights on its negatives; use another method, or "
                "leave out what weighs them (log_prior; logq and hardness_strength of a run)"
            )
        with outside_autocast(contrast.similarity.device):
            contrast = self._synthetic(contrast) if self._synthetic else contrast
            learned = {}
            if hasattr(self, "logits") and "mixture" in self.objective.keywords:
                learned = dict(mixture=self.mixture)
            if hasattr(self, "log_scale"):
                learned = dict(temperature=(-self.log_scale).exp(), bias=self.bias)
            log_w = self._counted(contrast, skip)
            if log_prior is not None:
                log_w = log_w + log_prior
            if self._logit:
                contrast = replace(contrast, similarity=self._logit(contrast), symmetric=False)
            return self.objective(contrast, log_w, reduction=reduction, **learned)

    def _counted(self, contrast: Contrast, skip: bool) -> Tensor:
        """Return the weights, after counting skipped anchors and couplings that missed `tol`."""
        weights = self.log_weights
        if isinstance(weights, negatives.semi_relaxed_ot):
            coupling = weights.coupling(contrast)
            self.unconverged += 1 - 1 * coupling.converged  # a bool, or a tensor of one
            return coupling.log_conditional
        skip = skip and hasattr(weights, "on_empty")
        log_w = (replace(weights, on_empty="skip") if skip else weights)(contrast)
        if skip or self.options.get("on_empty") == "skip":
            self.skipped += (log_w.detach().amax(1) == -torch.inf).sum()
        return log_w

    def extra_repr(self) -> str:
        """Return name and options for `repr`."""
        return ", ".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])


def build(name: str, /, **options) -> Method:
    """Build a method of the catalogue: ``build("hcl", beta=2.0)``.

    Call it on two views, or its `pairs` on queries and answers. "simclr" is NT-Xent, and on pairs
    it is MultipleNegativesRankingLoss with a scale of one over the temperature. The other names
    change the weights of its negatives, its objective or its logit; their rows of `CATALOGUE` say
    which.

    Parameters
    ----------
    name : str
        Key of `CATALOGUE`.
    **options
        Options to change from ``CATALOGUE[name].defaults``. One `temperature` serves weights and
        objective alike.

    Returns
    -------
    Method
        The loss, called as ``method(z1, z2, labels)``.

    Raises
    ------
    ValueError
        If the name or an option is unknown, or a value is out of range.

    Examples
    --------
    >>> import torch
    >>> from hnlib import methods
    >>> method = methods.build("hcl", beta=2.0, temperature=0.2)
    >>> z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> method(z1, z2).shape, method.options["tau_plus"]
    (torch.Size([]), 0.1)
    """
    return Method(name, entry_of(CATALOGUE, name), options)


def entry_of(catalogue: dict[str, Entry], name: str) -> Entry:
    """Return a row of a catalogue; raise ValueError with the choices if there is none."""
    if name not in catalogue:
        raise ValueError(f"method {name!r} is unknown; the catalogue has {', '.join(catalogue)}")
    return catalogue[name]


def _with_options(function: Callable, options: dict) -> partial:
    """Bind those options that are parameters of the function."""
    parameters = inspect.signature(function).parameters
    return partial(function, **{k: v for k, v in options.items() if k in parameters})
