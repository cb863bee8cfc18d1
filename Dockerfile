# Two ways to use a lock with nothing but Docker. The context is a directory that `nvllm dockerfile IMAGE --context DIR`
# writes (or a release has ready): every locked file is in it, so no build of `image` needs a network.
#
#   docker build --network=none --build-arg BASE=NAME@sha256:... --target image -t vllm CONTEXT
#       a complete image: the same files below /opt/venv as in the image that `nvllm build` makes
#   docker build --network=none --build-arg BASE=... --build-arg VLLM_TARGET_DEVICE=empty --target native -o DIR CONTEXT
#       the wheel of the pinned commit, compiled with every patch of the set, also native ones
#
# BASE is a name with a digest, or the tag of an image that only this engine has (`nvllm dockerfile IMAGE --base-image
# TAG` loads one; BuildKit does not take ids). It must have /usr/bin/python$PYTHON with its standard library, sh and
# sha256sum; `native` needs the compilers as well, and for VLLM_TARGET_DEVICE=cuda the CUDA toolkit.
#
# Locked are the image, the source, the patches, and the Python packages that build vLLM. Not locked is what compilers
# need besides: for cuda and cpu vLLM's CMake files fetch sources (CUTLASS, oneDNN, ...) by commits and tags of their
# own, and cargo, if BASE has it, fetches the crates of its Cargo.lock. Leave --network=none out for those.
#
# Both builders can do it; -o, which writes the wheel to a directory, is BuildKit's (Docker 23 and newer use it by
# default, for 20.10 set DOCKER_BUILDKIT=1). The classic builder also makes the stages before the one that is asked for.

ARG BASE
FROM ${BASE} AS environment
ARG PYTHON
# The sha256 of SHA256SUMS, for whoever got it by another way than the context.
ARG SUMS=
USER 0:0
WORKDIR /context
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/context LC_ALL=C.UTF-8
COPY . .
RUN { test -z "$SUMS" || echo "$SUMS  SHA256SUMS" | sha256sum --check --strict --quiet; } \
    && sha256sum --check --strict --quiet SHA256SUMS \
    && "/usr/bin/python$PYTHON" -m nvllm.image.assemble environment /context /

# Another stage, so that neither the context nor a later step of it is a layer of the result.
FROM ${BASE} AS image
COPY --from=environment /opt/venv /opt/venv
COPY --from=environment /opt/nvllm /opt/nvllm
# nvllm dockerfile: environment, label and entry point of the image spec
USER 65534:65534
WORKDIR /

# vLLM is compiled against the torch that it will run with: the one of the environment.
FROM environment AS compile
ARG PYTHON
ARG SOURCE_DATE_EPOCH
ARG VLLM_VERSION
# cuda, cpu, rocm or xpu; empty compiles nothing and proves the way.
ARG VLLM_TARGET_DEVICE
# How many compilers run at a time, and for which GPUs: vLLM's own variables, empty for its defaults.
ARG MAX_JOBS=
ARG TORCH_CUDA_ARCH_LIST=
# 1: refuse to build without Rust, whose frontend is optional otherwise.
ARG VLLM_REQUIRE_RUST_FRONTEND=
WORKDIR /native
RUN test -n "$VLLM_TARGET_DEVICE" || { echo "give --build-arg VLLM_TARGET_DEVICE=cuda, cpu or empty" >&2; exit 2; }
# pip runs from its own wheel until it has installed itself.
RUN "/usr/bin/python$PYTHON" -m nvllm.image.assemble source /context /native/vllm \
    && set -- /context/native/wheels/pip-*.whl \
    && PYTHONPATH="$1" "/opt/venv/bin/python$PYTHON" -m pip install --quiet --no-cache-dir --no-compile \
        --no-index --find-links /context/native/wheels --require-hashes --no-deps \
        --target /native/requirements -r /context/native/requirements.txt
RUN for name in MAX_JOBS TORCH_CUDA_ARCH_LIST VLLM_REQUIRE_RUST_FRONTEND; do \
        eval "test -n \"\$$name\"" || unset "$name"; \
    done \
    && export PYTHONPATH=/native/requirements PATH="/native/requirements/bin:$PATH" VLLM_TARGET_DEVICE \
        SOURCE_DATE_EPOCH VLLM_VERSION_OVERRIDE="$VLLM_VERSION" \
    && "/opt/venv/bin/python$PYTHON" -m pip wheel --no-cache-dir --no-index --no-build-isolation --no-deps \
        --wheel-dir /native/wheel /native/vllm

FROM scratch AS native
COPY --from=compile /native/wheel/ /

FROM image
