"""Image augmentation, batched on the device."""
