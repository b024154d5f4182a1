"""How anything is trained: devices, captured steps, the loop, checkpoints. Knows nothing of labels."""
