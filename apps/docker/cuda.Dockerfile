# Image with the programs for NVIDIA GPUs. The base image brings the CUDA toolkit, cuDNN and NCCL with headers in the
# versions of SUPPORT.md. The steps are those of apps/quickstart.sh; a test compares them. Building needs no GPU.
#   docker build -f apps/docker/cuda.Dockerfile -t megalith:cuda .
#   docker run --rm -it --gpus all --ipc host --ulimit memlock=-1 -v "$PWD/runs:/megalith/runs" megalith:cuda \
#     apps/quickstart.sh
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04
FROM ${CUDA_IMAGE}
WORKDIR /megalith
COPY . .
RUN apps/install_dependencies.sh
# MEGALITH_WERROR=OFF as in apps/quickstart.sh: the image's compiler is not GCC 12.
RUN cmake --preset cuda-release -DMEGALITH_CUDA=ON -DMEGALITH_WERROR=OFF -DMEGALITH_TESTS=OFF
RUN cmake --build --preset cuda-release --target train prepare generate report plan convert
# mpirun in a container: it runs as root, and may start more ranks than there are cores.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash
ENV PATH=/megalith/build/cuda-release/apps:$PATH
CMD ["train", "--help"]
