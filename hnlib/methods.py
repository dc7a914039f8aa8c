"""The catalogue: every method as an objective, a distribution over negatives and a logit."""

from __future__ import annotations

import math
import runpy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from hnlib import negatives, objectives, synthetic_negatives, unremix
from hnlib.logit_functions import artanh
from hnlib.loss_modules import Entry, LearnedMixture, Method, make

__all__ = ["CATALOGUE", "EXAMPLES", "Entry", "LearnedMixture", "Method", "build", "example", "make"]

_BASIC = objectives.basic
_T = dict(temperature=0.5)
_TILT = dict(temperature=0.5, beta=1.0, weights_gradient=True)
_HCL = dict(temperature=0.5, beta=1.0, tau_plus=0.1, weights_gradient=True)
_ALPHA = dict(temperature=0.5, beta=1.0, weights_gradient=False)
_WINDOW = dict(temperature=0.5, mu=0.7, sigma=1.0, weights_gradient=False)
_SINKHORN = dict(cost=None, tol=1e-4, max_iterations=1000, on_failure="warn")
_OT = dict(temperature=0.5, epsilon=0.5, tau_plus=0.1, **_SINKHORN)
_RELAXED = dict(temperature=0.5, epsilon=0.5, relaxation=1.0, tau_plus=0.1, **_SINKHORN)
_TEACHER = dict(temperature=0.5, teacher_temperature=0.5, share=0.5)
_UNREMIX = dict(
    temperature=0.5, mixture=unremix.THIRDS, learn="fixed", gradient="pseudo-label", printed=False
)
_MIXED = dict(temperature=0.5, hardest=32, pairs=32, with_anchor=4)
_LABELS = dict(positives="class", average="anchors")
_SCL = dict(temperature=0.5, **_LABELS, on_empty="raise")
_SUPCON = dict(temperature=0.5, on_empty="raise")
_H_SCL = dict(**_TILT, **_LABELS, on_empty="raise")
_ABOVE = dict(temperature=0.5, tau=math.exp(-0.2), **_LABELS, on_empty="skip", level=None)
_SIGLIP = dict(temperature=0.5, bias=None, learn_scale=False)  # the last in the names of records

#: Every method by name. Read it: `CATALOGUE["hcl"].defaults`.
#:
#: :meta hide-value:
CATALOGUE = {
    "simclr": Entry(
        "SimCLR",
        "simclr",
        dict(temperature=0.5, hardness_strength=0.0),
        later=("hardness_strength",),
    ),
    "debiased": Entry("Debiased", "dcl", dict(temperature=0.5, tau_plus=0.1)),
    "hcl": Entry("HCL", "hcl", _HCL, negatives.tilted),
    "ot": Entry("Entropic OT", "hclot", _OT, negatives.entropic_ot),
    "ot-semirelaxed": Entry("Semi-relaxed OT", "ours", _RELAXED, negatives.semi_relaxed_ot),
    "bcl": Entry("BCL", "hclot", _TILT, negatives.tilted, _BASIC),
    "bcl-ot": Entry(
        "BCL, entropic OT", "hclot", dict(epsilon=0.5, **_SINKHORN), negatives.entropic_ot, _BASIC
    ),
    "alpha-cl": Entry("α-CL-direct", "tian2022", _ALPHA, negatives.tilted, _BASIC),
    "adnce": Entry("ADNCE", "dro", _WINDOW, negatives.gaussian),
    "mw": Entry("Mean–variance", "dro", _T, objective=objectives.mean_variance),
    "chi2-dro": Entry("χ²-DRO", "dro", dict(eta=0.2), negatives.chi2_ball, _BASIC),
    "dcl": Entry("DCL", "decoupled", dict(temperature=0.5, loudness=0.0)),
    "focal": Entry("Focal InfoNCE", "kalm", dict(temperature=0.5, loudness=2.0)),
    "siglip": Entry("SigLIP", "siglip", _SIGLIP, objective=objectives.sigmoid),
    "artanh": Entry("Artanh", "artanh", _T, logit=artanh),
    "bpr": Entry("BPR", "bpr", _T, objective=objectives.pairwise),
    "soft-targets": Entry(
        "Soft targets", "hinton2015", _TEACHER, objective=objectives.soft_targets
    ),
    "unremix": Entry(
        "UnReMix",
        "unremix",
        _UNREMIX,
        negatives.unremix,
        features=True,
        later=("gradient", "printed"),
        printed=dict(
            title="UnReMix, as printed",
            negatives=negatives.uniform,
            objective=objectives.signed,
            takes_prior=False,
        ),
    ),
    "mochi": Entry(
        "MoCHi", "kalantidis2020", _MIXED, synthetic=synthetic_negatives.mochi, takes_prior=False
    ),
    "scl": Entry("SCL", "supcon", _SCL, supervised=True),
    "h-scl": Entry("H-SCL(β)", "hscl", _H_SCL, negatives.tilted, supervised=True),
    "h-scl-threshold": Entry(
        "H-SCL(τ)", "hscl", _ABOVE, negatives.thresholded, supervised=True, later=("level",)
    ),
    "supcon": Entry("SupCon", "supcon", _SUPCON, objective=objectives.supcon, supervised=True),
}


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
    return make(name, entry_of(CATALOGUE, name), options)


def entry_of(catalogue: dict[str, Entry], name: str) -> Entry:
    """Return a row of a catalogue; raise ValueError with the choices if there is none."""
    if name in EXAMPLES:
        raise ValueError(f"method {name!r} is an example, {EXAMPLES[name]}; see methods.example")
    if name not in catalogue:
        raise ValueError(f"method {name!r} is unknown; the catalogue has {', '.join(catalogue)}")
    return catalogue[name]


_NAMES = ["hcl-exact", "centred-hcl", "kl-budget", "weince", "gbce", "warp", "unremix-repaired"]
#: Methods that are files of the repository, with an `ENTRY` each: losses of one page or experiment
EXAMPLES = {name: f"examples/losses/{name.replace('-', '_')}.py" for name in _NAMES}
# Where they are: what a wheel brings, or the checkout around this package
_FOLDERS = Path(__file__).with_name("_ledgers"), Path(__file__).resolve().parents[1]


@cache
def example(name: str) -> SimpleNamespace:
    """Run the file of an example, and return what it defines and `build`, as of the catalogue.

    Raises
    ------
    ValueError
        If there is no such example, or its file is neither installed nor in the checkout.

    Examples
    --------
    >>> from hnlib import methods
    >>> methods.example("weince").build(shape=1.0).options["temperature"]
    0.5
    """
    if name not in EXAMPLES:
        raise ValueError(f"example {name!r} is unknown; there are {', '.join(EXAMPLES)}")
    found = [path for folder in _FOLDERS if (path := folder / EXAMPLES[name]).is_file()]
    if not found:
        raise ValueError(f"{EXAMPLES[name]} is neither installed nor in a checkout of hnlib")
    names = runpy.run_path(str(found[0]))

    def build(**options) -> Method:
        return make(name, names["ENTRY"], options)

    return SimpleNamespace(**names | {"build": build})
