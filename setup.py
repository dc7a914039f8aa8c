"""What pyproject.toml cannot say: a wheel carries the small ledgers that the book's pages read, for
notebooks that run away from a checkout. The recorded runs are an artefact of their own."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

READ = ("examples/losses", "book/claims.csv", "book/headlines.toml", "notebooks/errata.md")
READ += ("book/results/experiments",)
READ += ("book/results/papers.csv", "book/results/papers.toml", "book/results/motion.json")
READ += ("book/results/heaviest_negatives.json", "book/results/retrieval_baselines.json")
READ += ("book/results/stages.npz", "book/results/loss_profiles.json", "book/results/costs.json")
READ += ("book/results/public_tables.csv", "book/results/public_predictions.csv")
READ += ("book/results/asked.csv",)
READ += ("book/results/null_design.json", "book/results/null_predictions.csv")


class WithLedgers(build_py):
    def run(self):
        if self.editable_mode:  # a checkout has its own
            return super().run()
        shutil.rmtree(self.build_lib, ignore_errors=True)  # of the build before
        super().run()
        ledgers = Path(self.build_lib, "hnlib/_ledgers")
        for name in READ:
            source, target = Path(name), ledgers / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"))
            else:
                shutil.copyfile(source, target)


setup(cmdclass={"build_py": WithLedgers})
