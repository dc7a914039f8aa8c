"""What pyproject.toml cannot say: a wheel carries what the pages of the book read, for notebooks
that run away from a checkout (`hnlib.book.book_files.book_file`)."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

READ = ("book/claims.csv", "book/results/papers.csv", "book/results/papers.toml")
READ += ("notebooks/errata.md",)
READ += ("book/results/runs", "book/results/experiments", "book/results/motion.json")
READ += ("book/results/heaviest_negatives.json", "book/results/retrieval_baselines.json")
READ += ("book/results/stages.npz", "book/results/loss_profiles.json", "book/results/costs.json")
PACKED = "book/results/runs.parquet"  # of the build; not of older records


def read():
    runs = Path("book/results/runs")
    changed = max(path.stat().st_mtime for path in (runs, *runs.iterdir()))
    packed = Path(PACKED)
    return READ + (PACKED,) * (packed.exists() and packed.stat().st_mtime >= changed)


class WithLedgers(build_py):
    def run(self):
        if self.editable_mode:  # a checkout has its own
            return super().run()
        shutil.rmtree(self.build_lib, ignore_errors=True)  # of the build before
        super().run()
        ledgers = Path(self.build_lib, "hnlib/_ledgers")
        for name in read():
            source, target = Path(name), ledgers / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"))
            else:
                shutil.copyfile(source, target)


setup(cmdclass={"build_py": WithLedgers})
