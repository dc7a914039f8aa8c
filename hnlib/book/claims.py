"""Checks of claims that can fail: a discrepancy against a tolerance, and a false variant against
the same one."""

from __future__ import annotations

import html
import math
import re

MIME = "application/vnd.hnlib.claim+json"
KINDS = ("identity", "inequality", "refutation", "rate", "stochastic", "definition")


class ClaimError(AssertionError):
    """A claim's check failed, or its negative control passed."""


def anchor(record: dict) -> str:
    """Where the line of a check stands on its chapter's page, for links to it."""
    return "check-" + re.sub(r"\W+", "-", f"{record['id']} {record['title']}".lower()).strip("-")


class Check:
    """The outcome of one check; displays as one line and leaves its record in the notebook's
    outputs."""

    def __init__(self, record: dict):
        self.record = record
        self.cases = f"instance{'s' * (record['instances'] != 1)}"

    def __repr__(self) -> str:
        r = self.record
        control = "" if r["control"] is None else f"; the control gives {r['control']:.2g}"
        return (
            f"{r['id']} {r['title']}: {r['value']:.2g} against a tolerance of {r['tolerance']:.2g} "
            f"({r['kind']}, {r['instances']} {self.cases}{control})"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        r = self.record
        control = "" if r["control"] is None else f" · control <b>{r['control']:.2g}</b>"
        numbers = (
            f"{r['kind']} · discrepancy <b>{r['value']:.2g}</b> ≤ {r['tolerance']:.2g} · "
            f"{r['instances']:,} {self.cases}{control}"
        )
        data = {key: r[key] for key in ("value", "tolerance", "control", "instances")}
        marks = "".join(f' data-{key}="{x}"' for key, x in data.items() if x is not None)
        line = (
            f'<div class="hn-claim" id="{html.escape(anchor(r))}" data-status="ok"{marks}>'
            f'<span class="hn-claim-id">{html.escape(r["id"])}</span> '
            f'<span class="hn-claim-title">{html.escape(r["title"])}</span> '
            f'<span class="hn-claim-numbers">{numbers}</span></div>'
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
    """Pass if `value` <= `tolerance` < `control`; otherwise stop the chapter.

    `value`: the largest discrepancy found (of an inequality: by how much it is violated, negative
    when it holds with room). `control`: the same quantity for a variant known to be false; required
    unless `kind` is "definition". `kind`: identity, inequality, refutation (the printed statement
    is the control), rate, stochastic, definition. `instances`: how many random or listed cases
    `value` is the worst of. NaN never passes. ClaimError: the check failed or its control passed.
    ValueError: an unknown kind, a missing control, no instance, a tolerance that is not finite, a
    negative discrepancy of an identity (a difference without its absolute value).
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is unknown; use one of {', '.join(KINDS)}")
    if control is None and kind != "definition":
        raise ValueError(f"{id}: a check without a negative control cannot fail; pass control=…")
    value, tolerance = float(value), float(tolerance)
    if int(instances) < 1:
        raise ValueError(f"{id}: instances={instances}; a check needs at least one instance")
    if not math.isfinite(tolerance):
        raise ValueError(f"{id}: tolerance={tolerance} rejects nothing; choose a finite one")
    if kind in ("identity", "definition") and value < 0:
        raise ValueError(
            f"{id}: a discrepancy of kind {kind} cannot be {value:.3g} < 0; take absolute values"
        )
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
    record = {"id": id, "title": title, "kind": kind, "value": value, "tolerance": tolerance}
    record |= {"instances": int(instances), "control": control}
    for key in ("value", "control"):  # JSON has no infinity
        if record[key] is not None:
            record[key] = min(max(record[key], -1e308), 1e308)
    return Check(record)


def harvest(notebook) -> list[dict]:
    """The records that `check` left in an executed notebook (an nbformat node or its JSON)."""
    return [
        output["data"][MIME]
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if MIME in output.get("data", {})
    ]
