# Two stages: the wheel is built and installed exactly as tests/test_packaging.py does it.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY extender ./extender
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir build \
 && /opt/build/bin/python -m build --wheel --outdir /wheels . \
 && python -m venv /opt/berth \
 && /opt/berth/bin/pip install --no-cache-dir --constraint constraints.txt "$(echo /wheels/*.whl)[traces]"

FROM python:3.13-slim
COPY --from=build /opt/berth /opt/berth
ENV PATH=/opt/berth/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["berth"]
CMD ["serve", "--listen", "127.0.0.1:8888"]
