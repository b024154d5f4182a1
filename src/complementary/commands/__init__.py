"""The commands of ``cll``, one file each; loaded only when called."""
