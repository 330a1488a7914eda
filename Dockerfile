# The image of Headrace: workers, `headrace …` and the stub LLM. Without the extras `local` and `test`: no Java, no broker.
#
#   docker build -t headrace .
#   docker run --rm headrace --help
#
# A handler of your own goes beside the workers, and what it needs into their environment:
#
#   FROM headrace
#   USER root
#   RUN python -m pip --python /opt/headrace/bin/python install --no-cache-dir mypackage==1.0
#   COPY mypackage /app/mypackage
#   USER 10001:10001

ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_CONSTRAINT=/src/constraints.txt
WORKDIR /src
# What others wrote changes seldom: a layer of its own, before our code.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > needed.txt \
 && python -m pip wheel --wheel-dir /wheels --requirement needed.txt
COPY README.md LICENSE topics.yaml ./
COPY headrace headrace
RUN python -m pip wheel --wheel-dir /wheels --no-deps . \
 && python -m venv --without-pip /opt/headrace \
 && python -m pip --python /opt/headrace/bin/python install --no-index --find-links /wheels headrace

FROM python:${PYTHON}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Headrace" \
      org.opencontainers.image.description="LLM inference over Kafka in which every request settles exactly once" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/headrace/bin:${PATH} \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HEADRACE_HTTP_HOST=0.0.0.0 \
    HEADRACE_METRICS_PORT=9464
COPY --from=build /opt/headrace /opt/headrace
WORKDIR /app
COPY workers workers
# A number, so that Kubernetes' runAsNonRoot can judge it; no name is needed, and no home: nothing is written but in /tmp.
USER 10001:10001
EXPOSE 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-m", "workers.livez"]
ENTRYPOINT ["headrace"]
CMD ["--help"]
