r"""gBCE (Petrov and Macdonald, RecSys 2023): the sigmoid loss with a power of the positive's share.

    κ sp(−s⁺/t − b) + Q Σ_j w_j sp(s_j/t + b),     sp(x) = log(1 + e^x)

Where a sample of the negatives stands for all, the power κ that restores the probabilities is the
share that is sampled.

    >>> methods.example("gbce").build(power=0.3)
"""

from hnlib import methods, objectives
from hnlib._checks import Finite, Positive, Reduction, per_anchor


def gbce(
    contrast,
    log_w,
    temperature: Positive = 0.5,
    bias: Finite = 0.0,
    power: Positive = 0.5,
    reduction: Reduction = "mean",
):
    """Compute the loss."""
    t, b = (per_anchor("option", x, len(log_w)) for x in (temperature, bias))
    logits = contrast.similarity / t + b
    loss = power * objectives.softplus(-contrast.masks.at_positives(logits))
    log_q = objectives.log_scale(contrast, None)
    loss = loss + objectives.weighted_mean(log_w + log_q, objectives.softplus(logits))
    return objectives.averaged(loss, contrast, log_w.amax(1), reduction)


defaults = dict(temperature=0.5, bias=0.0, power=0.5)
ENTRY = methods.Entry("gBCE", "gbce", defaults, objective=gbce)
