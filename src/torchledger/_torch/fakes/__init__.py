"""What a program meets in a plan instead of a device: fake tensors, a fake CUDA device, a fake process group, and what
stands in for values, streams, libraries and threads that only a real one has."""
