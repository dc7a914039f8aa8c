"""Checks of claims: discrepancies, and those of a false variant, compared with one tolerance."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from IPython.display import display

MIME = "application/vnd.hnlib.claim+json"
KINDS = ("identity", "inequality", "refutation", "rate", "stochastic", "definition")


class ClaimError(AssertionError):
    """A claim's check failed, or its negative control passed."""


def anchor(record: dict) -> str:
    """Return the id of a check's line on its chapter's page."""
    return "check-" + re.sub(r"\W+", "-", f"{record['id']} {record['title']}".lower()).strip("-")


class Line:
    """The outcome of one check, shown as one line; its record stays in the notebook's outputs."""

    def __init__(self, id: str, title: str, kind: str, **numbers):
        self.record = r = dict(id=id, title=title, kind=kind) | numbers
        control = ""
        if r["control"] is not None:
            failed = f"{r['failed']:,} of {r['controls']:,}"
            control = f" · control <b>{r['control']:.2g}</b>, fails in {failed}"
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


@contextmanager
def check(id: str, title: str, tolerance: float, kind: str = "identity") -> Iterator[Callable]:
    """Pass if what the block sees is within the tolerance, and its controls are not.

    The block gets a function ``see(value, control, instances)``. A value is a discrepancy, for an
    inequality a violation; a control is the same quantity for a variant known to be false. Both are
    numbers or arrays, of which the largest counts, over all calls; the line shows in how many
    instances the control fails. Of two near misses that must both fail, hand over the smaller. The
    instances are by default the number of values. NaN never passes.

    Parameters
    ----------
    id, title : str
        The claim's id in claims.csv, and what the check is about.
    tolerance : float
        The largest value that passes.
    kind : {"identity", "inequality", "refutation", "rate", "stochastic", "definition"}
        In a refutation, the printed statement is the control. A definition may have none.

    Raises
    ------
    ClaimError
        If a value exceeds the tolerance, or no control does.
    ValueError
        If the check could not fail: without a value, a control or a finite tolerance, or with a
        negative discrepancy of an identity.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if not math.isfinite(tolerance):
        raise ValueError(f"{id}: tolerance must be finite, got {tolerance}")
    values, controls, counts = [], [], []

    def see(value, control=(), instances: int | None = None) -> None:
        value = np.ravel(value)
        values.extend(value.astype(float))
        controls.extend(np.ravel(control).astype(float))
        counts.append(len(value) if instances is None else int(instances))

    yield see
    if not values or not (controls or kind == "definition"):
        raise ValueError(f"{id}: a check needs a value and a negative control; see(value, control)")
    value, control = np.max(values), np.max(controls) if controls else None
    if kind in ("identity", "definition") and value < 0:
        raise ValueError(f"{id}: value must be an absolute difference, got {value:.3g}")
    if not value <= tolerance:  # also for NaN
        raise ClaimError(
            f"{id} {title}: the discrepancy {value:.3g} exceeds the tolerance {tolerance:.3g}"
        )
    if controls and not control > tolerance:
        raise ClaimError(
            f"{id} {title}: the negative control passes ({control:.3g} against the tolerance "
            f"{tolerance:.3g}), so this check could not have failed"
        )
    failed = sum(one > tolerance for one in controls)
    control = float(min(control, 1e308)) if controls else None  # JSON has no infinity
    numbers = dict(value=float(max(value, -1e308)), tolerance=float(tolerance), control=control)
    numbers |= dict(failed=failed, controls=len(controls))
    display(Line(id, title, kind, instances=sum(counts), **numbers))


def harvest(notebook) -> list[dict]:
    """Return the records that `check` left in an executed notebook (a node or its JSON)."""
    return [
        output["data"][MIME]
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if MIME in output.get("data", {})
    ]
