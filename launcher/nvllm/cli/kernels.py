"""`nvllm kernels`: the precompiled Triton kernels of an image."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from nvllm.cli.build import fresh_build, image_builder, patches_option
from nvllm.cli.frame import App, Group
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.image.builder import LayerBuilder
from nvllm.kernels import check
from nvllm.kernels.kernellayer import Kernel
from nvllm.layers.tarlayer import Layer

EXAMPLES = """
Examples:
  nvllm kernels build sm120                          compile every kernel for every target; no GPU, no engine
  nvllm kernels list sm120                           what the layer holds
  nvllm kernels check sm120                          check that no launch of the engine compiles anything
  nvllm kernels check sm120 --platform linux/arm64   the same for another platform than this host's
"""


kernels = Group("kernels", epilog=EXAMPLES)


def _builder(app: App, image: str, patches: str | None) -> LayerBuilder:
    """Return the layer builder of IMAGE, with the files for its kernels fetched."""
    build = fresh_build(app, image, patches)
    return image_builder(app).kernels(build)


def _layer(builder: LayerBuilder) -> Layer:
    """Return the kernels layer. Raises Refused NV315 if no patch of the set has a kernel."""
    if builder.kernel_sources() is None:
        where = f"images/{builder.build.spec.name}.yaml: .patches"
        cure = f"nvllm patch list --series {builder.build.spec.patches.series}"
        raise refuse("NV315", where, "a patch with a kernel", "none", cure)
    (layer,) = builder.kernels()
    return layer


def _rows(compiled: tuple[Kernel, ...]) -> list[tuple[str, ...]]:
    return [(kernel.name, kernel.target, f"{kernel.size:,}", kernel.key) for kernel in compiled]


@kernels.command("build", epilog=EXAMPLES)
@IMAGE
@patches_option
@with_image()
def build_command(app: App, image: str, patches: str | None) -> None:
    """Build the kernels layer of IMAGE, which `nvllm build` puts above its patches."""
    layer = _layer(_builder(app, image, patches))
    data: Json = {"image": image, "diff_id": layer.diff_id, "size": layer.size, "path": str(layer.path)}
    app.out.result("kernels build", data, f"{layer.diff_id}  {layer.size} bytes\n  {layer.path}")


@kernels.command("list", epilog=EXAMPLES)
@IMAGE
@patches_option
@with_image()
def list_command(app: App, image: str, patches: str | None) -> None:
    """List the kernels of IMAGE: name, target, bytes of code, and the directory in Triton's cache."""
    layer = _layer(_builder(app, image, patches))
    compiled = check.listed(check.content(layer.path))
    data = {"image": image, "diff_id": layer.diff_id, "kernels": [asdict(kernel) for kernel in compiled]}
    rows = _rows(compiled)
    app.out.result(
        "kernels list", cast("Json", data), lambda: app.out.table(["kernel", "target", "bytes", "key"], rows)
    )


@kernels.command("check", epilog=EXAMPLES)
@IMAGE
@patches_option
@with_image()
def check_command(app: App, image: str, patches: str | None) -> None:
    """Check, without a GPU, that an engine of IMAGE finds every kernel that it launches, for every target."""
    builder = _builder(app, image, patches)
    layer, sources = _layer(builder), builder.kernel_sources()
    assert sources is not None  # there is a layer of them
    with builder.kernel_compiler() as compiler:
        proof = check.check(check.content(layer.path), sources, compiler)
    data = {
        "image": image,
        "platform": builder.build.lock.platform,
        "diff_id": layer.diff_id,
        "targets": list(builder.build.spec.targets),
        "launches": proof.launches,
        "kernels": [asdict(kernel) for kernel in proof.kernels],
        "stubs": list(proof.stubs),
    }

    def text() -> None:
        app.out.table(["kernel", "target", "bytes", "key"], _rows(proof.kernels))
        app.out.line(f"{proof.launches} launches, none of which compiles; {len(proof.stubs)} modules in C")

    app.out.result("kernels check", cast("Json", data), text)
