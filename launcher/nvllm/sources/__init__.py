"""Fetching files from indexes, archives, git hosts and the hub, and the content store that holds them.

In: locked files, and the names that `nvllm lock` resolves. Out: files in the store, whose sha256 was
verified before. Only `hub` imports huggingface_hub.
"""
