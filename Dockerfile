# The service, the command line `headway`, and the embedded store in one image.
#
#   docker build -t headway .
#   docker run --read-only -p 127.0.0.1:7420:7420 -e HEADWAY_INSECURE=true -v headway:/var/lib/headway headway
#
# It listens beyond itself only if HEADWAY_INSECURE says that the network around it is the fence: see
# docs/operations.md. Both stages stand on the same image, because the second runs the first one's environment.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# Nothing is compiled: what has no wheel ends the build. The constraint holds for the build back end, too.
ENV PIP_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ONLY_BINARY=:all:
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY clients/python clients/python
COPY service service
# Without pip in it. Byte code is made here, for the file system is read-only later, and is not compared with the times
# of files, so that the same sources give the same bytes.
RUN python -m venv --without-pip /opt/headway \
    && python -m pip --python /opt/headway/bin/python install --no-compile './clients/python[cli]' . \
    && /opt/headway/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/headway/lib \
    && mkdir /var/lib/headway

FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="headway" \
      org.opencontainers.image.description="A queue service that tells everyone where they stand." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
ENV PATH=/opt/headway/bin:$PATH \
    HOME=/var/lib/headway \
    HEADWAY_DATA_DIR=/var/lib/headway \
    HEADWAY_LISTEN=0.0.0.0:7420 \
    HEADWAY_LOG_FORMAT=json
COPY --from=build /opt/headway /opt/headway
COPY --from=build --chown=10001:10001 /var/lib/headway /var/lib/headway
# A number, so that a cluster can see that it is not root.
USER 10001:10001
# Used by the embedded store only.
VOLUME ["/var/lib/headway"]
# gRPC; and HTTP, if HEADWAY_HTTP_LISTEN says 0.0.0.0:7421.
EXPOSE 7420 7421
# Whether it wants calls; the store is not asked.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["headwayd", "check"]
ENTRYPOINT ["headwayd"]
CMD ["serve"]
