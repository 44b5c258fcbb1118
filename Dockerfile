# syntax=docker/dockerfile:1
# Two images. `webhook`, the last stage and so the default: `chassis`, the webhook and the command line.
# `puller`: `chassis-puller`, the sidecar that every node with models pulls, without what it never imports.
#
#   docker build .                                                 for the machine's architecture
#   docker build --target puller .
#   docker build --platform linux/arm64 .                          on an arm64 builder, or under emulation
#   docker build --build-arg BASE=python:3.11-slim-bookworm@sha256:… --build-arg SOURCE_DATE_EPOCH=… .
#
# The Python of all stages is the one that CI runs. With the base pinned by its digest, two builds of one commit
# hold the same files.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS tools
ENV UV_LINK_MODE=copy \
    UV_PROJECT_ENVIRONMENT=/opt/chassis \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.8
WORKDIR /src
# The dependencies first: they change less often than the code. All are wheels, so nothing compiles.
COPY pyproject.toml uv.lock README.md ./

FROM tools AS webhook-build
# Downloads and archives are the puller's; the rest comes with parts of the Kubernetes client that are left out.
ENV WITHOUT="--no-install-package obstore --no-install-package zstandard \
    --no-install-package requests --no-install-package requests-oauthlib --no-install-package oauthlib \
    --no-install-package websocket-client --no-install-package charset-normalizer"
RUN uv sync --frozen --no-dev --no-build --no-install-project $WITHOUT
COPY policies policies
COPY webhook webhook
COPY puller puller
COPY manifests manifests
COPY docker docker
RUN uv sync --frozen --no-dev --no-editable $WITHOUT
ARG SOURCE_DATE_EPOCH=0
RUN uvx --from cyclonedx-bom==7.5.0 cyclonedx-py environment --output-reproducible --of JSON \
    --output-file /opt/chassis/sbom.cdx.json /opt/chassis/bin/python \
    && python docker/tidy.py /opt/chassis

FROM tools AS puller-build
RUN uv sync --frozen --only-group puller --no-build
COPY puller puller
COPY docker docker
RUN cp -r puller "$(/opt/chassis/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    && printf '%s\n' '#!/opt/chassis/bin/python' 'import sys' 'from puller.__main__ import main' 'sys.exit(main())' \
    > /opt/chassis/bin/chassis-puller \
    && chmod 755 /opt/chassis/bin/chassis-puller
ARG SOURCE_DATE_EPOCH=0
RUN uvx --from cyclonedx-bom==7.5.0 cyclonedx-py environment --output-reproducible --of JSON \
    --output-file /opt/chassis/sbom.cdx.json /opt/chassis/bin/python \
    && python docker/tidy.py /opt/chassis

FROM ${BASE} AS runtime
# Whoever gets into the container finds no installer. The base has the standard library without its bytecode, which
# nobody in the container can write: every start would compile it anew, and take twice the CPU.
RUN python -m pip uninstall --yes --quiet pip setuptools wheel \
    && PYTHONHASHSEED=0 python -m compileall -q --invalidation-mode unchecked-hash \
    -x '/(distutils|ensurepip|idlelib|lib2to3|pydoc_data|site-packages|tests?|tkinter|turtledemo|unittest)/' \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
ENV PATH=/opt/chassis/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ARG REVISION=unknown
LABEL org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}"

FROM runtime AS puller
LABEL org.opencontainers.image.title="ML Chassis puller" \
      org.opencontainers.image.description="The sidecar that keeps a pod's models equal to a ConfigMap"
COPY --from=puller-build /opt/chassis /opt/chassis
USER 65532:65532
EXPOSE 9081
ENTRYPOINT ["chassis-puller"]

FROM runtime AS webhook
LABEL org.opencontainers.image.title="ML Chassis" \
      org.opencontainers.image.description="The admission webhook that gives every machine-learning workload in Kubernetes its chassis"
COPY --from=webhook-build /opt/chassis /opt/chassis
# A number, so that a kubelet can tell that it is not root. It needs to write to /tmp alone.
USER 65532:65532
EXPOSE 8443
ENTRYPOINT ["chassis"]
CMD ["serve"]
