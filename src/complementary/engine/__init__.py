"""Training infrastructure: devices, CUDA graphs, the training loop, run folders. Independent of the kind of labels."""
