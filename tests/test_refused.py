"""A run that makes no sense is refused in a sentence, before anything is trained or written."""

import math

import pytest
from one_call import train
from torch import nn

from hnlib import methods
from hnlib.training.config import Execution

SMALL = dict(epochs=1, batch_size=32, train_size=100, progress=False, device="cpu")
MIXED = dict(method="hcl", mixing="un-mix")
GRAPHS = dict(dataset="motifs", epochs=1, folds=4, progress=False)

REFUSED = [
    ("images", dict(batch_size=101), "at most the 100 images for training of .*, got 101"),
    ("images", dict(method=nn.Identity(), queue=8), "queue requires a method"),
    ("images", dict(schedule={"beta": (1, 0)}), "no option 'beta'; it has temp"),
    ("images", dict(schedule={"beta": (1,)}), "schedule"),
    ("images", dict(lr=math.nan), "finite number"),
    ("images", dict(admitted=0.5, method="scl"), "admitted requires a method without class labels"),
    ("images", dict(separate_views=True, queue=64), "separate_views does not apply with queue=64"),
    ("images", MIXED | dict(method="scl"), "mixing requires a method without class labels, not"),
    ("images", MIXED | dict(admitted=0.5), "mixing and admitted do not go together"),
    ("images", dict(method="unremix", mixing="i-mix"), "no two views to weigh, which unremix"),
    ("images", dict(mixing_share=0.5), "mixing_share requires mixing"),
    ("graphs", dict(method="simclr"), "method 'simclr' is unknown; the catalogue has infograph"),
    ("graphs", dict(method="unremix", framework="graphcl"), "unremix needs the inputs of the last"),
    ("graphs", dict(method=methods.build("hcl")), "has no method 'hcl'"),
    ("graphs", dict(method=None), "method=None trains nothing"),
    ("graphs", dict(method="hcl", queue=8), "queue=8 requires framework='graphcl'"),
    ("retrieval", dict(encoder="bge"), "encoder"),
    ("retrieval", dict(encoder="minilm", dimension=8), "dimension requires encoder=bag or gru or"),
    ("retrieval", dict(method="simclr", teacher="bm25"), "requires method soft-targets"),
]


@pytest.mark.parametrize(("kind", "chosen", "message"), REFUSED)
def test_it_is_refused(tmp_path, kind, chosen, message):
    usual = {"images": SMALL, "graphs": GRAPHS}.get(kind, {})
    with pytest.raises(ValueError, match=message):
        train(kind, **usual | chosen, checkpoint=tmp_path / "c", record_to=tmp_path / "r")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("chosen", [dict(encoder="vgg"), dict(dataset="cifar-10")])
def test_an_unknown_name_is_refused_before_data_are_downloaded(tmp_path, monkeypatch, chosen):
    monkeypatch.setattr("hnlib.images.data._download", None)
    with pytest.raises(ValueError, match=r"must be one of .*, got '(vgg|cifar-10)'"):
        train(**SMALL | dict(dataset="cifar10", data_root=tmp_path) | chosen)
    with pytest.raises(TypeError, match="NoneType"):  # the control: they would have been
        train(**SMALL | dict(dataset="cifar10", data_root=tmp_path))


def test_minutes_ask_for_a_checkpoint():
    with pytest.raises(ValueError, match=r"minutes=0\.5 requires checkpoint=PATH"):
        Execution(minutes=0.5)
