"""Projects of one's own: what `nvllm init` writes, and what it looks up before.

In: a name, and a release or commit of vLLM. Out: the files of a project with one image.
"""
