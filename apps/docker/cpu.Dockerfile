# Image with the programs for CPUs, on Debian 12. The steps are those of apps/quickstart.sh; a test compares them.
#   docker build -f apps/docker/cpu.Dockerfile -t megalith:cpu .
#   docker run --rm -it -v "$PWD/runs:/megalith/runs" megalith:cpu apps/quickstart.sh
FROM debian:12
WORKDIR /megalith
COPY . .
RUN apps/install_dependencies.sh
RUN cmake --preset cpu-release -DMEGALITH_TESTS=OFF
RUN cmake --build --preset cpu-release --target train prepare generate report plan convert
# mpirun in a container: it runs as root, and may start more ranks than there are cores.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash
ENV PATH=/megalith/build/cpu-release/apps:$PATH
CMD ["train", "--help"]
