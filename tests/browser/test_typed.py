"""A loss that a reader types is measured in the browser as `profile_loss` measures it, and two calculators are right."""

import base64
import math

import numpy as np
import pytest
import torch
from test_pages import PHONE, turn, unreadable
from torch.nn import functional
from torch.nn.functional import normalize

from hnbook import figures
from hnlib import _files, methods, negatives, objectives
from hnlib.contrast import Contrast
from hnlib.profile import profile_loss

pytestmark = pytest.mark.slow
ROOT = _files.project_root()
TOLERANCE = 1e-5  # of all numbers of a profile: an angle of 0 is known to a root of the rounding


@pytest.fixture(scope="module")
def sheet(browser):
    """An empty page with the scripts."""
    page = browser.new_page()
    page.set_content("<p>empty</p>")
    for name in ("pictures", "typed"):
        page.add_script_tag(path=ROOT / f"book/theme/{name}.js")
    yield page
    page.close()


@pytest.fixture(scope="module")
def batches():
    with np.load(ROOT / "book/results/stages.npz") as stages:
        return {name: figures.coordinates(stages[name]) for name in stages}


def unpacked(text):
    """The points of a page, two views in as many dimensions as a profile asks for."""
    packed = torch.from_numpy(np.frombuffer(base64.b64decode(text), "<i2").astype(float))
    n = math.isqrt(2 * len(packed))
    z = packed.new_zeros(n, 2 * n)
    z[tuple(torch.tril_indices(n, n))] = packed
    return normalize(z, dim=1).chunk(2)


# --- ten expressions, in the page's language and by hand


def logit(f, loudness=1.0):
    """Cross-entropy of two views with logits f(s)."""

    def loss(z1, z2):
        contrast = Contrast.from_views(z1, z2)
        f_of_s = f(contrast.similarity.masked_fill(torch.eye(2 * len(z1), dtype=torch.bool), 0.0))
        rivals = f_of_s.masked_fill(~contrast.admissible, -torch.inf).logsumexp(1)
        ratio = rivals - f_of_s[contrast.positives]
        each = functional.softplus(ratio) if loudness else ratio
        return (each * ratio.detach().sigmoid() ** max(loudness - 1, 0)).mean()

    return loss


def weight(log_w, t):
    """InfoNCE with weights held fixed."""

    def loss(z1, z2):
        contrast = Contrast.from_views(z1, z2)
        log = log_w(contrast.similarity.detach()).masked_fill(~contrast.admissible, -torch.inf)
        return objectives.info_nce(contrast, log - log.logsumexp(1, keepdim=True), t)

    return loss


# kind, expression, t, power, the same by hand, batch
EXPRESSIONS = [
    ("f", "s/t", 0.1, 1, methods.build("simclr", temperature=0.1), "cifar10 early"),
    ("f", "(s + abs(s))/t", 0.3, 2, logit(lambda s: (s + s.abs()) / 0.3, 2.0), "cifar10 late"),
    ("w", "exp(2*s/t)", 0.5, 1, weight(lambda s: 2 * s / 0.5, 0.5), "scifact early"),
    ("f", "2*artanh(s)", 0.1, 1, methods.build("artanh"), "cifar10 late"),
    ("f", "relu(s - .2)/t + sqrt(1 + s)^3", 0.1, 1, logit(lambda s: (s - 0.2).relu() / 0.1 + (1 + s) ** 1.5), "cifar10 early"),
    ("f", "log(exp(s/0.5) + 1e-3*exp(s/0.05))", 0.1, 1, logit(lambda s: torch.logaddexp(s / 0.5, s / 0.05 - math.log(1000))), "cifar10 middle"),
]  # fmt: skip

PROFILE = """([batch, kind, text, t, power]) => {
    const points = typed.unpack(batch), formula = typed.parse(text);
    const found = typed.profile(points, typed.derivatives(points, { kind, formula, t, power }));
    return { ...found, forces: found.forces.map((row) => [...row]), sentence: typed.sentence(found) }; }"""


def numbers(found) -> torch.Tensor:
    """All that a profile says in numbers, from either language."""
    get = found.get if isinstance(found, dict) else lambda name: getattr(found, name)
    near = [x.values() if isinstance(x, dict) else x for x in get("nearest")]
    forces = torch.as_tensor(get("forces"), dtype=torch.float64)
    parts = [
        [get(name)] for name in ("sharpness", "misfit", "r2", "balance", "silent", "attracted")
    ]
    parts += [
        *get("local"),
        *near,
        get("lead"),
        get("loudness"),
        (forces / forces.abs().max()).flatten(),
    ]
    return torch.cat([torch.as_tensor([*part], dtype=torch.float64) for part in parts])


def apart(first, second) -> float:
    first, second = numbers(first), numbers(second)
    return float(((first - second).abs() / (1 + second.abs())).max())


@pytest.mark.parametrize(
    "kind, text, t, power, loss, batch", EXPRESSIONS, ids=[e[1] for e in EXPRESSIONS]
)
def test_an_expression_has_the_profile_of_its_loss(
    sheet, batches, kind, text, t, power, loss, batch
):
    """Control: f times 1.001, or the weight's power of 1.001."""
    near = f"({text})^1.001" if kind == "w" else f"1.001*({text})"
    found, other = (
        sheet.evaluate(PROFILE, [batches[batch], kind, words, t, power]) for words in (text, near)
    )
    true = profile_loss(loss, *unpacked(batches[batch]))
    assert true.residual < 1e-10 and true.asymmetry < 1e-10
    assert apart(found, true) < TOLERANCE < 1e-4 < apart(other, true)
    assert found["sentence"] == str(true).replace("-", "−")


# --- what cannot be read, or has no value

SENTENCES = [
    ("", "Something is missing at character 1, the end; add a number, s or t."),
    ("s * / t", "“/” at character 5 cannot stand there; put a number, s, t or a function before it."),
    ("0,5*s", "The comma at character 2 is outside a function; write decimals with a point."),
    ("alert(1)", "“alert” at character 1 is unknown; use s, t, Q, "),
]  # fmt: skip
READ = (
    "text => { try { typed.parse(text); return 'read'; } catch (error) { return error.message; } }"
)


@pytest.mark.parametrize("text, sentence", SENTENCES)
def test_an_error_names_its_place_and_a_remedy(sheet, text, sentence):
    said = sheet.evaluate(READ, text)
    assert said.startswith(sentence) and said.count(".") == 1


# --- the calculators, against the library

BATCH = "x => typed.batch(x)"


def alike(Q, own, lead, other=None):
    """One anchor whose negatives are all `lead` less similar than its positive, but for one."""
    s = torch.full((1, Q + 1), own - lead, dtype=torch.float64)
    s[0, 0] = own
    if other is not None:
        s[0, 1] = other
    first = torch.arange(Q + 1)[None] == 0
    return Contrast.from_similarity(s.requires_grad_(), first, ~first, scale=Q)


def of_library(x, contrast):
    """Loss of the anchor, and its derivatives times t."""
    log_w = negatives.tilted(x["beta"], x["t"], weights_gradient=False)(contrast)
    options = dict(tau_plus=x["tau"], hardness_strength=x["alpha"])
    loss = objectives.info_nce(contrast, log_w, x["t"], **options)
    return loss.item(), x["t"] * torch.autograd.grad(loss, contrast.similarity)[0][0]


def settings(seed):
    rng = np.random.default_rng(seed)
    return dict(
        Q=int(rng.integers(2, 600)), t=rng.uniform(0.05, 1), beta=rng.choice([0, rng.uniform(0, 4)]),
        alpha=rng.choice([0, rng.uniform(0, 9)]), tau=rng.choice([0, rng.uniform(0.01, 0.3)]),
        own=rng.uniform(0, 1), lead=rng.uniform(-0.5, 1),
    )  # fmt: skip


def test_a_batch_in_numbers_is_that_of_the_library(sheet):
    """Control: a lead that is larger by a thousandth."""
    missed = []
    for seed in range(40):
        x = settings(seed)
        found, near = (sheet.evaluate(BATCH, x | {"lead": x["lead"] + add}) for add in (0, 1e-3))
        loss, pulls = of_library(x, alike(x["Q"], x["own"], x["lead"]))
        true = torch.tensor([loss, -float(pulls[0])])
        values = torch.tensor([[y["loss"], y["loudness"]] for y in (found, near)])
        off, control = (values - true).abs().amax(1).tolist()
        assert off < 1e-6 and found["silent"] == bool((pulls[1:] == 0).all())
        missed.append(control)
        mixed = alike(x["Q"], x["own"], x["lead"], x["own"] - x["lead"] - 0.01)
        _, pulls = of_library(x, mixed)
        if (pulls[1:3] > 0).all():
            slope = float((pulls[2] / pulls[1]).log()) / 0.01
            assert slope == pytest.approx(found["sharpness"], rel=1e-6)
    assert np.median(missed) > 1e-5


def test_values_of_a_loss_are_those_of_collapse_in_the_library(sheet):
    """Controls: another batch size."""

    def states(**x):
        found = sheet.evaluate("x => typed.meanings(x)", dict(B=64, t=0.1, base=0.07, mined=0) | x)
        return {name: value for value, name, *_ in found}

    same = torch.ones(64, 8, dtype=torch.float64)
    now, near = states(), states(B=65)
    simclr, dcl = (methods.build(name, temperature=0.1) for name in ("simclr", "dcl"))
    siglip, learned = (  # logits of 0, and of −log m
        methods.build("siglip", temperature=0.1, bias=-10.0 - less) for less in (0, math.log(63))
    )
    for name, true in [
        ("log B", simclr.pairs(same, same)),
        ("log(2B − 1)", simclr(same, same)),
        ("(t/T) log(2B − 1)", simclr(same, same) * 0.1 / 0.07),
        ("log(B − 1)", dcl.pairs(same, same)),
        ("log(2B − 2)", dcl(same, same)),
        ("B log 2", siglip.pairs(same, same)),
        ("log(m + 1) + m log(1 + 1/m)", learned.pairs(same, same)),
    ]:
        assert now[name] == pytest.approx(float(true)) and near[name] > 1.0001 * now[name]
    assert now["(t/T) log(2B − 1)"] == pytest.approx(6.920, abs=5e-4)  # SupContrast's, as reported
    assert states(B=256)["(t/T) log(2B − 1)"] == pytest.approx(8.909, abs=5e-4)
    assert states(mined=1)["log B(1 + h)"] == pytest.approx(math.log(128))


# --- the page


def test_a_loss_is_typed_by_keyboard(visit):
    """On the page: typed, wrong, chosen; on a phone and in the dark; a screen reader hears the sentence."""
    page = visit("notebooks/every-loss.html")
    box = page.locator(".hn-picture[data-kind=typed]")
    said, formula = box.locator("output"), box.locator(".hn-formula")
    assert said.inner_text().startswith(
        "γ = 10.00, 0.0° from SimCLR at t = 0.1, as loud as InfoNCE"
    )
    box.locator("input[type=radio]").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("s/0.5")
    page.wait_for_function(
        "() => document.querySelector('.hn-picture output').textContent.includes('γ = 2.00')"
    )
    page.keyboard.type("+")
    page.wait_for_function(
        "() => document.querySelector('.hn-picture output').textContent.includes('character 7')"
    )
    assert formula.get_attribute("aria-invalid") == "true"
    assert formula.get_attribute("aria-describedby") == said.get_attribute("id")
    for button in box.get_by_role("button").all():
        button.focus()
        before = said.inner_text()
        page.keyboard.press("Enter")
        assert said.inner_text() != before and "γ" in said.inner_text()
        assert formula.get_attribute("aria-invalid") == "false"
    assert page.complaints == []
    page.set_viewport_size(PHONE)
    for scheme in ("light", "dark"):
        turn(page, scheme)
        assert unreadable(box) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("name, kind", [("every-loss", "batch"), ("stuck", "value")])
def test_calculators_lead_to_theorems(visit, html, name, kind):
    page = visit(f"notebooks/{name}.html")
    links = page.locator(f".hn-picture[data-kind={kind}] td a").all()
    for link in links:
        target, _, anchor = link.get_attribute("href").partition("#")
        assert f'id="{anchor}"' in (html / "notebooks" / target).read_text(encoding="utf-8")
    assert len(links) > 5 and page.complaints == []


def test_calculators_answer(visit):
    box = visit("notebooks/every-loss.html").locator(".hn-picture[data-kind=batch]")
    said = box.locator("output")
    box.get_by_label("temperature t").fill("0.5")
    assert "SimCLR at t = 0.5" in said.inner_text()
    box.get_by_label("its lead over each negative").fill("1.9")
    assert said.inner_text() == "No negative has the similarity −1.1; change the lead."
    box.get_by_label("temperature t").fill("")
    assert said.inner_text() == "temperature t must be a number from 0.005 to 10."
    box = visit("notebooks/stuck.html").locator(".hn-picture[data-kind=value]")
    box.get_by_label("loss", exact=True).fill("8.909")
    box.get_by_label("pairs in a batch").fill("256")
    said = box.locator("output").inner_text()
    assert "(t/T) log(2B − 1) = 8.909: SupContrast" in said and "511.0" in said
    assert "SupContrast" in box.locator(".hn-marked").inner_text()
