# The command line in a container, with the compiler that the native recorder needs:
#   docker build --tag xlocal .
#   docker run --rm --volume "$PWD:/work" xlocal trace buggy.py reference.py
FROM python:3.13-slim

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev git \
    && rm -rf /var/lib/apt/lists/*

COPY LICENSE README.md pyproject.toml /opt/xlocal/
COPY tracer /opt/xlocal/tracer
COPY ranking /opt/xlocal/ranking
COPY swe_pipeline /opt/xlocal/swe_pipeline
COPY xlocal /opt/xlocal/xlocal
COPY examples /opt/xlocal/examples
RUN pip install --no-cache-dir /opt/xlocal && useradd --create-home --uid 1000 xlocal

# The mounted project belongs to another user than the one in here, which git refuses to read unless told.
RUN git config --system --add safe.directory '*'

USER xlocal
WORKDIR /work
ENTRYPOINT ["xlocal"]
CMD ["--help"]
