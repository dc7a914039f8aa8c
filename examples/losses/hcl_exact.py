r"""HCL, exactly debiased: InfoNCE over the tilted distribution of the *other* classes. Ours.

HCL subtracts the class prior $\tau^+$ from tilted weights. The mass that they put on the anchor's
class is another, estimated here from its one positive,

    π = τ⁺ exp(β s⁺/t) / mean over N of exp(β s/t),

and a guard keeps what is left when the class takes all it can, the hardest share τ⁺ of candidates.

    >>> methods.example("hcl-exact").build(beta=2.0)
"""

import math

import torch

from hnlib import methods, negatives, objectives


def terms(contrast, log_w, temperature, beta, tau_plus):
    """Return logarithms: π and e^(s⁺/t) [n, k], then Σwe^(s/t), what the guard leaves, and of 1."""
    if not (beta >= 0 and 0 <= tau_plus < 1):  # else the guard would trim the easiest candidates
        raise ValueError(f"need beta >= 0 and 0 <= tau_plus < 1, got {beta:g} and {tau_plus:g}")
    objectives.check_weights(contrast, log_w)
    s, at_positives = contrast.similarity, contrast.masks.at_positives
    log_w = log_w.masked_fill(log_w.amax(1, keepdim=True) == -torch.inf, 0.0)  # left out at the end
    tilt = beta / temperature * (s if log_w.requires_grad else s.detach())
    seen = tilt.masked_fill(~contrast.admissible, torch.finfo(s.dtype).min).logsumexp(1, True)
    prior = math.log(tau_plus) if tau_plus else -math.inf
    count = contrast.negative_counts[:, None].to(s.dtype)
    share = prior + at_positives(tilt) - seen + count.log()
    order = s.detach().masked_fill(~contrast.admissible, -torch.inf).argsort(1, descending=True)
    trimmed = min(tau_plus, 1 - 1e-6) * count
    left = log_w + (order.argsort(1) + 1 - trimmed).clamp(0, 1).log()
    sums = [x.logsumexp(1, keepdim=True) for x in (log_w + s / temperature, left + s / temperature)]
    return share, at_positives(s) / temperature, *sums, left.logsumexp(1, keepdim=True)


def log_difference(a, b, floor):
    """Return log max(e^a − e^b, e^floor); the inner `where` keeps gradients finite."""
    left = torch.log(-torch.expm1(torch.where(b < a, b - a, -1.0)))
    return torch.where(b < a, torch.maximum(a + left, floor), floor)


def exact_debiased(
    contrast, log_w, temperature=0.5, beta=1.0, tau_plus=0.1, scale=None, reduction="mean"
):
    """Compute the loss; `log_w` are the weights ``negatives.tilted(beta, temperature)``."""
    share, positive, total, kept, left = terms(contrast, log_w, temperature, beta, tau_plus)
    above = log_difference(total, share + positive, kept)
    below = log_difference(torch.zeros_like(share), share, left)
    ratio = above - below - positive + objectives.log_scale(contrast, scale)
    return objectives.averaged(objectives.softplus(ratio), contrast, log_w.amax(1), reduction)


def guarded(contrast, log_w, temperature=0.5, beta=1.0, tau_plus=0.1):
    """Return at which anchors [n] the guard acts by more than rounding."""
    with torch.no_grad():
        share, positive, total, kept, left = terms(contrast, log_w, temperature, beta, tau_plus)
    below = 1 - share.exp() < (1 - 1e-5) * left.exp()
    above = 1 - (share + positive - total).exp() < (1 - 1e-5) * (kept - total).exp()
    return contrast.masks.total((below | above).to(share)) * (log_w.amax(1) > -torch.inf) > 0


def observe(contrast, log_w, options):
    """Return the share of anchors at which the guard acts, for learning curves."""
    options = {name: options[name] for name in ("temperature", "beta", "tau_plus")}
    return {"guarded": float(guarded(contrast, log_w, **options).float().mean())}


ENTRY = methods.Entry(
    "HCL, exactly debiased",
    "ours",
    dict(temperature=0.5, beta=1.0, tau_plus=0.1, weights_gradient=True),
    negatives.tilted,
    exact_debiased,
    takes_prior=False,
    observe=observe,
)
