"""The weighted sums of exponentials in a softmax loss, with derivatives of every kind."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hnlib._checks import traced


class _LogSums(torch.autograd.Function):
    r"""$\log\sum_j e^{x_{ij}}$, $x_{ij} = \log w_{ij} + s_{ij}/t$, and $s$ at some columns.

    The terms $e^{x_{ij} - c_i}$, with the constant $c_i$ the largest $x$, and their sums are
    outputs too. They make the backward pass one multiplication, and as outputs they have
    derivatives themselves, so that there are second derivatives.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(log_w, s, inverse_t: float | Tensor, columns):
        if isinstance(inverse_t, Tensor):
            x = torch.addcmul(log_w, s, inverse_t.to(s))
        else:
            x = torch.add(log_w, s, alpha=inverse_t).contiguous()  # [n, m]
        largest = x.amax(1, keepdim=True)
        largest = largest.clamp_min(torch.finfo(x.dtype).min)  # a row of -inf stays one
        x.sub_(largest)
        x.mul_(math.log2(math.e)).exp2_()  # exp_ takes five times as long where a weight is zero
        total = x.sum(1, keepdim=True)  # [n, 1]
        return largest + total.log(), s.gather(1, columns), x, total

    @staticmethod
    def setup_context(ctx, inputs, output):
        (_, _, ctx.inverse_t, columns), (_, _, x, total) = inputs, output
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, total, columns)
        ctx.save_for_forward(x, total, columns)

    @staticmethod
    def backward(ctx, grad, grad_chosen, grad_x, grad_total):
        x, total, columns = ctx.saved_tensors
        share = torch.zeros_like(total)
        if grad is not None:
            share = grad / total.masked_fill(total == 0, 1.0)
        if grad_total is not None:
            share = share + grad_total
        inner = share if grad_x is None else share + grad_x
        # [n, m] both: the terms' shares of the sum, times the incoming gradient
        in_log_w = x * inner if ctx.needs_input_grad[0] else None
        in_s = x * (inner * ctx.inverse_t) if ctx.needs_input_grad[1] else None
        if in_s is not None and grad_chosen is not None:
            in_s.scatter_add_(1, columns, grad_chosen)
        return in_log_w, in_s, None, None


class _WithForwardMode(_LogSums):
    """The same in forward mode too, which dynamo cannot trace."""

    @staticmethod
    def jvp(ctx, log_w, s, inverse_t, columns):
        x, total, columns = ctx.saved_tensors
        steps = [] if log_w is None else [log_w]
        steps += [] if s is None else [s * ctx.inverse_t]
        x = x * sum(steps)  # no step is infinite, so a weight of zero stays one
        along = x.sum(1, keepdim=True)
        chosen = torch.zeros_like(total) if s is None else s
        chosen = chosen.expand_as(x).gather(1, columns)
        return along / total.masked_fill(total == 0, 1.0), chosen, x, along


def log_sums(log_w: Tensor, s: Tensor, inverse_t, columns: Tensor):
    r"""Return $\log\sum_j w_{ij} e^{s_{ij}/t}$ of shape [n, 1], and $s/t$ at the columns."""
    if isinstance(inverse_t, Tensor) and _may_learn(inverse_t):
        s, inverse_t = s * inverse_t, 1.0
    function = _LogSums if torch.compiler.is_compiling() else _WithForwardMode
    log_sum, chosen, _, _ = function.apply(log_w, s, inverse_t, columns)
    return log_sum, chosen * inverse_t


def _may_learn(x: Tensor) -> bool:
    """Return whether a derivative in `x` may be asked for, in either mode."""
    return x.requires_grad or traced() or forward_ad.unpack_dual(x).tangent is not None
