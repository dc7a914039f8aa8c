"""What runs on sentences and on retrieval both name. Needs no torch."""

from __future__ import annotations

#: Encoders by name, what each is: it is a class of `hnlib.texts.encoders`
ENCODERS = {"bag": "mean of the tokens", "gru": "last states of a recurrent network"}

#: What embeddings are evaluated by: classification, similarity, and two that are made here
TRANSFER = ("mr", "cr", "subj", "mpqa", "trec", "msrp")
SIMILARITY = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sick")
GENERATED = ("topic", "alike")
