"""What the losses cannot use is named in a sentence."""

import math
from functools import partial

import pytest
import torch

from hnlib import methods, negatives, objectives, robust
from hnlib.contrast import Contrast
from hnlib.synthetic_negatives import mochi
from hnlib.transport import sinkhorn

Z = torch.randn(8, 2, generator=torch.Generator().manual_seed(2))
VIEWS = Contrast.from_views(Z[:4], Z[4:])
LABELLED = Contrast.from_views(Z[:4], Z[4:], torch.tensor([0, 1, 0, 1]))
ROWS, EYE = torch.ones(4, 3), torch.eye(3) > 0
BARE = Contrast.from_similarity(torch.eye(3), EYE, ~EYE)
BROKEN = torch.where(torch.arange(4)[:, None] == 2, torch.nan, ROWS)
COST = torch.zeros(3, 3)
FORBIDDEN = ~EYE & (torch.arange(3) != 1)[:, None]

views, space, pairs = Contrast.from_views, Contrast.from_similarity, Contrast.from_pairs
info_nce = partial(objectives.info_nce, VIEWS, VIEWS.uniform_log_weights)
simclr, ot, scl, unremix = map(methods.build, ("simclr", "ot", "scl", "unremix"))
ALL = torch.ones(8, 8) > 0
centred_tilt = methods.example("centred-hcl").centred_tilt


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: views(BROKEN, ROWS), "row 2 of view 1 has norm nan .*check the enc"),
        (lambda: space(ROWS, EYE, ~EYE), r"positives must be a boolean mask of shape \(4, 3\)"),
        (lambda: space(ROWS[:3], EYE & ~EYE, ~EYE), "anchor 0 has no positive"),
        (lambda: pairs(ROWS[:3], ROWS).reversed(), "got 3 queries and 4 keys"),
        (lambda: negatives.entropic_ot(cost="cubic"), "cost must be one of exponential, got 'cub"),
        (lambda: centred_tilt()(BARE), "centred_tilt needs embeddings"),
        (
            lambda: unremix(Z[:4], Z[4:], features=(Z[:3], Z[4:])),
            r"two matrices \[4, k\].*\(3, 2\)",
        ),
        (
            lambda: unremix(Z[:4], Z[4:], features=(Z[:3], Z[:3])),
            r"two matrices \[4, k\].*\(3, 2\)",
        ),
        (lambda: unremix(Z[:4], Z[4:], features=[Z[:4]]), r"two matrices \[4, k\], .*got \(4, 2\)"),
        (lambda: simclr.pairs(Z, Z, positives=ALL), "0 has no .*fewer candidates .* add keys$"),
        (lambda: ot.pairs(Z, Z, excluded=ALL), "0 has no .*fewer candidates .* add keys$"),
        (
            lambda: scl(Z[:4], Z[4:], ROWS[:, 0].long()),
            'use a batch with more classes, or on_empty="',
        ),
        (lambda: negatives.uniform()(pairs(Z, Z, ALL)), 'no .*add keys, or on_empty="skip" to'),
        (lambda: mochi()(BARE), "mochi mixes embeddings; build the contrast from views"),
        (lambda: negatives.unremix()(LABELLED), "no labels"),
        (lambda: negatives.unremix(gradient="nt-xent")(pairs(Z[:4], Z[4:])), "needs .* two views"),
        (lambda: negatives.unremix(mixture=(-0.1, 0.6, 0.5)), "mixture must be three shares"),
        (lambda: info_nce(temperature=0.0), "temperature must be positive and finite, got 0"),
        (lambda: info_nce(temperature=torch.ones(3)), r"temperature must .* have shape \(8,\)"),
        (lambda: info_nce(loudness=0.5), "loudness must be 0 or at least 1, got 0.5"),
        (lambda: info_nce(average="pairs", reduction="none"), 'needs reduction="mean"'),
        (lambda: objectives.basic(VIEWS, VIEWS.similarity * math.nan), "anchor 0 weigh nan: log_w"),
        (lambda: sinkhorn(COST, mask=FORBIDDEN), "row 1 of the mask"),
        (lambda: sinkhorn(COST, p=torch.tensor([0.5, 0.3, 0.2]), symmetric=True), "symmetric"),
        (lambda: sinkhorn(COST - math.inf), "not finite; forbid cells with mask"),
        (lambda: robust.kl_ball(COST, torch.full((3,), 0.5)), r"must not .* got a sum of 1\.5"),
    ],
)
def test_misuse_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
