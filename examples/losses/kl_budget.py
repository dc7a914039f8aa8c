r"""InfoNCE at each anchor's own temperature, the price of a Kullback–Leibler budget. Ours.

    t_i log(1 + Q Σ_j w_ij exp((s_ij − s_i⁺)/t_i)),     t_i = max(α_i*(η), t₀)

α* is the multiplier of a ball of radius η around the weights (Wu et al., 2023, Theorem 3.2, read
anchor by anchor). It carries no gradient: by the envelope theorem the gradient is that of the
robust loss, but for the positive's share of the denominator.

    >>> methods.example("kl-budget").build(eta=1.0)
"""

from functools import partial
from typing import Annotated

import torch

from hnlib import methods, objectives, robust
from hnlib._checks import Positive, Reduction, checked, one_of


@checked
def budget_temperature(contrast, log_w, eta: Positive = 0.5, order=0, floor: Positive = 0.01):
    """Return the temperatures [n]; `order` as in `robust.kl_temperature`, `floor` is t₀."""
    objectives.check_weights(contrast, log_w)
    t = robust.kl_temperature(contrast.similarity, eta=eta, order=order, log_reference=log_w)
    t = torch.where(log_w.amax(1) > -torch.inf, t, 1.0)
    return t.clamp_min(floor).to(contrast.similarity.dtype)


def kl_budget(
    contrast,
    log_w,
    eta: Positive = 0.5,
    order: Annotated[int, partial(one_of, choices=(0, 1, 2, 3))] = 0,
    floor: Positive = 0.01,
    scale=None,
    reduction: Reduction = "mean",
):
    """Compute the loss; an anchor without negatives is left out."""
    t = budget_temperature(contrast, log_w, eta, order, floor)
    loss = t * objectives.info_nce(contrast, log_w, t, scale=scale, reduction="none")
    count = (log_w.amax(1) > -torch.inf).sum().clamp_min(1)
    return loss if reduction == "none" else loss.sum() / count


def observe(contrast, log_w, options):
    """Return the median and the outer deciles of the temperatures, for learning curves."""
    t = budget_temperature(contrast, log_w, **options)
    low, middle, high = torch.quantile(t, t.new_tensor([0.1, 0.5, 0.9])).tolist()
    return {"temperature": middle, "temperature_low": low, "temperature_high": high}


defaults = dict(eta=0.5, order=0, floor=0.01)
ENTRY = methods.Entry("KL budget", "ours", defaults, objective=kl_budget, observe=observe)
