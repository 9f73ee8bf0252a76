# fedlab_runner for CPUs, without the CUDA libraries that the default build of torch brings.
#   docker build -t fedlab .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/outputs:/runs/outputs" fedlab rounds=20
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/outputs:/runs/outputs" --entrypoint fedlab-report fedlab
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY fedlab_runner fedlab_runner
COPY conf conf
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
RUN pip install --no-cache-dir torch torchvision --index-url https://download.pytorch.org/whl/cpu
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl
# Any user may write: caches go to the home folder, runs to /runs/outputs.
ENV HOME=/tmp
RUN mkdir --mode=1777 /runs
WORKDIR /runs
USER 1000:1000
ENTRYPOINT ["fedlab"]
