"""What pyproject.toml cannot say: a wheel carries the small ledgers that the book's pages read, for
notebooks that run away from a checkout. The recorded runs are an artefact of their own."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LEDGERS = [str(path) for path in sorted(Path("book/results").iterdir()) if path.is_file()]
READ = ["examples/losses", "notebooks/errata.md", "book/results/experiments", *LEDGERS]


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
