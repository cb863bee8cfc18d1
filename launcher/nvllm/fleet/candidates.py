"""Candidates: compile caches that are not blessed yet, on their way to the machines that try them.

::

    REPO:candidate-<tree hash>      an image of one layer, the same that a blessing of this tree has

No bless manifest refers to it, and no pull looks for its tag. A machine gets the digest and the whole tree with its
task, and what it unpacks has to be that tree, byte for byte.
"""

from __future__ import annotations

from nvllm.cache.cachetree import Tree
from nvllm.cache.pins import Pin
from nvllm.core.paths import Places
from nvllm.core.progress import Progress
from nvllm.fleet import blessings
from nvllm.fleet.registry import Blob, Repository
from nvllm.layers.oci import sha256


def tag_of(tree: Tree) -> str:
    """Return the tag of the candidate TREE in a repository."""
    return f"candidate-{tree.hash}"


def push_candidate(
    tree: Tree, label: str, cure: str, platform: str, places: Places, repository: Repository, progress: Progress
) -> str:
    """Send TREE, which is in the tree store, to REPOSITORY, for hosts of PLATFORM. Return the digest of its image.

    LABEL is for people. Raises Refused NV907 with CURE for a tree that has changed.
    """
    notes = {"nvllm.candidate": label, "nvllm.tree": tree.hash}
    with blessings.packed(tree, notes, cure, platform, places, progress) as (layer, config, image):
        repository.push_blobs([Blob(layer.diff_id, layer.size, layer.path), Blob.of(config)])
    repository.push_manifest(sha256(image), image)
    repository.push_manifest(tag_of(tree), image)  # what has no tag, a registry may remove
    return sha256(image)


def pull_candidate(
    repository: Repository, digest: str, tree: Tree, label: str, cure: str, places: Places, progress: Progress, pin: Pin
) -> None:
    """Bring TREE into the tree store, from the image DIGEST in REPOSITORY, and keep it by PIN.

    Raises Refused as `blessings.bring` does.
    """
    where = f"registry {repository.name.host}: {digest}"
    layer = blessings.only_layer(repository.manifest(digest), where, repository)
    blessings.bring(repository, layer, tree, label, cure, places, progress, pin)
