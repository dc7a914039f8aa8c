"""Images: data in memory, views made in batch on the device, encoders."""

import hnlib.training  # noqa: F401  # first: without its packages it says what to install
