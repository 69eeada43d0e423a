# Two stages: the wheel is built and installed exactly as tests/install/test_packaging.py does it. Nothing is installed
# whose hash does not stand in constraints.txt, the build tools included.
FROM docker.io/library/python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY extender ./extender
COPY examples ./examples
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes --no-deps --requirement constraints.txt \
 && /opt/build/bin/python -m build --wheel --no-isolation --outdir /dist . \
 && /opt/build/bin/pip download --no-cache-dir --require-hashes --no-deps --requirement constraints.txt --dest /wheels \
 && python -m venv /opt/berth \
 && /opt/berth/bin/pip install --no-cache-dir --no-index --find-links /wheels "$(echo /dist/*.whl)[traces]"

FROM docker.io/library/python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
COPY --from=build /opt/berth /opt/berth
ENV PATH=/opt/berth/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["berth"]
CMD ["serve", "--listen", "127.0.0.1:8888"]
