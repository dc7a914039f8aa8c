"""What the null model and its ledger of losses share: margins, the words of a verdict, scatter."""

from __future__ import annotations

import statistics

from hnlib.experiments import comparisons
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.experiment import Experiment

PROTOCOL = "null-1"
NULLS = {"N1": "a tuned temperature", "N2": "a tuned temperature and loudness"}
MARGINS = {"ndcg": 1.0, "knn": 0.5}  # points that would matter


def word(effect: Effect, margin: float) -> str:
    """Return "beats", "loses", "equivalent", "leads", "trails" or "unresolved".

    A loss beats the null model if the whole interval, corrected over the tasks, lies above the
    margin, and loses if it lies below its negative. It leads or trails if it differs significantly,
    but perhaps by less than the margin.
    """
    if effect.low > margin:
        return "beats"
    if effect.high < -margin:
        return "loses"
    found = comparisons.verdict(effect, margin)
    if found == "different":
        return "leads" if effect.difference > 0 else "trails"
    return found


def deviation(protocol: Experiment, block: str) -> float | None:
    """Return the deviation, in points, of the difference of two arms from seed to seed.

    It is estimated over the best quarter of the arms from the differences between the selection's
    two seeds; what a seed does to all arms equally cancels. None until the selection is recorded.
    """
    metric = protocol.metric(block)
    arms = protocol.matching([f"{name} *" for name in NULLS], block)
    means = {arm: protocol.mean(arm, f"{metric}_validation", block) for arm in arms}
    known = {arm: mean for arm, mean in means.items() if mean is not None}
    if len(known) < len(arms):
        return None
    best = sorted(arms, key=lambda arm: known[arm])[-max(2, len(arms) // 4) :]
    first, second = protocol.seeds[:2]
    values = [protocol.values(arm, metric, block) for arm in best]
    return 100 * statistics.stdev(one[first] - one[second] for one in values)
