"""What other programs may call: everything below the command line that stays as it is documented in docs/library.md.

Functions take values, return values or raise `Refused`; nothing here prints or exits. What is not here may change
without notice. The command line does not import this module, so that a command loads only what it needs.
"""

from nvllm.bisect.driver import drive as drive_bisect
from nvllm.bisect.problem import Problem as BisectProblem
from nvllm.bisect.problem import Settings as BisectSettings
from nvllm.bisect.search import propose as propose_trial
from nvllm.bless.blessing import Bless
from nvllm.cache.blessings import Blessings
from nvllm.cache.manifest import Manifest
from nvllm.cache.store import TreeStore
from nvllm.core.paths import Places, Project, find_project, packaged, places
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.engine.engine import Engine, connect
from nvllm.evidence.directory import EvidenceDirectory
from nvllm.evidence.runner import Runner as EvidenceRunner
from nvllm.fleet.images import pull_image, push_image
from nvllm.fleet.registry import Repository
from nvllm.gc.garbage import Piece as Garbage
from nvllm.gc.garbage import files as unreferenced_files
from nvllm.gc.garbage import images as unreferenced_images
from nvllm.gc.garbage import remove as remove_garbage
from nvllm.host.checks import Outcome as CheckOutcome
from nvllm.host.checks import outcomes as check_host
from nvllm.host.facts import HostFacts
from nvllm.host.facts import probe as probe_host
from nvllm.image.builder import ImageBuilder
from nvllm.image.identity import Build, load_build
from nvllm.kernels.kernellayer import Kernel, KernelCompiler, KernelSources
from nvllm.layers.cache import LayerCache
from nvllm.layers.tarlayer import Layer
from nvllm.lock.drift import compare as compare_locks
from nvllm.lock.lockdoc import read as read_lock_file
from nvllm.lock.lockdoc import write as write_lock_file
from nvllm.lock.project import LockInputs, lock_image, read_lock, usable_lock
from nvllm.lock.project import read_inputs as read_lock_inputs
from nvllm.models.modeltree import tree_hash as model_tree_hash
from nvllm.models.modeltree import verify as verify_model
from nvllm.patches.patchset import choose as choose_patches
from nvllm.patches.series import Patch, Series
from nvllm.patches.seriesfile import load as load_series
from nvllm.serve.examination import Depth, Examination, examine
from nvllm.serve.stopping import stop
from nvllm.serve.supervisor import Supervisor
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from nvllm.spec.specfile import load as load_spec
from nvllm.spec.specfile import parse as parse_spec

__all__ = [
    "BisectProblem",
    "BisectSettings",
    "Bless",
    "Blessings",
    "Build",
    "CheckOutcome",
    "Engine",
    "EvidenceDirectory",
    "EvidenceRunner",
    "Garbage",
    "HostFacts",
    "ImageBuilder",
    "Kernel",
    "KernelCompiler",
    "KernelSources",
    "Layer",
    "LayerCache",
    "LockInputs",
    "Manifest",
    "Patch",
    "Places",
    "Depth",
    "Examination",
    "Project",
    "Refusal",
    "Refused",
    "Repository",
    "Series",
    "Silent",
    "Sources",
    "Store",
    "Supervisor",
    "TreeStore",
    "check_host",
    "choose_patches",
    "compare_locks",
    "connect",
    "drive_bisect",
    "find_project",
    "load_build",
    "load_series",
    "load_spec",
    "lock_image",
    "model_tree_hash",
    "packaged",
    "parse_spec",
    "places",
    "examine",
    "probe_host",
    "propose_trial",
    "pull_image",
    "push_image",
    "read_lock",
    "read_lock_file",
    "read_lock_inputs",
    "remove_garbage",
    "stop",
    "unreferenced_files",
    "unreferenced_images",
    "usable_lock",
    "verify_model",
    "write_lock_file",
]
