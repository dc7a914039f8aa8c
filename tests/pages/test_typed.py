"""A loss that a reader types is measured in the browser as `profile_loss` measures it, and two calculators are right."""

import numpy as np
import pytest
import torch
from test_pages import PHONE, turn, unreadable
from torch.nn.functional import normalize

from hnbook import figures
from hnlib import _files, methods, negatives, objectives
from hnlib.contrast import Contrast
from hnlib.profile import profile_loss

pytestmark = pytest.mark.slow
ROOT = _files.project_root()


@pytest.fixture(scope="module")
def sheet(browser):
    """An empty page with the scripts."""
    page = browser.new_page()
    page.set_content("<p>empty</p>")
    for name in ("pictures", "typed"):
        page.add_script_tag(path=ROOT / f"book/theme/{name}.js")
    yield page
    page.close()


PROFILE = """([batch, kind, text, t]) => {
    const points = typed.unpack(batch), formula = typed.parse(text);
    const found = typed.profile(points, typed.derivatives(points, { kind, formula, t, power: 1 }));
    return { ...found, sentence: typed.sentence(found) }; }"""
TILT = dict(temperature=0.5, beta=2.0, tau_plus=0.0, weights_gradient=False)


@pytest.mark.parametrize(
    ("kind", "expression", "t", "loss", "batch"),
    [
        ("f", "s/t", 0.1, methods.build("simclr", temperature=0.1), "cifar10 early"),
        ("f", "2*artanh(s)", 0.1, methods.build("artanh"), "cifar10 late"),
        ("w", "exp(2*s/t)", 0.5, methods.build("hcl", **TILT), "scifact early"),
    ],
)
def test_an_expression_has_the_profile_of_its_loss(sheet, kind, expression, t, loss, batch):
    with np.load(ROOT / "book/results/stages.npz") as stages:
        points = stages[batch]
    found = sheet.evaluate(PROFILE, [figures.coordinates(points), kind, expression, t])
    true = profile_loss(loss, *normalize(torch.from_numpy(points).double(), dim=2))
    names = ("sharpness", "misfit", "r2", "balance", "silent", "attracted")
    expected = pytest.approx(
        [getattr(true, name) for name in names], rel=1e-4, abs=1e-4
    )  # points of 16 bits
    assert [found[name] for name in names] == expected
    assert found["sentence"] == str(true).replace("-", "−")


def test_an_error_names_its_place_and_a_remedy(sheet):
    read = "text => { try { typed.parse(text); } catch (error) { return error.message; } }"
    says = "The comma at character 2 is outside a function; write decimals with a point."
    assert sheet.evaluate(read, "0,5*s") == says
    assert sheet.evaluate(read, "alert(1)").startswith("“alert” at character 1 is unknown; use s,")


# --- the calculators, against the library


def of_library(x, apart=0.0):
    """Return the loss of an anchor, and its derivatives times t.

    All its negatives are as similar, but for one that is `apart`.
    """
    s = torch.full((1, x["Q"] + 1), x["own"] - x["lead"], dtype=torch.float64)
    s[0, 0], s[0, 1] = x["own"], s[0, 1] - apart
    first = torch.arange(x["Q"] + 1)[None] == 0
    contrast = Contrast.from_similarity(s.requires_grad_(), first, ~first, scale=x["Q"])
    log_w = negatives.tilted(x["beta"], x["t"], weights_gradient=False)(contrast)
    options = dict(tau_plus=x["tau"], hardness_strength=x["alpha"])
    loss = objectives.info_nce(contrast, log_w, x["t"], **options)
    return loss.item(), x["t"] * torch.autograd.grad(loss, contrast.similarity)[0][0]


def test_a_batch_in_numbers_is_that_of_the_library(sheet):
    x = dict(Q=30, t=0.2, beta=3, alpha=5, tau=0.1, own=0.8, lead=0.2)
    found = sheet.evaluate("x => typed.batch(x)", x)
    loss, pulls = of_library(x)
    assert found["loss"] == pytest.approx(loss, abs=1e-6)
    assert found["loudness"] == pytest.approx(-float(pulls[0]), abs=1e-6)
    _, pulls = of_library(x, apart=0.01)
    slope = float((pulls[2] / pulls[1]).log()) / 0.01
    assert slope == pytest.approx(found["sharpness"], rel=1e-6)


def test_values_of_a_loss_are_those_of_collapse_in_the_library(sheet):
    meanings = sheet.evaluate("x => typed.meanings(x)", dict(B=64, t=0.1, base=0.07, mined=0))
    found = {name: value for value, name, *_ in meanings}
    same = torch.ones(64, 8, dtype=torch.float64)
    simclr, dcl = (methods.build(name, temperature=0.1) for name in ("simclr", "dcl"))
    siglip = methods.build("siglip", temperature=0.1, bias=-10.0)  # logits of 0
    for name, true in [
        ("log B", simclr.pairs(same, same)),
        ("log(2B − 1)", simclr(same, same)),
        ("log(B − 1)", dcl.pairs(same, same)),
        ("B log 2", siglip.pairs(same, same)),
    ]:
        assert found[name] == pytest.approx(float(true))
    assert found["(t/T) log(2B − 1)"] == pytest.approx(6.920, abs=5e-4)  # as SupContrast reports


# --- the page


def test_a_loss_is_typed_by_keyboard(visit):
    """Typed, wrong, chosen; on a phone and in the dark; a screen reader hears the sentence."""
    page = visit("notebooks/every-loss.html")
    box = page.locator(".hn-picture[data-kind=typed]")
    said, formula = box.locator("output"), box.locator(".hn-formula")
    formula.fill("s/0.5")
    said.filter(has_text="γ = 2.00").wait_for()
    page.keyboard.type("+")
    said.filter(has_text="character 7").wait_for()
    assert formula.get_attribute("aria-invalid") == "true"
    assert formula.get_attribute("aria-describedby") == said.get_attribute("id")
    for button in box.get_by_role("button").all():
        before = said.inner_text()
        button.press("Enter")
        assert said.inner_text() != before and "γ" in said.inner_text()
    assert formula.get_attribute("aria-invalid") == "false" and page.complaints == []
    page.set_viewport_size(PHONE)
    for scheme in ("light", "dark"):
        turn(page, scheme)
        assert unreadable(box) == []
