"""The records, read once for all chapters: their kernels fork from a process that imports this."""

from hnlib.training import records

records.load_all(records.tracked_folder())
