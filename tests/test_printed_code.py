"""The code that pages of advice print runs as copied, given the reader's own data and loop."""

import functools
import re

import pytest
import torch
from scripts import ROOT
from torch import nn

from hnlib.images import _torchvision  # noqa: F401, before transformers is imported: see there

WORDS = [
    "ship",
    "sail",
    "wave",
    "rose",
    "bee",
    "hedge",
    "bread",
    "oven",
    "knife",
    "judge",
    "law",
    "jury",
    "violin",
    "song",
    "drum",
    "chalk",
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(f"{page}:{text[: m.start()].count(chr(10)) + 2}", m[1]) for m in BLOCK.finditer(text)]


@functools.cache
def texts():
    """Return pairs of texts, and a model that embeds their words."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    known = {word: i for i, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    bag = StaticEmbedding(tokenizer, embedding_dim=8)
    pairs = [{"query": one, "answer": f"{one} {two}"} for one, two in zip(WORDS, WORDS[::-1])]
    return Dataset.from_list(pairs), SentenceTransformer(modules=[bag], device="cpu")


def owned() -> dict:
    """Return what the pages say is the reader's: embeddings, labels, a loop, a model."""

    def embeddings(n=8):
        return torch.randn(n, 4, requires_grad=True)

    def fit(*model_and_loss):
        return model_and_loss[0]

    pairs, model = texts()
    names = ("z1", "z2", "images", "captions", "users", "items", "queries", "answers", "mined")
    return {name: embeddings() for name in names} | dict(
        y=torch.arange(8) % 2,
        is_answer=torch.zeros(8, 16, dtype=torch.bool).fill_diagonal_(True),
        item_id=torch.tensor([3, 1, 3, 0, 2, 1, 4, 5]),
        counts=torch.tensor([5.0, 40, 3, 90, 1, 2]),
        nodes=embeddings(12),
        graphs=embeddings(3),
        batch=torch.arange(12) % 3,
        encoder=None,
        train=fit,
        validate=lambda model: 0.5,
        new_model=lambda: nn.Linear(4, 4),
        model=model,
        SentenceTransformerTrainer=dict,
        args=None,
        pairs=pairs,
        augment=lambda x: x,
        loader=[(torch.randn(8, 4), torch.arange(8) % 2)],
    )


READ = ("README.md", "notebooks/start-here.md")  # from the top; others are entered at any block
ENTERED = ("notebooks/experiments/which-method.md", "skills/choose-negatives/SKILL.md")


def run(code, place, names):
    exec(compile(code, place, "exec"), names)
    loss = names.get("loss")
    assert not isinstance(loss, torch.Tensor) or (loss.isfinite() and loss.requires_grad)


@pytest.mark.parametrize("page", READ)
def test_the_code_of_a_page_runs_from_the_top(page):
    names = owned()
    for place, code in blocks(page):
        run(code, place, names)


@pytest.mark.parametrize("place, code", [block for page in ENTERED for block in blocks(page)])
def test_a_block_of_the_decision_page_runs_alone(place, code):
    run(code, place, owned())


def test_the_first_block_of_the_decision_page_is_the_recipe_for_sentence_transformers():
    """The plain loss, one mined negative for each pair, then four; the first answers at scale 20."""
    place, code = blocks(ENTERED[0])[0]
    names = owned()
    run(code, place, names)
    assert names["loss"].scale == 20 and type(names["loss"]).__name__.startswith("MultipleNeg")
    assert {*names["mined"].column_names} == {"query", "answer", "negative"}
    assert sum("negative" in column for column in names["four"].column_names) == 4


def test_no_printed_line_of_a_page_is_wider_than_the_column():
    """88 columns of a code block fit; the code of cells is formatted, and README has a wider column."""
    pages = [*(ROOT / "book").glob("*.md"), *(ROOT / "notebooks").rglob("*.md")]
    code = re.compile(r"^```(?:python|bash|text)\n(.*?)^```", re.M | re.S)
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    lines = [
        x for text in texts.values() for block in code.findall(text) for x in block.split("\n")
    ]
    assert len(lines) > 200 and [line for line in lines if len(line) > 88] == []


def test_a_block_that_lacks_an_import_is_noticed():
    with pytest.raises(NameError, match="Contrast"):
        exec("contrast = Contrast.from_pairs(users, items)", owned())
