"""Images: data in memory, views made in batch on the device, encoders."""
