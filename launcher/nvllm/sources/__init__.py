"""Where bytes come from: indexes, archives, repositories, the hub; and the content store that holds what came.

In: locked files, and the names that `nvllm lock` resolves. Out: files whose sha256 was checked before they got
their name. Only `hub` imports huggingface_hub.
"""
