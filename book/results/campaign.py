"""Train the book's long runs on a CPU, one after another: `python book/results/campaign.py`.

Each run is resumed from its checkpoint, recorded when it ends and left out where its record exists,
so the script may be stopped and started at any time. One process, one thread: runs are timed as
they would be alone.
"""

import argparse
from pathlib import Path

import torch

from hnlib._files import project_root
from hnlib.book import campaign
from hnlib.training import kinds, records
from hnlib.training.run import train


def main() -> None:
    """Train and record every run that `--folder` lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=records.tracked_folder(), help="of the records"
    )
    parser.add_argument(
        "--only", choices=campaign.PARTS, default="", help="a part, for a second process"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = project_root() / "_build" / f"campaign{args.only}.pt"
    while (run := next(campaign.missing(args.folder, args.only), None)) is not None:
        print(run, flush=True)
        where = dict(checkpoint=checkpoint, record_to=args.folder, progress=False)
        try:
            done = train(run, **where)
        except ValueError as error:  # a checkpoint of another run, or of an older version
            if not any(words in str(error) for words in ("another run", "this version of hnlib")):
                raise
            checkpoint.unlink()
            done = train(run, **where)
        checkpoint.unlink()
        shown = [name for name in kinds.scores() if name in done.metrics]
        scores = {name: round(done.metrics[name], 4) for name in shown}
        print(scores, done.record["seconds"], flush=True)


if __name__ == "__main__":
    main()
