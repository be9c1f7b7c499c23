"""Where numbers go wrong: values of a graph node by node, precisions emulated on the CPU, and comparisons of layers."""
