"""The configuration of a run on images; needs no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from cyclopts import Parameter
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass

from hnlib._files import DAMAGED, data_folder
from hnlib.images.registry import DATASETS, ENCODERS, check_folder, training_images
from hnlib.training.config import Configuration, Rare, checked, listed

__all__ = ["Augmentation", "ImageRun"]

OWN_DATASETS = ("folder:PATH",)

#: Settings by name: fields of an `ImageRun` that are None take these. "book" is what the default
#: build can afford, "fast" is ours, and the others are of the papers' texts and released code.
#:
#: :meta hide-value:
RECIPES = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text("utf-8"))


@plain_dataclass(frozen=True)
class Augmentation:
    """The distribution of a view. Zero or (1, 1) switches an operation off.

    Probabilities are per image.
    """

    #: area (as a fraction) and width:height of the random crop, which is resized to the whole
    crop_scale: tuple[float, float] = (1.0, 1.0)
    crop_ratio: tuple[float, float] = (1.0, 1.0)
    rotation: float = 0.0  #: largest angle in degrees
    flip: float = 0.0  #: probability of a mirror image
    #: largest change of brightness, contrast, saturation; largest turn of the hue (1: full)
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_p: float = 0.0  #: its probability
    grey: float = 0.0  #: probability of losing the colour
    noise: float = 0.0  #: standard deviation of the added noise, white being 1
    blur: float = 0.0  #: probability of a Gaussian blur
    blur_kernel: int = 3  #: over so many pixels each way, an odd number
    blur_sigma: tuple[float, float] = (0.1, 2.0)  #: its deviation in pixels, uniform
    #: side of the views, where not that of the images; shrunk with antialiasing, as pillow does,
    #: and not turned
    size: int | None = None

    def recorded(self) -> dict:
        """Return the fields as records hold them: blur and size only where they act."""
        unused = () if self.blur else ("blur", "blur_kernel", "blur_sigma")
        unused += ("size",) if self.size is None else ()
        return {key: value for key, value in vars(self).items() if key not in unused}


_COLOURS = dict(flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), jitter_p=0.8, grey=0.2)
AUGMENTATIONS = {
    # simclr's for 32×32 colour images (crop, flip, weak jitter, grey; no blur: its App. B.9). Its
    # crops start at .08 of the area, ours at .2: a short training learns more from them.
    "simclr": Augmentation((0.2, 1.0), (3 / 4, 4 / 3), **_COLOURS),
    # as in the code released with hcl and with dro: crops from .08 of the area, and half of the
    # views blurred. The order of the four colour operations is random there and fixed here.
    "hcl": Augmentation((0.08, 1.0), (3 / 4, 4 / 3), **_COLOURS, blur=0.5),
    # the same code on STL-10: crops of 96 pixels shrink to 32
    "hcl-32": Augmentation((0.08, 1.0), (3 / 4, 4 / 3), **_COLOURS, blur=0.5, size=32),
    # ours: what leaves a handwritten digit the same digit, so no mirror image
    "digits": Augmentation(
        (0.5, 1.0), (3 / 4, 4 / 3), 15.0, jitter=(0.4, 0.4, 0.0, 0.0), jitter_p=0.8, noise=0.1
    ),
}


def as_augmentation(given: str | dict | Augmentation) -> Augmentation:
    """Return an augmentation given by its name, by its recorded fields, or as itself."""
    if isinstance(given, dict):
        return Augmentation(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
    if isinstance(given, str) and given not in AUGMENTATIONS:
        choices = ", ".join(AUGMENTATIONS)
        raise ValueError(f"augmentation must be one of {choices}, got {given!r}")
    return AUGMENTATIONS[given] if isinstance(given, str) else given


def _recorded(given: str | dict | Augmentation | None) -> dict | None:
    return None if given is None else as_augmentation(given).recorded()


@dataclass(frozen=True, kw_only=True, config=checked)
class ImageRun(Configuration):
    """An encoder of images, trained on two views of each.

    Parameters
    ----------
    encoder
        of the registry of images, see CONTRIBUTING
    recipe
        book, hcl, hcl-ot, h-scl, adnce, unremix, mochi, i-mix, un-mix or fast
    train_size
        images in a class-balanced subset
    validation
        training images held out, on which to choose
    augmentation
        digits, simclr, hcl or hcl-32 (default: the data set's; of data of yours simclr)
    separate_views
        each view passes the encoder separately, with its own batch statistics
    oracle_positives
        second views of another image of the class
    admitted
        share of the pairs of one class kept as negatives
    pairs_only
        the negatives of a view are other second views (first views) alone, as `hnlib null` has it
    mixing
        i-mix or un-mix
    mixing_share
        share of the image itself in a mixture (default: drawn)
    evaluate_size
        largest number of images in each split of the readouts
    protocols
        of the readouts: clean; a few records have paper, that of the released code
    """

    dataset: Annotated[str, listed(DATASETS.keys(), OWN_DATASETS)] = "digits"
    encoder: Annotated[str, listed(ENCODERS.keys())] = "small-cnn"
    recipe: Literal[tuple(RECIPES)] = "book"  # pyright: ignore[reportInvalidTypeForm]
    train_size: Annotated[int, Field(ge=2)] | None = None
    validation: Annotated[int, Field(ge=0)] = 0
    augmentation: Annotated[
        str | dict | None, BeforeValidator(_recorded), Parameter(accepts_keys=False)
    ] = None
    separate_views: Annotated[bool, Rare] = False
    oracle_positives: Annotated[bool, Rare] = False
    admitted: Annotated[float, Field(ge=0, le=1)] = 1.0
    pairs_only: Annotated[bool, Rare] = False
    mixing: Literal["i-mix", "un-mix"] | None = None
    mixing_share: Annotated[Annotated[float, Field(ge=0, le=1)] | None, Rare] = None
    evaluate_size: Annotated[Annotated[int, Field(ge=2)] | None, Rare] = None
    protocols: Annotated[
        tuple[Literal["clean", "paper"], ...],
        AfterValidator(lambda given: tuple(sorted({"clean", *given}))),
        Parameter(consume_multiple=True),
    ] = ("clean",)

    kind: ClassVar = "images"
    recorded: ClassVar = (
        *Configuration.recorded,
        *("encoder", "train_size", "weight_decay", "precision", "max_steps", "augmentation"),
        "evaluate_size",
    )
    requires: ClassVar = Configuration.requires | {"mixing_share": ("mixing",)}
    accuracies: ClassVar = ("knn", "linear", "linear_paper", "knn_validation", "linear_validation")
    datasets: ClassVar = DATASETS
    own_datasets: ClassVar = OWN_DATASETS
    encoders: ClassVar = ENCODERS
    evaluate_every: ClassVar = 5

    def defaults_for_run(self) -> dict:
        """Return the defaults of fields that are None, and of method options."""
        recipe = RECIPES[self.recipe]
        usual = super().defaults_for_run()
        known = DATASETS.get(self.dataset)
        usual["augmentation"] = known.augmentation if known else "simclr"
        usual |= recipe | recipe.get("options", {}) | recipe.get(self.dataset, {})
        return usual | recipe.get(self.method, {}).get(self.dataset, {})

    @classmethod
    def fitting(cls, dataset: str, chosen: dict, asked: Container[str] = ()) -> dict:
        """Return validation, training and batch size where those chosen ask for too many images."""
        check_folder(dataset)
        if (count := training_images(dataset)) is None:
            return {}
        batch, size = chosen.get("batch_size") or 256, chosen.get("train_size")
        validation = chosen.get("validation") or 0
        if "validation" not in asked:
            validation = min(validation, count // 5)
        elif validation > count - 2:
            raise ValueError(
                f"validation must leave two of the {count:,} training images of "
                f"{cls.dataset_title(dataset)}, got {validation:,}"
            )
        left = min(size or count, count - validation)
        labelled = dataset in DATASETS and len(DATASETS[dataset].parts) > 2  # others have labels
        fit = {"validation": validation, "train_size": left if size or labelled else None}
        if batch > left // 2:
            fit["batch_size"] = cls.smaller_batch(left // 2)
        return {k: v for k, v in fit.items() if v is not None and v != chosen.get(k)}

    def check_names(self, root: Path | None = None, given: Container[str] = ()) -> None:
        """Raise ValueError for unknown names, and for more images than there are to train on.

        A file in its place is used as it is, so its images are counted.
        """
        super().check_names(root, given)
        if "dataset" not in given:
            check_folder(self.dataset)
        count = None if "dataset" in given else self._training_images(root)
        wanted = (self.train_size or 0) + self.validation
        if count is not None and wanted > count:
            title, sizes = self.dataset_title(self.dataset), "train_size and validation ask for"
            most = count - self.validation
            remedy = f"; give train_size at most {most:,}" if self.train_size and most > 1 else ""
            raise ValueError(f"{title} has {count:,} training images, {sizes} {wanted:,}{remedy}")
        known = DATASETS.get(self.dataset)
        if known and len(known.parts) > 2:  # images without labels may come to them
            count = None
        left = self.train_size or (count or 0) - self.validation
        if left > 0:
            self.check_batch(left, "images for training")

    def _training_images(self, root: Path | None) -> int | None:
        """Return how many images there are for training and validation; None if unknown."""
        placed = data_folder(root, "images") / f"{self.dataset}.npz"
        if self.dataset not in DATASETS or not placed.exists():
            return training_images(self.dataset)
        with suppress(*DAMAGED, KeyError), np.load(placed, allow_pickle=False) as file:
            return len(file["y_train"])  # whoever reads the images says what is wrong with them

    def display_values(self) -> dict:
        """Return the fields as numbers and words, an augmentation of ours by its name."""
        shown = super().display_values()
        if isinstance(self.augmentation, dict):
            own = as_augmentation(self.augmentation)
            named = (name for name, one in AUGMENTATIONS.items() if one == own)
            shown["augmentation"] = next(named, shown["augmentation"])
        return shown


Run = ImageRun
