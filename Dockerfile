# syntax=docker/dockerfile:1
# One image for `chassis` (the webhook, the command line) and `chassis-puller` (the sidecar).
# The Python of both stages is the one that CI runs.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
ENV UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PROJECT_ENVIRONMENT=/opt/chassis \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.8
WORKDIR /src
# The dependencies first: they change less often than the code. All are wheels, so nothing compiles.
COPY pyproject.toml uv.lock README.md ./
RUN uv sync --frozen --no-dev --no-build --no-install-project
COPY policies policies
COPY webhook webhook
COPY puller puller
COPY manifests manifests
RUN uv sync --frozen --no-dev --no-editable

FROM python:${PYTHON_VERSION}-slim-bookworm
LABEL org.opencontainers.image.title="ML Chassis" \
      org.opencontainers.image.description="The admission webhook that gives every machine-learning workload in Kubernetes its chassis"
# Whoever gets into the container finds no installer.
RUN python -m pip uninstall --yes --quiet pip setuptools wheel
COPY --from=build /opt/chassis /opt/chassis
ENV PATH=/opt/chassis/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that a kubelet can tell that it is not root. It needs to write to /tmp alone.
USER 65532:65532
EXPOSE 8443 9081
ENTRYPOINT ["chassis"]
CMD ["serve"]
