"""The benchmarks behind bin/bench: ratios to a reference measured in the same run."""
