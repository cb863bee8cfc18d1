"""Moving a series of patches to another release of vLLM, by text: each file in a three-way merge.

The three sides are locked bytes: the file that the series is for, the same with the patch, and the file of the new
release. No history is needed, and nothing but the two source archives.

- ``merge``: each patch on the new source, and its outcome. Pure.
- ``moves``: where a file of the old source lies in the new one. Pure.
- ``gitmerge``: `git merge-file`, the only program that is run.
- ``conflicts``: the directory in which a person resolves conflicts.
- ``resolutions``: how conflicts were resolved before, for every port of this user.
- ``report``: what changed of each patch, what was dropped, what a person decides. Pure.
"""
