# What compiles the vLLM of image gb10: its base, with the toolkit of CUDA's devel image. docs/gb10.md says how.
#
#   docker build -t gb10-compile - < images/gb10-compile.Dockerfile
#
# The Dockerfile of a build context looks for /usr/bin/python3.12, which this base has in /usr/local.
FROM nvidia/cuda:13.2.0-devel-ubuntu24.04@sha256:f9492f2eea77fbc3d0c14fa8738f35946b42da72917bf5959d284ca39b4f209a AS toolkit

FROM python:3.12.14-bookworm@sha256:dbbe4ceb97851e2e5fa83798b239811f871cb743b259ba3563737349f6bcfaa0
COPY --from=toolkit /usr/local/cuda-13.2 /usr/local/cuda-13.2
RUN ln -s cuda-13.2 /usr/local/cuda && ln -s /usr/local/bin/python3.12 /usr/bin/python3.12
ENV CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin
