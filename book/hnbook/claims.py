"""Checks of claims: a discrepancy, and that of a false variant, compared with one tolerance."""

from __future__ import annotations

import html
import math
import re

MIME = "application/vnd.hnlib.claim+json"
KINDS = ("identity", "inequality", "refutation", "rate", "stochastic", "definition")


class ClaimError(AssertionError):
    """A claim's check failed, or its negative control passed."""


def anchor(record: dict) -> str:
    """Return the id of a check's line on its chapter's page."""
    return "check-" + re.sub(r"\W+", "-", f"{record['id']} {record['title']}".lower()).strip("-")


class Check:
    """The outcome of one check, shown as one line; its record stays in the notebook's outputs."""

    def __init__(self, record: dict):
        self.record = r = record
        control = "" if r["control"] is None else f" · control <b>{r['control']:.2g}</b>"
        self.numbers = (
            f"{r['kind']} · discrepancy <b>{r['value']:.2g}</b> ≤ {r['tolerance']:.2g} · "
            f"{r['instances']:,} instance{'s' * (r['instances'] != 1)}{control}"
        )

    def __repr__(self) -> str:
        numbers = re.sub("</?b>", "", self.numbers)
        return f"{self.record['id']} {self.record['title']}: {numbers}"

    def _repr_mimebundle_(self, include=None, exclude=None):
        r = self.record
        data = {key: r[key] for key in ("value", "tolerance", "control", "instances")}
        marks = "".join(f' data-{key}="{x}"' for key, x in data.items() if x is not None)
        line = (
            f'<div class="hn-claim" id="{html.escape(anchor(r))}" data-status="ok"{marks}>'
            f'<span class="hn-claim-id">{html.escape(r["id"])}</span> '
            f'<span class="hn-claim-title">{html.escape(r["title"])}</span> '
            f'<span class="hn-claim-numbers">{self.numbers}</span></div>'
        )
        return {"text/plain": repr(self), "text/html": line, MIME: r}


def check(
    id: str,
    title: str,
    *,
    kind: str,
    value: float,
    tolerance: float,
    instances: int = 1,
    control: float | None = None,
) -> Check:
    """Pass if `value` ≤ `tolerance` < `control`; otherwise stop the chapter.

    Parameters
    ----------
    id, title : str
        The claim's id in claims.csv, and what the check is about.
    kind : {"identity", "inequality", "refutation", "rate", "stochastic", "definition"}
        In a refutation, the printed statement is the control.
    value : float
        The largest discrepancy; for an inequality, the largest violation. NaN never passes.
    tolerance : float
        The largest `value` that passes.
    instances : int, default 1
        Number of random or listed cases of which `value` is the worst.
    control : float
        The same quantity for a variant known to be false; optional for a definition alone.

    Raises
    ------
    ClaimError
        If the check fails or its control passes.
    ValueError
        If the check could not fail: without a control, an instance or a finite tolerance, or with
        a negative discrepancy of an identity.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if control is None and kind != "definition":
        raise ValueError(f"{id}: a check needs a negative control; pass control=…")
    value, tolerance, instances = float(value), float(tolerance), int(instances)
    if not math.isfinite(tolerance):
        raise ValueError(f"{id}: tolerance must be finite, got {tolerance}")
    if kind in ("identity", "definition") and value < 0:
        raise ValueError(f"{id}: value must be an absolute difference, got {value:.3g}")
    control = None if control is None else float(control)
    if not value <= tolerance:  # also for NaN
        raise ClaimError(
            f"{id} {title}: the discrepancy {value:.3g} exceeds the tolerance {tolerance:.3g}"
        )
    if control is not None and not control > tolerance:
        raise ClaimError(
            f"{id} {title}: the negative control passes ({control:.3g} against the tolerance "
            f"{tolerance:.3g}), so this check could not have failed"
        )
    value, control = max(value, -1e308), control and min(control, 1e308)  # JSON has no infinity
    numbers = dict(value=value, tolerance=tolerance, instances=instances, control=control)
    return Check(dict(id=id, title=title, kind=kind) | numbers)


def harvest(notebook) -> list[dict]:
    """Return the records that `check` left in an executed notebook (a node or its JSON)."""
    return [
        output["data"][MIME]
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if MIME in output.get("data", {})
    ]
