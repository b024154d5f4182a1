"""Image augmentation in batches on the device, with one random draw per image."""
