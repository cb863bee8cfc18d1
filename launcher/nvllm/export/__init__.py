"""Exports: an examined serve as files for Kubernetes, Quadlet, Compose or systemd.

In: a launch plan that nothing refuses, its models and its blessing. Out: files, and which guarantees of `nvllm serve`
they keep.
"""
