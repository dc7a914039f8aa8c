"""What a row of the catalogue is, and the `torch.nn.Module` that is made of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from hnlib import negatives, objectives
from hnlib._checks import (
    check,
    flag,
    in_backward,
    mask,
    one_of,
    outside_autocast,
    rules,
    transformed,
)
from hnlib.contrast import Contrast
from hnlib.masks import RecentMasks
from hnlib.weightings import refuse_empty


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
    takes_prior : bool, default True
        Whether further weights may be put on the negatives.
    observe : callable, optional
        ``observe(contrast, log_w, options)`` returns further numbers for learning curves, by name.
    later : tuple of str
        Options that records name only where they are changed, since older records lack them.
    printed : dict, optional
        Fields that are others with the option ``printed``, the method as its paper prints it.
    positives : tuple of str, default ("class", "view")
        What the option of that name may be, where there is one.
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
    takes_prior: bool = True
    observe: Callable | None = None
    later: tuple[str, ...] = ()
    printed: dict = field(default_factory=dict)
    positives: tuple[str, ...] = ("class", "view")

    @property
    def loud(self) -> bool:
        r"""Whether learning curves show its loudness, $-t\,\partial\ell/\partial s^+$ of an anchor.

        It is that of one softmax, or of sigmoids, over the similarities themselves.
        """
        bent = self.supervised or self.features or self.synthetic or self.logit
        softmax = self.objective in (objectives.info_nce, objectives.sigmoid)
        return softmax and not bent and "temperature" in self.defaults


def _off(name: str, value) -> None:
    """Raise ValueError unless the value is False."""
    if value is not False:
        raise ValueError(f"{name} must be False; give objectives.sigmoid a tensor that is learned")


#: Checks of the options that `Method` itself reads
OWN = {
    "learn": partial(one_of, choices=("fixed", "minimise", "maximise")),
    "learn_scale": _off,
    "printed": flag,
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
    logit : callable, optional
        The logit with its options.
    skipped : Tensor
        Number of anchors that were left out because they had no negative.
    unconverged : Tensor
        Number of couplings that missed their tolerance.

    Notes
    -----
    Transforms of `torch.func` and `torch.compile` apply to all methods. The former count nothing.
    Where values cannot be read, under `vmap` and in compiled code, no value is refused.

    The loss is computed outside autocast, in float32 or better. A `mixture` is fixed
    (``learn="fixed"``) or the start of a softmax of trained parameters, which descend the loss
    ("minimise", as UnReMix) or climb it ("maximise"); a share of zero starts at 1e-6.
    """

    skipped: Tensor
    unconverged: Tensor

    #: Options that are trained, so that nothing else can set them
    trained: tuple[str, ...] = ()

    def __init__(self, name: str, entry: Entry, options: dict):
        super().__init__()
        chosen = entry.defaults | options
        self.name, self.entry = name, entry
        if chosen.get("printed") is True:
            self.entry = replace(entry, **entry.printed)
        self._recent = RecentMasks()
        self._set(chosen)
        for count in ("skipped", "unconverged"):
            self.register_buffer(count, torch.zeros((), dtype=torch.long), persistent=False)

    def _set(self, options: dict) -> None:
        entry = self.entry
        for option in options:
            if option not in entry.defaults:
                choices = ", ".join(entry.defaults)
                raise ValueError(f"{self.name} has no option {option!r}; it has {choices}")
        positives = {"positives": partial(one_of, choices=entry.positives)}
        check(OWN | positives | rules(entry.objective), options)
        weights = _with_options(entry.negatives, options)()
        synthetic = entry.synthetic and _with_options(entry.synthetic, options)()
        self.logit = entry.logit and _with_options(entry.logit, options)()
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
            if option in ("learn", "printed"):
                raise ValueError(f"{option} cannot change during training; pass it to build")
            if option in self.trained:
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
        """The distribution over negatives.

        For `unremix` as printed it is uniform: the objective has the scores, which may be negative.
        """
        return self._weights

    @property
    def trained_options(self) -> dict[str, Tensor]:
        """The options of the objective that are trained, as they are now."""
        return {}

    def observe(self, contrast: Contrast) -> dict[str, float]:
        """Return further numbers for learning curves; {} for most methods."""
        if self.entry.observe is None:
            return {}
        return self.entry.observe(contrast, self.log_weights(contrast), self.options)

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
            mask("excluded", excluded, contrast.similarity)
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
        self._recent.keep(contrast.shared)
        with outside_autocast(contrast.similarity.device):
            contrast = self._synthetic(contrast) if self._synthetic else contrast
            weights = self.log_weights.skipping() if skip else self.log_weights
            if "on_empty" not in self.options:  # else the weights refuse, and name it
                refuse_empty(contrast, weights.on_empty, "")
            log_w, missed = weights.counted(contrast)
            if isinstance(missed, Tensor) or missed:
                self._count(self.unconverged, missed)
            if skip or self.options.get("on_empty") == "skip":
                self._count(self.skipped, (log_w.detach().amax(1) == -torch.inf).sum())
            if log_prior is not None:
                log_w = log_w + log_prior
            if self.logit:
                contrast = replace(contrast, similarity=self.logit(contrast), symmetric=False)
            return self.objective(contrast, log_w, reduction=reduction, **self.trained_options)

    @staticmethod
    def _count(counter: Tensor, more: int | Tensor) -> None:
        """Add to a count, but not under torch.func, nor if checkpointing repeats a forward pass."""
        if not in_backward() and not transformed():
            counter += more

    def extra_repr(self) -> str:
        """Return name and options for `repr`."""
        return ", ".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])


class LearnedMixture(Method):
    """A method with the option `mixture`, whose shares are trained."""

    trained = ("mixture",)

    def __init__(self, name: str, entry: Entry, options: dict):
        super().__init__(name, entry, options)
        start = torch.tensor(self.options["mixture"], dtype=torch.float32)
        if abs(float(start.sum()) - 1) > 1e-3:  # a softmax would change the hardness
            raise ValueError(f"a learned mixture must sum to 1, got {self.options['mixture']}")
        self.logits = nn.Parameter(start.clamp_min(1e-6).log())

    @property
    def mixture(self) -> Tensor:
        r"""The learned shares of shape [3]; their gradient is reversed for "maximise"."""
        mixture = self.logits.softmax(0)
        return mixture if self.options["learn"] == "minimise" else 2 * mixture.detach() - mixture

    @property
    def log_weights(self) -> negatives.Weighting:
        """The distribution over negatives, with the mixture as learned so far."""
        return _with_options(self.entry.negatives, self.options | {"mixture": self.mixture})()

    @property
    def trained_options(self) -> dict[str, Tensor]:
        """The mixture, where the objective takes it and not the weights."""
        return {"mixture": self.mixture} if "mixture" in self.objective.keywords else {}

    def observe(self, contrast: Contrast) -> dict[str, float]:
        """Return the shares of uncertainty u, similarity s and distance r."""
        shares = dict(zip("usr", self.mixture.tolist(), strict=True))
        return shares | super().observe(contrast)


def make(name: str, entry: Entry, options: dict) -> Method:
    """Build the method of an entry, which may be one of your own."""
    chosen = entry.defaults | options
    if chosen.get("learn", "fixed") != "fixed":
        return LearnedMixture(name, entry, options)
    return Method(name, entry, options)


def _with_options(function: Callable, options: dict) -> partial:
    """Bind those options that are parameters of the function."""
    parameters = inspect.signature(function).parameters
    return partial(function, **{k: v for k, v in options.items() if k in parameters})
