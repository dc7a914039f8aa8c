"""The two branches of the dual-scale softmax loss (Sahyouni et al., arXiv 2602.07206), our form.

The paper weighs the negatives of a row by hardness and by their similarity to the answer, and sets
a temperature for each row from how strong its hardest negatives are. The forms and the constants
below are ours. `rho` is tried with both signs: positive makes rows with strong competition sharper.

    hnlib null examples/losses/dual_scale.py
"""

import torch

CONFIGURATIONS = [
    {"t": 0.1, "rho": 0.3},
    {"t": 0.1, "rho": -0.3},
    {"t": 0.2, "rho": 0.3},
    {"t": 0.2, "rho": -0.3},
]


def loss(a, b, t, rho, kappa=2.0, slate=10):
    """Softmax with weighted negatives and a temperature for each row."""
    s, eye = a @ b.T, torch.eye(len(a), dtype=torch.bool, device=a.device)
    with torch.no_grad():
        others = s.masked_fill(eye, -torch.inf)
        like = (b @ b.T).masked_fill(eye, -torch.inf)
        log_weight = (kappa * (others + like)).log_softmax(1) + torch.tensor(len(a) - 1.0).log()
        strong = others.topk(min(slate, len(a) - 1)).values.mean(1) - s.diagonal()
        strong = (strong - strong.mean()) / (strong.std() + 1e-6)
        row_t = t * torch.exp(-rho * strong.clamp(-2, 2))[:, None]
    logits = torch.where(eye, s / row_t, s / row_t + log_weight)
    return (row_t[:, 0] / t * (logits.logsumexp(1) - s.diagonal() / row_t[:, 0])).mean()
