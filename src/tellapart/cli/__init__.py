"""The command line: the only place that reads YAML or builds things from names."""
