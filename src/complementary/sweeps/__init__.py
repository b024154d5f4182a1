"""Many runs: grids, executors, results."""
