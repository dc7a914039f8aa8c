r"""Sentences: encoders trained on neighbouring sentences, with any negatives.

A tokenizer is learned on the corpus by the library `tokenizers`; pairs are a sentence and the one
that follows it in the same document, or a sentence twice under dropout.
"""

try:
    import tokenizers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "hnlib.sentences needs the library tokenizers; install it with: "
        "pip install 'hnlib[sentences]'"
    ) from error

from hnlib.sentences import data, encoders, tasks

__all__ = ["data", "encoders", "tasks"]
